"""Writes a model as an ordinary Hugging Face folder: of a run, read from GGUF, or an adapter merged into its base."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from midcourse.config import kept_settings, load_config
from midcourse.errors import ConfigError, DataError, MidcourseError, OutputError
from midcourse.nano.package import BUILT_IN, BUILT_IN_CHAT
from midcourse.recording.reader import RunReader
from midcourse.runs import locate_checkpoint
from midcourse.training.lora import AdapterFile, find_adapter, load_adapter, merge_adapter
from midcourse.training.model_card import CARD, CardFacts, model_card
from midcourse.training.policy import check_path, load_model, load_tokenizer

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is exported."""

    path: str  # as policy.path takes it
    dtype: Dtype = "float32"
    has_tokenizer: bool = True
    facts: CardFacts | None = None  # of weights that a run made


def export_model(path: str, folder: Path, *, in_bfloat16: bool = False, merge: bool = False) -> None:
    """Write model, tokenizer and card to `folder`, which is whole or not there.

    Args:
        path: a run, a checkpoint of one, or whatever policy.path takes.
        folder: to be made.
        in_bfloat16: round the weights; else those of a run keep their type, others are float32.
        merge: add an adapter to its base's weights; else it stays an adapter, which names its base.

    Raises:
        ConfigError: there is no model at `path`, or it is built in, or has no adapter to be merged.
        OutputError: `folder` exists, or cannot be written.
        DataError: `path` cannot be read.
        RunFolderError, CheckpointError: as `locate_checkpoint`.
    """
    try:
        source = _find_source(path)
    except OSError as error:  # a name that is too long, or a folder that may not be read
        raise DataError(f"{path} cannot be read: {error}") from error
    if source.path in BUILT_IN:
        raise ConfigError(f"{path!r} is built in and has no tokenizer to be exported with; expected a model's path")
    check_path(source.path)
    adapter = find_adapter(source.path)
    if merge and adapter is None:
        raise ConfigError(f"--merge: {path!r} has no adapter that could be merged")
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        if folder.exists():
            raise OutputError(f"{folder} exists; an export writes a folder of its own")
        shutil.rmtree(partial, ignore_errors=True)
        if adapter is not None and not merge:
            shutil.copytree(adapter.folder, partial, ignore=shutil.ignore_patterns(CARD))
        else:
            _model(source, adapter, "bfloat16" if in_bfloat16 else source.dtype).save_pretrained(partial)
            if source.has_tokenizer:
                load_tokenizer(source.path).save_pretrained(partial)
        if source.facts is not None:
            (partial / CARD).write_text(
                model_card(replace(source.facts, is_adapter=adapter is not None and not merge)), encoding="utf-8"
            )
        partial.rename(folder)
    except (MidcourseError, MemoryError):
        raise
    # Where a disk is full, safetensors and tokenizers raise types of their own, with Exception as all they share.
    except Exception as error:
        raise OutputError(f"{folder} cannot be written: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _model(source: _Source, adapter: AdapterFile | None, dtype: Dtype) -> Any:
    import torch

    base = source.path if adapter is None else adapter.base
    kind = getattr(torch, dtype)
    model = BUILT_IN[base].load().to(kind) if base in BUILT_IN else load_model(base, kind)
    if adapter is not None:
        load_adapter(model, adapter, base=base)
        merge_adapter(model)
    return model


def _find_source(path: str) -> _Source:
    place = Path(path)
    step = place.parent if place.name == "model" else place
    if not (place / "config.toml").is_file() and not (step / "state.json").is_file():
        return _Source(path=path)
    checkpoint = locate_checkpoint(place if (place / "config.toml").is_file() else step)
    config = load_config(checkpoint.run / "config.toml")
    update = int(checkpoint.step.name.removeprefix("step_"))
    scores = [scores for scores in RunReader(checkpoint.run).evaluations() if scores["update"] == update]
    adapter = find_adapter(str(checkpoint.model))
    return _Source(
        path=str(checkpoint.model),
        dtype=config.policy.dtype,
        has_tokenizer=config.policy.chat not in BUILT_IN_CHAT,
        facts=CardFacts(
            base=config.policy.path if adapter is None else adapter.base,
            is_adapter=adapter is not None,
            update=update,
            settings=kept_settings(config),
            evaluation=scores[-1] if scores else None,
        ),
    )
