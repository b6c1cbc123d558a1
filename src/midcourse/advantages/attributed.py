"""Advantages of turns that several members share: ARPO's hard attribution (arXiv:2507.19849, Sec. 3.2).

Letters: G members of one group.

The paper's: tokens of a branch have the advantage of its rollout; tokens that d rollouts have in common have the mean
of the d advantages. Its soft attribution, which is its default, is GRPO's over all rollouts (`group.py`): every copy
of a shared token keeps its rollout's advantage. At the rollout's own weights and with one coefficient for all rows
both give the same gradient, since the copies of a token add up; they differ through clipping and 1 / |y|.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from midcourse.branching.lineage import Lineage


@dataclass(frozen=True, slots=True)
class Segment:
    """From position `start` on, up to the next segment of the member, tokens have the advantage `value`."""

    start: int
    value: float


def attributed_advantages(advantages: Sequence[float | None], lineage: Lineage) -> list[list[Segment] | None]:
    """Return [G] of each member its segments in order, the first at 0; None where its advantage is None.

    A member without an advantage moves no mean. Neighbouring segments may have equal values.

    Args:
        advantages: [G] of whole members, as `group_advantages` gives them.
        lineage: [G] in the positions that segments are asked in: tokens of the rollout, or turns.

    Raises:
        ValueError: a member without a lineage, or the other way round.
    """
    if len(advantages) != len(lineage):
        raise ValueError(f"each member needs its lineage: got {len(advantages)} advantages for {len(lineage)} members")
    starts = sorted({0, *lineage.forks})
    holders: dict[
        tuple[int, int], list[float]
    ] = {}  # (who wrote it, where it starts) -> advantages of all that hold it
    for member, advantage in enumerate(advantages):
        if advantage is not None:
            for start in starts:
                holders.setdefault((lineage.writer(member, start), start), []).append(advantage)
    means = {segment: math.fsum(values) / len(values) for segment, values in holders.items()}
    return [
        None
        if advantage is None
        else [Segment(start=start, value=means[lineage.writer(member, start), start]) for start in starts]
        for member, advantage in enumerate(advantages)
    ]


def spread(segments: Sequence[Segment], length: int) -> list[float]:
    """Return [length] the advantage of each position."""
    ends = [*(segment.start for segment in segments[1:]), length]
    return [
        segment.value
        for segment, end in zip(segments, ends, strict=True)
        for _ in range(segment.start, min(end, length))
    ]
