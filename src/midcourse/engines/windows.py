"""How far back each layer of a model looks. Letters: R rows, T new tokens a row, S slots.

Some models alternate layers that see everything before a token with layers that see a window of the last tokens alone
(Gemma 3, Qwen2 with its window switched on); in others all layers have the window (Mistral). Each type of layer gets a
mask of its own. Keys outside a window stay in the buffer: a branch may begin at any token.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from midcourse.errors import ConfigError

MASKED = -1e30  # finite: a row of padding alone would otherwise turn into NaN
FULL, SLIDING = "full_attention", "sliding_attention"

LayerWindows = Mapping[str, int | None]


def layer_windows(model: PreTrainedModel) -> LayerWindows:
    """Return for each type of the model's layers how many tokens a token sees, itself included; None: all before it.

    Raises:
        ConfigError: a layer carries state otherwise than by keys and values of the tokens before it, or looks ahead.
    """
    settings = model.config.get_text_config().to_dict()
    window = settings.get("sliding_window")
    types = set(settings.get("layer_types") or ()) or {SLIDING if window else FULL}
    if others := sorted(types - {FULL, SLIDING}):
        raise ConfigError(
            f"the embedded engine runs layers of {FULL} and {SLIDING}: {type(model).__name__} has {', '.join(others)}"
        )
    if settings.get("use_bidirectional_attention"):
        raise ConfigError(f"the embedded engine needs tokens that see nothing after them: {type(model).__name__} does")
    if SLIDING in types and not window:
        raise ConfigError(f"{type(model).__name__} has layers of {SLIDING}, and its config names no sliding_window")
    return {kind: window if kind == SLIDING else None for kind in sorted(types)}


def visible(slots_RT: Tensor, num_slots: int, dtype: torch.dtype, *, window: int | None = None) -> Tensor:
    """Return the [R, 1, T, S] additive mask under which a token sees the last `window` slots up to its own, or all."""
    slots_S = torch.arange(num_slots, device=slots_RT.device)
    own_R1T1 = slots_RT[:, None, :, None]
    hidden = slots_S > own_R1T1
    if window is not None:
        hidden |= slots_S <= own_R1T1 - window
    return torch.where(hidden, MASKED, 0.0).to(dtype)


@contextmanager
def narrowed(model: PreTrainedModel, window: int) -> Iterator[None]:
    """Let the masks that the model makes itself have this window, so that a few tokens show where it ends."""
    settings = model.config.get_text_config()
    before = settings.sliding_window
    settings.sliding_window = window
    try:
        yield
    finally:
        settings.sliding_window = before
