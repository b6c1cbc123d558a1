"""What a rule sees of a turn boundary, what it asks for, and where its random numbers come from.

Letters: G rollouts of one task.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

DrawKey = tuple[int | str, ...]
"""What makes a task's draws its own: the run's seed, the update and the task's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The place before a turn that follows a tool's answer. Entropies are those of `anchors.anchor_entropy`."""

    rollout: int  # that wrote the turn
    turn: int
    entropy: float  # of the turn that begins here
    initial_entropy: float  # of the rollout's first turn

    @property
    def entropy_change(self) -> float:
        """How much more uncertain the policy is here than at the task's start."""
        return self.entropy - self.initial_entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A wish: so many fresh continuations of `rollout` before its turn `turn`."""

    rollout: int
    turn: int
    continuations: int = 1
    temperature_factor: float = 1.0


def boundaries_at(turn: int, entropies: Sequence[Sequence[float | None]], forks: Sequence[int]) -> list[Boundary]:
    """Return the boundaries before turn `turn`, in the order of rollouts, each once.

    A rollout that began in another has the boundary at its fork, and those before, in common with that one.

    Args:
        turn: at least 1: before turn 0 there is no tool's answer.
        entropies: [G] of each turn by `anchor_entropy`; None where no tool's answer precedes the turn. Turn 0 has one.
        forks: [G] turns that are the parent's; 0 where there is no parent.

    Raises:
        ValueError: turn 0, lists of different lengths, or a rollout of several turns whose first has no entropy.
    """
    if turn < 1 or len(entropies) != len(forks):
        raise ValueError(
            f"boundaries are before turn 1 or later, of rollouts with a fork each: got turn {turn}, "
            f"{len(entropies)} rollouts, {len(forks)} forks"
        )
    found: list[Boundary] = []
    for rollout, (turns, fork) in enumerate(zip(entropies, forks, strict=True)):
        if turn <= fork or turn >= len(turns):
            continue
        entropy, initial = turns[turn], turns[0]
        if initial is None:
            raise ValueError(f"rollout {rollout}: its first turn must have an entropy")
        if entropy is not None:
            found.append(Boundary(rollout=rollout, turn=turn, entropy=entropy, initial_entropy=initial))
    return found


def uniform_draw(*key: int | str) -> float:
    """Return a number in [0, 1) that depends on `key` alone, in any process and in any order."""
    digest = blake2b(json.dumps(key).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53
