"""Tree-GRPO's rollouts: trees of a fixed shape, grown at random turns (arXiv:2509.21240, Sec. 3.2).

The paper's: M rollouts from the start are the trunks of M trees. L times, N nodes of each tree are chosen at random
among those that are no leaf, the start included, and a fresh continuation is drawn from each: M (1 + N L) rollouts.
A node is a whole turn with what the environment answered. The authors' scripts: M 2, N 2, L 1, and K 3 leaves of each
tree are trained on.

Ours: the N nodes of a round differ while there are enough of them, then they are taken again.
"""

from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.branching.lineage import Lineage
from midcourse.branching.rivals.branches import Branch, DrawKey, uniform_draw
from midcourse.errors import ConfigError


class TreeRolloutConfig(BaseModel):
    """The shape of the trees."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    trees: int = Field(default=2, ge=1)
    """M: rollouts from the task's start, each a tree's trunk."""
    nodes: int = Field(default=2, ge=0)
    """N: nodes of each tree that one round expands."""
    rounds: int = Field(default=1, ge=0)
    """L: rounds, one behind the other."""
    leaves: int = Field(default=3, ge=1)
    """K: rollouts of each tree that are trained on, of 1 + N L."""

    @model_validator(mode="after")
    def _leaves_are_there(self) -> Self:
        if self.leaves > 1 + self.nodes * self.rounds:
            raise ConfigError(
                f"leaves must be at most 1 + nodes * rounds = {1 + self.nodes * self.rounds}: got {self.leaves}"
            )
        return self

    @property
    def rollout_budget(self) -> int:
        """Rollouts of one task."""
        return self.trees * (1 + self.nodes * self.rounds)


def tree_nodes(lineage: Lineage, num_turns: Sequence[int], tree: int) -> list[tuple[int, int]]:
    """Return the nodes of a tree that are no leaf, each once: (rollout, turn) says before which turn to go on.

    Args:
        lineage: of all rollouts so far, forks in turns.
        num_turns: [G] turns that each wrote, those of its parent included.
        tree: the rollout that is its trunk. It has the node at the start even if it wrote nothing.
    """
    return [
        (member, turn)
        for member in range(len(lineage))
        if lineage.root(member) == tree
        for turn in range(
            0 if member == tree else lineage.forks[member] + 1, max(num_turns[member], 1 if member == tree else 0)
        )
    ]


def tree_branches(
    lineage: Lineage, num_turns: Sequence[int], *, round_index: int, config: TreeRolloutConfig, key: DrawKey
) -> list[Branch]:
    """Return the expansions of one round: `nodes` of each tree, trees in the order of their trunks.

    Args:
        lineage: of all rollouts so far.
        num_turns: [G] turns that each wrote. 0 keeps a rollout from being gone on from.
        round_index: 0 for the first round.
        config: the shape.
        key: of the task; a node's draw depends on it, the round, the rollout and the turn alone.

    Raises:
        ValueError: a number of turns is missing.
    """
    if len(num_turns) != len(lineage):
        raise ValueError(f"each rollout needs its number of turns: got {len(num_turns)} of {len(lineage)}")
    branches: list[Branch] = []
    for tree in (member for member, parent in enumerate(lineage.parents) if parent is None):
        shuffled = sorted(
            tree_nodes(lineage, num_turns, tree),
            key=lambda node: (uniform_draw(*key, "node", round_index, *node), node),
        )
        branches += [
            Branch(rollout=rollout, turn=turn)
            for rollout, turn in (shuffled[index % len(shuffled)] for index in range(config.nodes))
        ]
    return branches


def trained_leaves(lineage: Lineage, *, config: TreeRolloutConfig, key: DrawKey) -> list[int]:
    """Return the rollouts that are trained on, in their order: `leaves` of each tree at random, or all it has."""
    chosen: list[int] = []
    for tree in (member for member, parent in enumerate(lineage.parents) if parent is None):
        members = [member for member in range(len(lineage)) if lineage.root(member) == tree]
        chosen += sorted(members, key=lambda member: (uniform_draw(*key, "leaf", member), member))[: config.leaves]
    return sorted(chosen)
