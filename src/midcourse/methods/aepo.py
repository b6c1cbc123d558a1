"""AEPO: a budget split by entropies, and branches that do not follow one another (arXiv:2510.14545). A rival of RAIL.

The rule, its source and what differs are in branching/rivals/aepo.py, the objective in objectives/balanced_clipped.py,
the weights in advantages/entropy.py. Differs from those: the mean and deviation of entropies are over the tokens of
one group's scored rollouts, which is all that is known when its weights are set. A first rollout that failed before
its first turn measures no gap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from midcourse.advantages.entropy import ENTROPY_SHARE, entropy_weights
from midcourse.advantages.group import group_advantages
from midcourse.branching.rivals.aepo import AEPORolloutConfig, aepo_branches, initial_rollouts
from midcourse.engines.base import Feature
from midcourse.environments.base import Task
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.methods.branched import BranchedRollouts, branch_statistics
from midcourse.objectives.balanced_clipped import BalancedClippedObjective
from midcourse.objectives.clipped import ClippedConfig
from midcourse.types import Group, Member, Turn


@METHODS.register("aepo")
class AEPOConfig(AEPORolloutConfig):
    """AEPO: entropies split the budget between starts and branches; uncertain tokens weigh more and keep a gradient."""

    name: Literal["aepo"] = "aepo"
    """The method."""
    entropy_share: float = Field(default=ENTROPY_SHARE, ge=0, allow_inf_nan=False)
    """a: what one deviation of entropy adds to a token's weight. Code: 0.2; 0 leaves every weight at 1."""
    std_ddof: Literal[0, 1] = 0
    """0 divides the squared deviations by the group's size, 1 by one less (as TRL and verl do)."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL. The upper clip keeps its gradient."""

    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared."""
        return self.rollout_budget

    @property
    def needs(self) -> frozenset[Feature]:
        """Entropies split the budget, and weigh tokens."""
        return frozenset({Feature.ENTROPIES})

    def build(self) -> "AEPO":
        """Return the method."""
        return AEPO(self)


class AEPO:
    """As many starts as the entropies of one rollout ask for, branches by penalised entropy."""

    def __init__(self, config: AEPOConfig) -> None:
        self.config = config
        self.objective = BalancedClippedObjective(config.objective)

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return `rollout_budget` rollouts."""
        config, rollouts = self.config, BranchedRollouts(task, tools, seed=seed, update=update)
        pool = rollouts.pool
        await rollouts.begin(1)
        root, *behind_tools = [entropy for entropy in rollouts.entropies[0] if entropy is not None] or [0.0]
        await rollouts.begin(initial_rollouts(root, behind_tools, config) - 1)
        turn = 1
        while turn <= rollouts.last_turn and pool.used < config.rollout_budget:
            boundaries, lineage = rollouts.boundaries(turn), pool.lineage
            in_a_row = [lineage.consecutive_branches(boundary.rollout, turn) for boundary in boundaries]
            remaining = config.rollout_budget - pool.used
            branches = aepo_branches(boundaries, in_a_row, remaining=remaining, config=config, key=rollouts.draw_key)
            await rollouts.grow(branches, rule="aepo")
            turn += 1
        await rollouts.begin(config.rollout_budget - pool.used)
        group = rollouts.group()
        return replace(group, members=tuple(weighted(group.members, share=config.entropy_share)))

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] GRPO's, over all rollouts."""
        return group_advantages(group.rewards, std_ddof=self.config.std_ddof)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return how much was branched where."""
        return branch_statistics(groups)


def weighted(members: Sequence[Member], *, share: float) -> list[Member]:
    """Return the members with the entropy-aware factor on each token that the policy drew; failed ones as they are."""
    entropies = [[entropy for turn in _trained_turns(member) for entropy in turn.entropies] for member in members]
    found: list[Member] = []
    for member, factors in zip(members, entropy_weights(entropies, share=share), strict=True):
        weights, remaining = list(member.trajectory.weights), iter(factors)
        for turn in _trained_turns(member):
            for position, _ in enumerate(turn.entropies, start=turn.start):
                weights[position] *= next(remaining)
        found.append(replace(member, trajectory=replace(member.trajectory, weights=tuple(weights))))
    return found


def _trained_turns(member: Member) -> Sequence[Turn]:
    return member.trajectory.turns if member.trajectory.reward is not None else ()
