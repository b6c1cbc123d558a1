"""The nano policy as it ships: weights from the package, tokenizer and turns from code."""

from importlib import resources
from typing import Any

from midcourse.errors import ConfigError
from midcourse.nano.chat import CompactChatFormat
from midcourse.nano.tokenizer import NanoTokenizer


def load_nano() -> tuple[Any, NanoTokenizer, CompactChatFormat]:
    """Return (model, tokenizer, chat format).

    Raises:
        ConfigError: the package was installed without its weights.
    """
    from transformers import Qwen3ForCausalLM

    weights = resources.files("midcourse.nano") / "weights"
    if not (weights / "model.safetensors").is_file():
        raise ConfigError(
            "the nano policy's weights are missing from this installation; "
            "build them with: python -m midcourse.nano.warm_start --output src/midcourse/nano/weights"
        )
    tokenizer = NanoTokenizer()
    with resources.as_file(weights) as folder:
        model = Qwen3ForCausalLM.from_pretrained(folder)
    return model, tokenizer, CompactChatFormat(tokenizer)
