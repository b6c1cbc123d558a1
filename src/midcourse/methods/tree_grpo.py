"""Tree-GRPO: trees of rollouts, compared within each tree and between them (arXiv:2509.21240). A rival of RAIL.

The rule, its source and what differs are in branching/rivals/tree.py, the advantages in advantages/tree.py. Ours: a
trunk that failed before its first turn is not gone on from, so that its group is smaller.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from midcourse.advantages.tree import tree_advantages
from midcourse.branching.rivals.tree import TreeRolloutConfig, trained_leaves, tree_branches
from midcourse.environments.base import Task
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.methods.branched import BranchedRollouts, branch_statistics, lineage_of
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.types import Group


@METHODS.register("tree_grpo")
class TreeGRPOConfig(TreeRolloutConfig):
    """Tree-GRPO: trees of rollouts grown at random turns, compared within each tree and between them."""

    name: Literal["tree_grpo"] = "tree_grpo"
    """The method."""
    std_ddof: Literal[0, 1] = 0
    """0 divides the squared deviations by the number of members, 1 by one less (as TRL and verl do)."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL."""

    @property
    def group_size(self) -> int:
        """Rollouts of one task."""
        return self.rollout_budget

    def build(self) -> "TreeGRPO":
        """Return the method."""
        return TreeGRPO(self)


class TreeGRPO:
    """Trunks from the start, then rounds of expansions."""

    def __init__(self, config: TreeGRPOConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return the rollouts of all trees."""
        config, rollouts = self.config, BranchedRollouts(task, tools, seed=seed, update=update)
        await rollouts.begin(config.trees)
        for index in range(config.rounds):
            pool = rollouts.pool
            num_turns = [len(member.trajectory.turns) for member in pool.members]
            branches = tree_branches(pool.lineage, num_turns, round_index=index, config=config, key=rollouts.draw_key)
            await rollouts.grow([branch for branch in branches if num_turns[branch.rollout]], rule="tree_grpo")
        return rollouts.group()

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] within the tree plus between trees; None for leaves that are not trained on."""
        lineage = lineage_of(group)
        trained = set(trained_leaves(lineage, config=self.config, key=(group.group_id,)))
        rewards = [reward if member in trained else None for member, reward in enumerate(group.rewards)]
        trees = [lineage.root(member) for member in range(len(lineage))]
        return tree_advantages(rewards, trees, std_ddof=self.config.std_ddof)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return how much was branched where."""
        return branch_statistics(groups)
