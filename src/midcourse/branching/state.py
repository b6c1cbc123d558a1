"""What the controller knows before it intervenes: the 26 numbers of a state (RAIL, B.3.2 and Table 5).

z = ten scalars, an 8-d projection of the policy's hidden state at the anchor, and one of the task's embedding. The
projections are learned with the controller (`network.py`); here are their inputs. Whoever rolls out fills the records,
each once: entropies by `anchors.py`, vectors by `unit_rms`. The hidden state is the last layer's at the token that
predicts the first of the turn, detached; the task's embedding is the mean of those of the prompt.

The paper's: the ten scalars by name, and the two projected blocks. Ours: how each is measured (it says what a feature
is for, not its formula), counts n as n / (n + 4), so that every scalar lies in [0, 1] where rewards do, and both blocks
brought to root mean square 1 first. Letters: H numbers of a hidden state, E of an embedding.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import ArrayLike, NDArray

from midcourse.branching.gain import distance_to_half, pool_mean, pool_variance

SCALAR_NAMES = (
    "anchor_entropy",
    "anchor_round",
    "anchor_round_fraction",
    "budget_used_fraction",
    "reward_mean",
    "reward_deviation",
    "distance_to_half",
    "failed_anchors",
    "pool_entropy",
    "tool_diversity",
)
"""Table 5, in its order."""
HALF_COUNT = 4
"""A count of so many is 0.5 in the state."""


def nothing() -> NDArray[numpy.float32]:
    """Return a hidden state or embedding that is not known."""
    return numpy.zeros(0, numpy.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRollout:
    """One rollout of the pool: what it earned, how uncertain the policy was in it, which tools it called."""

    reward: float | None  # None where the rollout failed
    entropy: float  # `normalized_entropy` of all tokens that the policy wrote
    tool_calls: Sequence[Hashable] = ()  # names of the tools, in the order of the calls


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """The rollouts of one task so far. Every one counts in the budget, branches that were not kept too."""

    rollouts: Sequence[PoolRollout]
    rollouts_used: int
    rollout_budget: int
    failed_anchors: int = 0  # anchors of this task at which no branch brought a gain
    task_embedding: NDArray[numpy.float32] = field(default_factory=nothing)  # [E] by `unit_rms`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Anchor:
    """A turn boundary of one rollout of the pool; round 0 is the task's start."""

    round: int  # turns before it
    max_rounds: int
    entropy: float  # `anchor_entropy` of the turn that begins here
    hidden: NDArray[numpy.float32] = field(default_factory=nothing)  # [H] by `unit_rms`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """The inputs of z: ten scalars as they are, the two blocks before their projection.

    Raises:
        ValueError: not ten scalars, or a number that is not finite; the message names it.
    """

    scalars: NDArray[numpy.float64]  # [10] in the order of SCALAR_NAMES
    hidden: NDArray[numpy.float32] = field(default_factory=nothing)  # [H], root mean square 1
    embedding: NDArray[numpy.float32] = field(default_factory=nothing)  # [E], root mean square 1

    def __post_init__(self) -> None:
        if self.scalars.shape != (len(SCALAR_NAMES),):
            raise ValueError(f"a state has {len(SCALAR_NAMES)} scalars: got shape {self.scalars.shape}")
        # A sum is finite only if all of its terms are, and quicker to look at.
        if math.isfinite(self.scalars.sum() + self.hidden.sum() + self.embedding.sum()):
            return
        for name, value in zip(SCALAR_NAMES, self.scalars, strict=True):
            if not math.isfinite(value):
                raise ValueError(f"state: {name} must be finite: got {value}")
        raise ValueError("state: hidden state and task embedding must be finite")


def build_states(anchors: Sequence[Anchor], pool: Pool) -> list[State]:
    """Return the state at each anchor of a pool.

    Raises:
        ValueError: no rollout of the pool has a reward; a round outside [0, max_rounds); a budget that is overdrawn; a
            number that is not finite.
    """
    if not 0 <= pool.rollouts_used <= pool.rollout_budget or pool.rollout_budget < 1:
        raise ValueError(f"rollouts_used must lie in [0, {pool.rollout_budget}]: got {pool.rollouts_used}")
    rewards = [rollout.reward for rollout in pool.rollouts]
    mean, variance = pool_mean(rewards), pool_variance(rewards)
    if mean is None or variance is None:
        raise ValueError(f"a state needs a pool with a reward: got {rewards}")
    sequences = {tuple(rollout.tool_calls) for rollout in pool.rollouts}
    of_pool = {
        "budget_used_fraction": pool.rollouts_used / pool.rollout_budget,
        "reward_mean": float(mean),
        "reward_deviation": math.sqrt(variance),
        "distance_to_half": float(distance_to_half(mean)),
        "failed_anchors": _count(pool.failed_anchors),
        "pool_entropy": math.fsum(rollout.entropy for rollout in pool.rollouts) / len(pool.rollouts),
        "tool_diversity": len(sequences) / len(pool.rollouts),
    }
    states: list[State] = []
    for anchor in anchors:
        if not 0 <= anchor.round < anchor.max_rounds:
            raise ValueError(f"an anchor's round must lie in [0, {anchor.max_rounds}): got {anchor.round}")
        scalars = of_pool | {
            "anchor_entropy": anchor.entropy,
            "anchor_round": _count(anchor.round),
            "anchor_round_fraction": anchor.round / anchor.max_rounds,
        }
        states.append(
            State(
                scalars=numpy.array([scalars[name] for name in SCALAR_NAMES]),
                hidden=anchor.hidden,
                embedding=pool.task_embedding,
            )
        )
    return states


def unit_rms(values: ArrayLike) -> NDArray[numpy.float32]:
    """Return [N] values over their root mean square; zeros stay zeros, nothing stays nothing.

    Raises:
        ValueError: not a vector.
    """
    vector = numpy.asarray(values, dtype=numpy.float64)
    if vector.ndim != 1:
        raise ValueError(f"a hidden state or embedding is a vector: got shape {vector.shape}")
    if not vector.size:
        return nothing()
    return (vector / math.sqrt(float(vector @ vector) / vector.size + 1e-12)).astype(numpy.float32)


def _count(number: int) -> float:
    return number / (number + HALF_COUNT)
