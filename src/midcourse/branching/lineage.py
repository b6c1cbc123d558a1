"""Which member of a group wrote which turn, where members began in others. Letters: G members.

A member that began in another before turn f holds the turns 0 to f - 1 of that one, token by token. Turn boundary t is
the place before turn t, so that boundary f belongs to both and is the parent's. The same holds with tokens for turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where each member began.

    Example: member 1 is a continuation of member 0 before its turn 2, member 2 one of member 1 before its turn 3:
    parents (None, 0, 1), forks (0, 2, 3). Turn 2 of member 2 was written by member 1, and turn 1 by member 0.

    Raises:
        ValueError: lists of different lengths, a parent that does not stand before its child, or a fork that is
            negative, or not 0 where there is no parent.
    """

    parents: Sequence[int | None]  # [G]; None: it began at the task's start
    forks: Sequence[int]  # [G] turns (or tokens) at its start that are its parent's; 0 where there is none

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.forks):
            raise ValueError(
                f"each member needs a parent and a fork: got {len(self.parents)} parents, {len(self.forks)} forks"
            )
        for member, (parent, fork) in enumerate(zip(self.parents, self.forks, strict=True)):
            if parent is not None and not 0 <= parent < member:
                raise ValueError(f"member {member}: its parent must stand before it: got {parent}")
            if fork < 0 or (parent is None and fork != 0):
                raise ValueError(f"member {member}: got fork {fork} with parent {parent}")

    def __len__(self) -> int:
        return len(self.parents)

    def root(self, member: int) -> int:
        """Return the member at the task's start that this one goes back to: the name of its tree."""
        parent = self.parents[member]
        return member if parent is None else self.root(parent)

    def writer(self, member: int, turn: int) -> int:
        """Return the member that wrote turn `turn` of `member`."""
        parent = self.parents[member]
        return member if parent is None or turn >= self.forks[member] else self.writer(parent, turn)

    def boundary_writer(self, member: int, turn: int) -> int:
        """Return the member that boundary `turn` of `member` belongs to: two members meet there if it is the same."""
        parent = self.parents[member]
        return member if parent is None or turn > self.forks[member] else self.boundary_writer(parent, turn)

    def is_branched(self, member: int, turn: int) -> bool:
        """Return whether another member began at boundary `turn` of `member`, or `member` itself did."""
        here = self.boundary_writer(member, turn)
        return any(
            parent is not None and fork == turn and self.boundary_writer(child, turn) == here
            for child, (parent, fork) in enumerate(zip(self.parents, self.forks, strict=True))
        )

    def consecutive_branches(self, member: int, turn: int) -> int:
        """Return how many boundaries in a row, up to the one before boundary `turn`, were branched."""
        count = 0
        while count < turn and self.is_branched(member, turn - 1 - count):
            count += 1
        return count
