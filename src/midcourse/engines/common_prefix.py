"""Attention of one new token a row where all rows begin with the same tokens: those keys are read once, not once a row.

A decode step is bound by reading keys and values. Rows of one prompt, branches of one turn and episodes of one system
prompt hold the same beginning; with the queries of all rows side by side it is one matrix product a key head. The
scores of beginning and rest go through one softmax, so nothing is approximated: only the rounding differs.

Letters: R rows, K key heads, G query heads of one key head, D head size, S slots, C common slots.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MIN_ROWS, MIN_TOKENS = 4, 128
"""Below these the detour costs more than it saves (docs/log.md)."""


def num_common(sequences: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all sequences begin with alike; 0 where sharing them would not pay."""
    if len(sequences) < MIN_ROWS:
        return 0
    # What the least and the greatest share, those between them share too.
    least, greatest = min(sequences, key=tuple), max(sequences, key=tuple)
    length = next(
        (position for position, (one, other) in enumerate(zip(least, greatest, strict=False)) if one != other),
        min(len(least), len(greatest)),
    )
    return length if length >= MIN_TOKENS else 0


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, num_common: int) -> Tensor:
    """Return [R, K, G, D] what the queries see.

    Args:
        query: [R, K, G, D] of one new token a row.
        keys: [R, K, S, D]; the first `num_common` slots of every row hold the same, and row 0's are read.
        values: [R, K, S, D] likewise.
        mask: [R, 1, 1, S] additive; the common slots are visible to all.
        scale: of the scores.
        num_common: C.
    """
    query = query * scale
    of_common = _side_by_side(query) @ keys[0, :, :num_common].transpose(1, 2)
    of_rest = query @ keys[:, :, num_common:].transpose(2, 3) + mask[..., num_common:]
    scores = torch.cat((_row_by_row(of_common, len(query)), of_rest), dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype)
    from_common = _side_by_side(weights[..., :num_common]) @ values[0, :, :num_common]
    return _row_by_row(from_common, len(query)) + weights[..., num_common:] @ values[:, :, num_common:]


def _side_by_side(tensor: Tensor) -> Tensor:
    """Return [K, R * G, ...] of [R, K, G, ...]."""
    return tensor.transpose(0, 1).flatten(1, 2)


def _row_by_row(tensor: Tensor, num_rows: int) -> Tensor:
    """Return [R, K, G, ...] of [K, R * G, ...]."""
    return tensor.unflatten(1, (num_rows, -1)).transpose(0, 1)
