"""ARPO: branch where the policy grows uncertain behind a tool's answer (arXiv:2507.19849). A rival of RAIL.

The rule, its source and what differs are in branching/rivals/arpo.py. Advantages are GRPO's over all rollouts: the
paper's soft attribution, its default (Sec. 3.2). Its hard one, by which tokens that d rollouts have in common get the
mean of the d advantages, is not there: at the rollout's own weights both have the same gradient, since every rollout
holds its copy of those tokens; they differ through clipping and 1 / |y| alone.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from midcourse.advantages.group import group_advantages
from midcourse.branching.rivals.arpo import ARPORolloutConfig, arpo_branches
from midcourse.engines.base import Feature
from midcourse.environments.base import Task
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.methods.branched import BranchedRollouts, branch_statistics
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.types import Group


@METHODS.register("arpo")
class ARPOConfig(ARPORolloutConfig):
    """ARPO: rollouts branch where the policy grows uncertain behind a tool's answer."""

    name: Literal["arpo"] = "arpo"
    """The method."""
    std_ddof: Literal[0, 1] = 0
    """0 divides the squared deviations by the group's size, 1 by one less (as TRL and verl do)."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL."""

    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared."""
        return self.rollout_budget

    @property
    def needs(self) -> frozenset[Feature]:
        """A change of entropy decides on a branch."""
        return frozenset({Feature.ENTROPIES})

    def build(self) -> "ARPO":
        """Return the method."""
        return ARPO(self)


class ARPO:
    """Rollouts from the start, branches by entropy, and what is missing from the start again."""

    def __init__(self, config: ARPOConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return `rollout_budget` rollouts."""
        config, rollouts = self.config, BranchedRollouts(task, tools, seed=seed, update=update)
        await rollouts.begin(config.initial_rollouts)
        turn = 1
        while turn <= rollouts.last_turn and rollouts.pool.used < config.rollout_budget:
            remaining = config.rollout_budget - rollouts.pool.used
            boundaries = rollouts.boundaries(turn)
            branches = arpo_branches(boundaries, remaining=remaining, config=config, key=rollouts.draw_key)
            await rollouts.grow(branches, rule="arpo")
            turn += 1
        await rollouts.begin(config.rollout_budget - rollouts.pool.used)
        return rollouts.group()

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] GRPO's, over all rollouts."""
        return group_advantages(group.rewards, std_ddof=self.config.std_ddof)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return how much was branched where."""
        return branch_statistics(groups)
