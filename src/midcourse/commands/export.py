"""Writes a model as an ordinary Hugging Face folder: one read from GGUF, or an adapter merged into its base."""

import shutil
from pathlib import Path
from typing import Literal

from midcourse.errors import ConfigError, OutputError
from midcourse.nano.package import BUILT_IN
from midcourse.training.lora import find_adapter, load_adapter, merge_adapter
from midcourse.training.policy import check_path, load_model, load_tokenizer


def export_model(path: str, folder: Path, *, dtype: Literal["float32", "bfloat16"]) -> None:
    """Write model and tokenizer of a policy's path to `folder`, which is whole or not there.

    Raises:
        ConfigError: there is no model at `path`, or it is built in.
        OutputError: `folder` exists, or cannot be written.
    """
    if path in BUILT_IN:
        raise ConfigError(f"{path!r} is built in and has no tokenizer to be exported with; expected a model's path")
    check_path(path)
    if folder.exists():
        raise OutputError(f"{folder} exists; an export writes a folder of its own")
    import torch

    adapter = find_adapter(path)
    base = path if adapter is None else adapter.base
    tokenizer = load_tokenizer(path)
    model = load_model(base, getattr(torch, dtype))
    if adapter is not None:
        load_adapter(model, adapter, base=base)
        merge_adapter(model)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OutputError(f"{folder} cannot be written: {error}") from error
