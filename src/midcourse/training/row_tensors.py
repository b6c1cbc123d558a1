"""What rows hold, as tensors beside those of a pass. Letters: B rows, T tokens. No gradient flows into any of it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from midcourse.training.batch import Row


def pad_rows(rows: Sequence[Sequence[float | bool]], *, like: Tensor) -> Tensor:
    """Return [B, T] the rows padded with 0 on the right to the width of `like`, in its type and on its device."""
    padded = torch.zeros(like.shape, dtype=like.dtype)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row, dtype=like.dtype)
    return padded.to(like.device)


def engine_logprobs_BT(rows: Sequence[Row], *, like: Tensor) -> Tensor:
    """Return [B, T] what the engine told of each token, nats; 0 where it told nothing."""
    return pad_rows(
        [[0.0 if value is None else value for value in row.trajectory.behavior_logprobs] for row in rows], like=like
    )


def teacher_logprobs_BT(rows: Sequence[Row], *, like: Tensor) -> Tensor | None:
    """Return [B, T] what the teacher told of each token, nats; None unless every row was scored."""
    scored = [row.trajectory.teacher_logprobs for row in rows]
    known = [[0.0 if value is None else value for value in values] for values in scored if values is not None]
    return pad_rows(known, like=like) if len(known) == len(rows) else None


def importance_BT(rows: Sequence[Row], old_BT: Tensor, cap: float) -> Tensor:
    """Return [B, T] min(pi_old / pi_engine, cap) on tokens of the policy, 1 elsewhere (intervention tokens too)."""
    sampled_BT = pad_rows([row.sampled for row in rows], like=old_BT).bool()
    difference_BT = (old_BT - engine_logprobs_BT(rows, like=old_BT)).masked_fill(~sampled_BT, 0.0)
    return difference_BT.exp().clamp(max=cap).masked_fill(~sampled_BT, 1.0)
