"""What loaders let pass in a model's files, refused: weights that are missing, no numbers, or fit no tokenizer."""

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from midcourse.errors import ConfigError
from midcourse.rollout.chat import ChatFormat

NAMES_SHOWN = 3


def check_weights(model: Any, loading_info: Mapping[str, Collection[Any]], *, place: str) -> None:
    """Check that all of a model's weights came from its files; warn of tensors there that it has no place for.

    Args:
        model: as transformers loaded it.
        loading_info: what transformers says of that (`output_loading_info`); tied weights do not count as missing.
        place: the setting and its value, for errors.

    Raises:
        ConfigError: weights are missing, which transformers draws at random instead, or are not finite.
    """
    if missing := loading_info["missing_keys"]:
        raise ConfigError(f"{place}: {_some(missing)} of the model's weights are missing in its files")
    if infinite := [name for name, weight in model.named_parameters() if not weight.isfinite().all()]:
        raise ConfigError(f"{place}: {_some(infinite)} of the model's weights are not finite")
    if further := loading_info["unexpected_keys"]:  # often harmless: layers that predict further tokens, say
        warnings.warn(
            f"{place}: {_some(further)} of the tensors in its files have no place in the model and are left out",
            stacklevel=2,
        )


def check_stored_types(model: Any, folder: Path, *, place: str) -> None:
    """Raise ConfigError if the folder's files hold integers for a weight of the model: packed, or none of it."""
    from safetensors import safe_open

    names = {name for name, _ in model.named_parameters()}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            types = {name: stored.get_slice(name).get_dtype() for name in names.intersection(stored.keys())}
        if odd := [name for name, kind in types.items() if not kind.startswith(("F", "BF"))]:
            raise ConfigError(
                f"{place}: {_some(odd)} of the weights in {file.name} are no floating-point numbers: got "
                f"{types[odd[0]]}"
            )


def check_vocabulary(model: Any, tokenizer: Any, chat: ChatFormat, *, place: str) -> None:
    """Check that the model has an embedding for every token that the tokenizer and the chat format write.

    It may have more, and it may lack special tokens that the format never writes: Gemma 3's smaller models have none
    for images.

    Raises:
        ConfigError: it has fewer.
    """
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    written = {*chat.stop_ids, *chat.open(system_prompt="system", tools=(), query="query")}
    largest = max({*tokenizer.get_vocab().values()} - special | written)
    rows = model.get_input_embeddings().weight.shape[0]
    if largest >= rows:
        raise ConfigError(
            f"{place}: the tokenizer is another model's: it writes tokens up to {largest}, and the model has "
            f"embeddings for {rows}"
        )


def _some(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:NAMES_SHOWN])
    return f"{len(names)} ({shown}{', ...' if len(names) > NAMES_SHOWN else ''})"
