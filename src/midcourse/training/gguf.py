"""Models in GGUF files, the format of llama.cpp: tokenizer, and weights of any quantization that transformers unpacks.

A file is unpacked whenever it is loaded, which takes a minute or more where its tokenizer is large; `midcourse export`
does it once. What is loaded is an ordinary model: it trains, and its checkpoints are ordinary Hugging Face folders.
"""

import importlib.util
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midcourse.errors import ConfigError
from midcourse.training.loaded import check_weights

if TYPE_CHECKING:
    import torch

MAGIC = b"GGUF"
VERSIONS = (2, 3)
PACKAGES = ("gguf", "accelerate")
# What the readers raise on a file that is damaged, or that they do not know.
READING_ERRORS = (OSError, ValueError, RuntimeError, LookupError, TypeError, struct.error, OverflowError, MemoryError)


def find_gguf(path: str) -> Path | None:
    """Return the GGUF file that a policy's path means: itself, or the only one in a folder that has no config.json.

    Raises:
        ConfigError: the folder has several, or the file is none of a version that is read here.
    """
    place = Path(path)
    if place.is_dir() and not (place / "config.json").is_file():
        files = sorted(place.glob("*.gguf"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise ConfigError(f"policy.path = {path!r}: holds several GGUF files; name one of {names}")
        file = files[0] if files else None
    else:
        file = place if place.suffix == ".gguf" and place.is_file() else None
    if file is not None:
        _check_start(file)
    return file


def _check_start(file: Path) -> None:
    try:
        with file.open("rb") as stream:
            start = stream.read(8)
    except OSError as error:
        raise ConfigError(f"policy.path: {file} cannot be read: {error}") from error
    if start[:4] == MAGIC and len(start) < 8:
        raise ConfigError(f"policy.path: {file} is cut: a GGUF file of {len(start)} bytes")
    if start[:4] != MAGIC:
        raise ConfigError(f"policy.path: {file} is no GGUF file: it begins with {start[:4]!r}, expected {MAGIC!r}")
    version = int.from_bytes(start[4:], "little")
    if version not in VERSIONS:
        raise ConfigError(f"policy.path: {file} is GGUF of version {version}; expected one of {VERSIONS}")


def read_gguf_tokenizer(file: Path) -> Any:
    """Return the tokenizer of a GGUF file. Raises ConfigError: no package for it, a damaged or unknown file."""
    with _reading(file, "tokenizer"):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def read_gguf_model(file: Path, dtype: "torch.dtype", *, prepare: Callable[[Any], None]) -> Any:
    """Return the causal language model of a GGUF file, its weights unpacked.

    Args:
        file: weights of an architecture that transformers reads from GGUF.
        dtype: of the weights.
        prepare: changes the model's config before there are weights.

    Raises:
        ConfigError: no package for it, a damaged file, weights that are missing, or an architecture or quantization
            that is not known.
    """
    with _reading(file, "model"):
        import transformers

        settings = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        prepare(settings)
        # Newer releases would otherwise leave some weights packed, which cannot be trained.
        unpacked = (
            {"quantization_config": transformers.GgufConfig(dequantize=True)}
            if hasattr(transformers, "GgufConfig")
            else {}
        )
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, config=settings, dtype=dtype, output_loading_info=True, **unpacked
        )
    model, info = loaded
    check_weights(model, info, place=f"policy.path: {file}")
    # Nothing of it is quantized any longer; otherwise it could not be saved, or not be loaded again.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.architectures = [type(model).__name__]
    return model


@contextmanager
def _reading(file: Path, what: str) -> Iterator[None]:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"policy.path: {file} is a GGUF file, and reading one needs the package {' and '.join(missing)}; "
            'pip install "midcourse[gguf]"'
        )
    try:
        yield
    except READING_ERRORS as error:
        raise ConfigError(
            f"policy.path: the {what} of {file} cannot be read: it is damaged, or of a kind that transformers does not "
            f"read from GGUF files: {error}"
        ) from error
