"""Log-probabilities of rows that begin alike, each shared token run through the model once, backward too.

The segments of a `PrefixTree` are one packed sequence, and every layer but attention treats it as it treats any. For
attention the model is switched, for the time of the pass, to a function of ours by the library's AttentionInterface:
each segment's queries see the keys of the segments before it and, causally, its own. So exactly the pairs of tokens
are computed that the rows have, nothing is padded, and there is no mask of N * N. Gradients of a shared token are
summed over its rows by autograd.

Letters: N slots of the packed sequence, M tokens asked for, B rows, T tokens of a row, H hidden, K heads, D head size.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface

from midcourse.training.policy import TokenLogprobs, check_rows, score_tokens
from midcourse.training.prefix_tree import PrefixTree, grow_tree

logger = logging.getLogger(__name__)

ATTENTION = "midcourse_prefix_tree"
UNKNOWN_TERMS = ("sliding_window", "softcap", "s_aux", "position_bias")  # what some models ask of attention besides
PROBE = ((0, 1, 2, 3, 1, 0), (0, 1, 2, 3, 2), (0, 1, 2, 3), (0, 1, 3, 2, 2), (2, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLayout:
    """What attention must know of a tree. The whole of it is built once a pass, not once a layer."""

    lengths: Sequence[int]  # tokens of each segment
    paths: Sequence[Sequence[int]]  # of each segment: those whose keys it sees, itself last
    masks: Sequence[Tensor | None]  # of each segment bool [tokens, keys]; None: causal within itself


def lay_out(tree: PrefixTree, device: torch.device) -> TreeLayout:
    """Return the layout of the tree with its masks on `device`."""
    lengths = [segment.end - segment.start for segment in tree.segments]
    masks = [
        torch.ones(length, segment.end, dtype=torch.bool, device=device).tril(segment.start) if segment.start else None
        for segment, length in zip(tree.segments, lengths, strict=True)
    ]
    return TreeLayout(lengths=lengths, paths=[tree.path(index) for index in range(len(lengths))], masks=masks)


def tree_attention(
    module: nn.Module,
    query_1KND: Tensor,
    key_1KND: Tensor,
    value_1KND: Tensor,
    attention_mask: Tensor | None,
    *,
    prefix_tree: TreeLayout,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Return [1, N, K, D] what the tokens of a packed tree attend to; the signature is that of AttentionInterface.

    The keys and values of a path are joined for each segment, and once more in the backward pass: kept, they would
    take the memory of the separate rows. Only in training mode they are kept: then layers run again in the backward
    pass, one at a time.

    Raises:
        ValueError: dropout, or a term of attention that is not computed here.
    """
    terms = [name for name in UNKNOWN_TERMS if kwargs.get(name) is not None]
    if terms or dropout:
        raise ValueError(f"attention over shared prefixes has no {', '.join(terms) or 'dropout'}")
    repeats = query_1KND.shape[1] // key_1KND.shape[1]
    if repeats > 1:
        key_1KND, value_1KND = (part.repeat_interleave(repeats, dim=1) for part in (key_1KND, value_1KND))
    queries, keys, values = (
        part.split(list(prefix_tree.lengths), dim=2) for part in (query_1KND, key_1KND, value_1KND)
    )

    pieces = []
    for query, path, mask in zip(queries, prefix_tree.paths, prefix_tree.masks, strict=True):
        key_parts, value_parts = [keys[step] for step in path], [values[step] for step in path]
        key, value = torch.cat(key_parts, dim=2), torch.cat(value_parts, dim=2)
        parts = {} if module.training else {key.data_ptr(): key_parts, value.data_ptr(): value_parts}
        with _saved_in_parts(parts):
            pieces.append(
                F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
            )
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous(), None


def _saved_in_parts(parts: Mapping[int, list[Tensor]]) -> saved_tensors_hooks:
    """Save for the backward pass, instead of a tensor at one of the addresses, the parts that it was joined from."""
    return saved_tensors_hooks(
        lambda tensor: parts.get(tensor.data_ptr(), tensor),
        lambda saved: torch.cat(saved, dim=2) if isinstance(saved, list) else saved,
    )


AttentionInterface.register(ATTENTION, tree_attention)


@contextmanager
def attention_over_trees(model: Any) -> Iterator[None]:
    """Let the model's attention read a `prefix_tree`. Backward passes belong inside: they may run layers again."""
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def tree_logprobs(
    model: Any,
    tree: PrefixTree,
    *,
    wanted: Sequence[Sequence[bool]],
    temperatures: Sequence[float],
    chunk_tokens: int = 1024,
    bf16_autocast: bool = False,
) -> TokenLogprobs:
    """Return what `token_logprobs` returns for the tree's rows, to rounding, from one pass over its segments.

    The head, too, runs once for a token that several rows want at one temperature.

    Args:
        model: a causal language model of transformers that `why_not_shared` has nothing against.
        tree: of the B rows.
        wanted: for each row, one flag a token; the first token of a row has nothing before it and must be False.
        temperatures: B values > 0; logits are divided by them.
        chunk_tokens: tokens at most whose logits are held at once.
        bf16_autocast: run the model's matrix products in bfloat16.

    Raises:
        ValueError: lengths that do not fit each other, or a wanted first token.
    """
    check_rows(tree.rows, wanted, temperatures)
    device = next(model.parameters()).device
    hidden_NH = _hidden_states(model, tree, bf16_autocast=bf16_autocast)
    slots = tree.slots()
    asked = [(row, position) for row, flags in enumerate(wanted) for position, flag in enumerate(flags) if flag]
    # A token is one term for all rows that have it in the same slot, whatever follows it.
    terms: dict[tuple[int, float], int] = {}
    term_M = [terms.setdefault((slots[row][position], temperatures[row]), len(terms)) for row, position in asked]
    places = {slots[row][position]: (slots[row][position - 1], tree.rows[row][position]) for row, position in asked}
    logprobs, entropies = score_tokens(
        model,
        hidden_NH[torch.tensor([places[slot][0] for slot, _ in terms], dtype=torch.long, device=device)],
        torch.tensor([places[slot][1] for slot, _ in terms], dtype=torch.long, device=device),
        torch.tensor([temperature for _, temperature in terms], dtype=torch.float64, device=device),
        chunk_tokens=chunk_tokens,
        bf16_autocast=bf16_autocast,
    )
    index_M = torch.tensor(term_M, dtype=torch.long, device=device)
    row_M, position_M = torch.tensor(asked, dtype=torch.long, device=device).view(-1, 2).unbind(1)
    blank_BT = logprobs.new_zeros(len(tree.rows), max(len(row) for row in tree.rows))
    return TokenLogprobs(
        logprobs_BT=blank_BT.index_put((row_M, position_M), logprobs[index_M]),
        entropies_BT=blank_BT.index_put((row_M, position_M), entropies[index_M]),
    )


def _hidden_states(model: Any, tree: PrefixTree, *, bf16_autocast: bool = False) -> Tensor:
    """Return [N, H] the last hidden states of the tree's tokens."""
    device = next(model.parameters()).device
    token_ids = [token for part in tree.segments for token in tree.rows[part.row][part.start : part.end]]
    positions = [position for part in tree.segments for position in range(part.start, part.end)]
    with attention_over_trees(model), torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16_autocast):
        output = model.base_model(
            input_ids=torch.tensor([token_ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            prefix_tree=lay_out(tree, device),
        )
    return output.last_hidden_state[0]


def why_not_shared(model: Any) -> str | None:
    """Return why the model cannot compute shared prefixes once; None: it can.

    A model can if all its layers attend to everything before, through AttentionInterface, and nothing else carries
    state from token to token. What its settings do not tell is seen by running a small tree against separate rows.
    """
    settings = model.config.get_text_config().to_dict()
    layers = settings.get("layer_types") or ()
    if others := sorted(set(layers) - {"full_attention"}):
        return f"it has layers of {', '.join(others)}"
    if not layers and settings.get("sliding_window"):
        return f"its attention sees {settings['sliding_window']} tokens only"
    tree = grow_tree(PROBE, segment_tokens=0)
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            packed_NH = _hidden_states(model, tree)
            apart = [
                model.base_model(input_ids=torch.tensor([row], device=device), use_cache=False).last_hidden_state[0]
                for row in PROBE
            ]
    except Exception as error:  # whatever the model raises, it cannot do this
        return f"its forward pass failed: {error!r}"
    tolerance = 1e-3 if packed_NH.dtype in (torch.float32, torch.float64) else 5e-2
    difference = max(
        float((packed_NH[slots] - hidden_TH).abs().max() / hidden_TH.abs().max())
        for slots, hidden_TH in zip(tree.slots(), apart, strict=True)
    )
    if not difference <= tolerance:
        return f"its hidden states differ from those of separate rows by {difference:.1e} of their size"
    return None
