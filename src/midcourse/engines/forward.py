"""One forward step over a slotted buffer of rows. Letters: R rows, T new tokens a row, S slots, H hidden, V vocabulary.

Row r of the buffer holds one sequence from slot 0 on; a new token is written at the slot of its position, so rows of
any length share a step and nothing is concatenated. Two ways to run the layers:

- `Qwen3Forward` walks the Qwen3 modules itself: norms of few operations, rotary tables computed once, grouped query
  heads folded into the query axis so that keys are never repeated, and a last layer that runs only for the tokens
  whose states are asked for. Same weights, same result to float32 rounding.
- `ModuleForward` calls model(...) with a Cache that writes into the buffer: any Hugging Face decoder whose layers
  attend to everything before them or to a window of it (see windows.py).
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3ForCausalLM, Qwen3RMSNorm

from midcourse.engines import common_prefix
from midcourse.engines.windows import FULL, LayerWindows, layer_windows, narrowed, visible
from midcourse.errors import ConfigError

PROBE_WINDOW, PROBE_TOKENS = 3, 8


class RowBuffer:
    """What the running rows hold. Grows, never shrinks.

    keys_values: [layers, 2, R, key heads, S, head size].
    states: [R, S, H] before the head; of a token whose state nobody asked for, anything.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_heads: int,
        head_size: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_layers, self.num_heads, self.head_size = num_layers, num_heads, head_size
        self.hidden_size, self.dtype, self.device = hidden_size, dtype, device
        self._allocate(0, 0)

    def _allocate(self, rows: int, slots: int) -> None:
        self.keys_values = self.states = torch.empty(0)  # free the old memory first
        shape = (self.num_layers, 2, rows, self.num_heads, slots, self.head_size)
        # Zeros: a masked slot must not hold a NaN, since 0 * NaN is NaN.
        self.keys_values = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.states = torch.zeros((rows, slots, self.hidden_size), dtype=self.dtype, device=self.device)

    def reserve(self, rows: int, slots: int) -> None:
        """Make room for `rows` sequences of `slots` tokens; what the buffer held is lost if it must grow."""
        have_rows, have_slots = self.states.shape[:2]
        if rows > have_rows or slots > have_slots:
            self._allocate(max(rows, have_rows), max(slots, have_slots))

    def window(self, first_row: int) -> "RowBuffer":
        """Return a view whose row 0 is row `first_row` of this buffer."""
        view = copy.copy(self)
        view.keys_values, view.states = self.keys_values[:, :, first_row:], self.states[first_row:]
        return view

    def places(self, slots_RT: Tensor) -> Tensor:
        """Return [R * T * key heads] where the tokens' heads lie when a layer's keys are seen as one list of heads."""
        num_rows, num_slots = slots_RT.shape[0], self.states.shape[1]
        first_R1K = torch.arange(num_rows * self.num_heads, device=self.device).view(num_rows, 1, -1) * num_slots
        return (first_R1K + slots_RT[:, :, None]).flatten()

    def put_states(self, slots_RT: Tensor, states_RTH: Tensor) -> None:
        """Keep states of the first R rows' tokens."""
        rows_R1 = torch.arange(len(slots_RT), device=self.device)[:, None]
        self.states[rows_R1, slots_RT] = states_RTH

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` slots of row `source` to row `target`."""
        self.keys_values[:, :, target, :, :length] = self.keys_values[:, :, source, :, :length]
        self.states[target, :length] = self.states[source, :length]

    def release(self) -> None:
        """Free the memory."""
        self._allocate(0, 0)


class Forward(Protocol):
    """Runs the layers for new tokens of the first R rows of a buffer."""

    def __call__(
        self,
        buffer: RowBuffer,
        token_ids_RT: Tensor,
        slots_RT: Tensor,
        num_slots: int,
        *,
        wanted_R: Tensor | None = None,
        num_common: int = 0,
    ) -> Tensor:
        """Write keys and values of the tokens at their slots; return [R, T, H] states before the head.

        Args:
            buffer: row r continues sequence r.
            token_ids_RT: [R, T] new tokens.
            slots_RT: [R, T] position of each token, which is its slot; a token sees slots up to its own.
            num_slots: slots that are looked at; over every entry of `slots_RT`.
            wanted_R: [R] which of its T tokens a row wants the state of: then [R, 1, H] comes back. None: all.
            num_common: slots that all rows hold alike, at most up to every row's new token; where T is 1 they may be
                read from one row.
        """
        ...


class Qwen3Forward:
    """The layers of a Qwen3 causal LM without the module overhead. Calls each projection, so adapters work."""

    def __init__(self, model: Qwen3ForCausalLM, *, context_length: int) -> None:
        self.model = model
        body = model.model
        positions = torch.arange(context_length, device=body.embed_tokens.weight.device)[None]
        with torch.no_grad():
            cos, sin = body.rotary_emb(body.embed_tokens.weight[:1, :1, None].float(), positions)
        half = sin.shape[-1] // 2
        # x * cos + rotate_half(x) * sin = x * cos + swap_halves(x) * signed_sin
        self._cos = cos[0]
        self._signed_sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        self._epsilon = torch.tensor(model.config.rms_norm_eps, device=positions.device)

    def __call__(
        self,
        buffer: RowBuffer,
        token_ids_RT: Tensor,
        slots_RT: Tensor,
        num_slots: int,
        *,
        wanted_R: Tensor | None = None,
        num_common: int = 0,
    ) -> Tensor:
        """Run the layers; see `Forward`."""
        body = self.model.model
        layers = cast("Sequence[Qwen3DecoderLayer]", body.layers)
        dtype = body.embed_tokens.weight.dtype
        states = body.embed_tokens(token_ids_RT)
        rotary = (self._cos[slots_RT][:, :, None].to(dtype), self._signed_sin[slots_RT][:, :, None].to(dtype))
        num_rows = token_ids_RT.shape[0]
        mask = visible(slots_RT, num_slots, dtype)
        places_N = buffer.places(slots_RT)
        for layer, kv in zip(layers, buffer.keys_values, strict=True):
            attention = layer.self_attn
            heads = (*states.shape[:2], -1, attention.head_dim)
            normed = self._norm(layer.input_layernorm, states)
            key = _rotate(self._norm(attention.k_norm, attention.k_proj(normed).view(heads)), rotary)
            _write(kv[0], places_N, key)
            _write(kv[1], places_N, attention.v_proj(normed))
            if wanted_R is not None and layer is layers[-1]:
                # No layer follows that would attend to the other tokens' states.
                states, normed = _pick(states, wanted_R), _pick(normed, wanted_R)
                rotary = (_pick(rotary[0], wanted_R), _pick(rotary[1], wanted_R))
                mask = _pick(mask.transpose(1, 2), wanted_R)
                heads = (num_rows, 1, -1, attention.head_dim)
            query = _rotate(self._norm(attention.q_norm, attention.q_proj(normed).view(heads)), rotary)
            keys, values = kv[:, :num_rows, :, :num_slots]
            states = states + attention.o_proj(_attend(query, keys, values, mask, attention.scaling, num_common))
            normed = self._norm(layer.post_attention_layernorm, states)
            gate = layer.mlp.act_fn(layer.mlp.gate_proj(normed))
            states = states + layer.mlp.down_proj(gate.mul_(layer.mlp.up_proj(normed)))
        return self._norm(body.norm, states)

    def _norm(self, norm: Qwen3RMSNorm, states: Tensor) -> Tensor:
        # F.rms_norm is made of twice as many operations on a CPU. In half precision it rounds where the module does.
        wide = states.float()
        size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, size, size, value=1 / states.shape[-1]).rsqrt_()
        return (wide * scale).to(states.dtype).mul_(norm.weight)


def _write(kv: Tensor, places_N: Tensor, new: Tensor) -> None:
    """Copy the new tokens' keys or values to their places in one layer's keys or values."""
    head_size = kv.shape[-1]
    kv.view(-1, head_size).index_copy_(0, places_N, new.reshape(-1, head_size))


def _pick(tensor: Tensor, wanted_R: Tensor) -> Tensor:
    """Return [R, 1, ...] of [R, T, ...]: of each row the wanted token."""
    return tensor[torch.arange(len(wanted_R), device=wanted_R.device), wanted_R][:, None]


def _rotate(states: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cos, signed_sin = rotary
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, dims=-1), signed_sin)


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, num_common: int) -> Tensor:
    num_rows, num_new, num_heads, head_size = query.shape
    if num_new == 1:
        # Query heads of one key head stand side by side on the query axis: no key is repeated.
        folded = query.view(num_rows, keys.shape[1], -1, head_size)
        if num_common:
            attended = common_prefix.attend(folded, keys, values, mask, scale, num_common)
        else:
            attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        return attended.reshape(num_rows, 1, num_heads * head_size)
    attended = F.scaled_dot_product_attention(
        query.transpose(1, 2), keys, values, attn_mask=mask, scale=scale, enable_gqa=True
    )
    return attended.transpose(1, 2).reshape(num_rows, num_new, num_heads * head_size)


class _BufferLayer(DynamicLayer):
    """One layer's share of the buffer, as the library's attention wants it."""

    def __init__(self, kv: Tensor, slots_RT: Tensor, num_slots: int) -> None:
        super().__init__()
        self._kv, self._slots_RT, self._num_slots = kv, slots_RT, num_slots
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object):
        num_rows = key_states.shape[0]
        rows_R1 = torch.arange(num_rows, device=key_states.device)[:, None]
        self._kv[0, rows_R1, :, self._slots_RT] = key_states.transpose(1, 2)
        self._kv[1, rows_R1, :, self._slots_RT] = value_states.transpose(1, 2)
        keys, values = self._kv[:, :num_rows, :, : self._num_slots]
        return keys, values

    def get_seq_length(self) -> int:
        return self._num_slots - self._slots_RT.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._num_slots, 0


class ModuleForward:
    """The whole model's own forward, its Cache writing into the buffer."""

    def __init__(self, model: PreTrainedModel, windows: LayerWindows) -> None:
        self.model = model
        self._windows = windows
        self._cache_argument = cache_argument(model)

    def __call__(
        self,
        buffer: RowBuffer,
        token_ids_RT: Tensor,
        slots_RT: Tensor,
        num_slots: int,
        *,
        wanted_R: Tensor | None = None,
        num_common: int = 0,
    ) -> Tensor:
        """Run the layers; see `Forward`."""
        cache = Cache(layers=[_BufferLayer(kv, slots_RT, num_slots) for kv in buffer.keys_values])
        masks = {
            kind: visible(slots_RT, num_slots, buffer.dtype, window=window) for kind, window in self._windows.items()
        }
        output = self.model.base_model(
            input_ids=token_ids_RT,
            # Bodies whose layers are all alike need not know of masks by type.
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=slots_RT,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        states = output.last_hidden_state
        return states if wanted_R is None else _pick(states, wanted_R)


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name under which the model's body takes a cache; it differs between library releases."""
    names = inspect.signature(model.base_model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def buffer_for(model: PreTrainedModel) -> RowBuffer:
    """Return an empty buffer for the model, its shape, type and device found by running one token.

    Raises:
        ConfigError: not every layer keeps keys and values, all of one shape.
    """
    probe = DynamicCache()
    device = cast("nn.Embedding", model.get_input_embeddings()).weight.device
    token = torch.zeros((1, 1), dtype=torch.long, device=device)
    try:
        with torch.no_grad():
            output = model.base_model(input_ids=token, use_cache=True, **{cache_argument(model): probe})
    except Exception as error:  # whatever the model raises, its layers are of another kind
        raise ConfigError(f"{type(model).__name__} cannot keep keys and values of its tokens: {error!r}") from error
    layers = [cast("DynamicLayer", layer) for layer in probe.layers]
    shapes = {None if layer.keys is None else tuple(layer.keys.shape) for layer in layers}
    keys = layers[0].keys if layers else None
    if len(layers) != model.config.get_text_config().num_hidden_layers or len(shapes) != 1 or keys is None:
        raise ConfigError(f"{type(model).__name__} has layers that keep no keys and values, or some of another shape")
    return RowBuffer(
        num_layers=len(layers),
        num_heads=keys.shape[1],
        head_size=keys.shape[3],
        hidden_size=output.last_hidden_state.shape[-1],
        dtype=keys.dtype,
        device=keys.device,
    )


def forward_for(model: PreTrainedModel, *, context_length: int) -> Forward:
    """Return the fastest forward that fits the model: exactly Qwen3 with plain rotary positions, or any other.

    Raises:
        ConfigError: what a layer of the model attends to is not known here.
    """
    windows = layer_windows(model)
    if set(windows) == {FULL}:
        if type(model) is Qwen3ForCausalLM and model.model.rotary_emb.rope_type == "default":
            return Qwen3Forward(model, context_length=context_length)
    else:
        _check_windows(model, windows)
    return ModuleForward(model, windows)


def _check_windows(model: PreTrainedModel, windows: LayerWindows) -> None:
    """Check that the model takes our masks, and that they are those it makes itself, on windows of few tokens."""
    forward = ModuleForward(model, {kind: window and PROBE_WINDOW for kind, window in windows.items()})
    buffer = buffer_for(model)
    buffer.reserve(1, PROBE_TOKENS)
    token_ids_RT = torch.arange(PROBE_TOKENS, device=buffer.device)[None]
    with torch.no_grad(), narrowed(model, PROBE_WINDOW):
        expected = model.base_model(input_ids=token_ids_RT, use_cache=False).last_hidden_state
        try:
            found = forward(buffer, token_ids_RT, token_ids_RT, PROBE_TOKENS)
        except Exception as error:  # whatever the model raises, it cannot do this
            raise ConfigError(f"{type(model).__name__} takes no masks by type of layer: {error!r}") from error
    tolerance = 1e-3 if found.dtype in (torch.float32, torch.float64) else 5e-2
    difference = float((found - expected).abs().max() / expected.abs().max())
    if not difference <= tolerance:
        raise ConfigError(
            f"{type(model).__name__} does not attend as its layer_types and sliding_window say: "
            f"states differ by {difference:.1e} of their size"
        )
