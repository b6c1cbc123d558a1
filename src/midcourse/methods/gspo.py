"""GSPO (arXiv:2507.18071): GRPO with one importance ratio a response, clipped as a whole (Eq. 5-7).

Differs from the paper: `epsilon` in the advantage's denominator, as in GRPO here; a group without spread does not
train.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.advantages.group import group_advantages
from midcourse.environments.base import Task
from midcourse.interventions.metering import CostLedger
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.methods.grpo import group_id, roll_out_members
from midcourse.objectives.sequence_clipped import SequenceClippedConfig, SequenceClippedObjective
from midcourse.rollout.episode import RolloutKey
from midcourse.types import Group


@METHODS.register("gspo")
class GSPOConfig(BaseModel):
    """GSPO: GRPO's rollouts and advantages, with the ratio of whole responses."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["gspo"] = "gspo"
    """The method."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of one task that are compared."""
    std_ddof: Literal[0, 1] = 0
    """0 divides the squared deviations by the group's size, 1 by one less."""
    objective: SequenceClippedConfig = Field(default_factory=SequenceClippedConfig)
    """Clip."""

    def build(self) -> "GSPO":
        """Return the method."""
        return GSPO(self)


class GSPO:
    """Group sequence policy optimisation."""

    def __init__(self, config: GSPOConfig) -> None:
        self.config = config
        self.objective = SequenceClippedObjective(config.objective)

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return `group_size` rollouts: those of GRPO, draw by draw."""
        ledger = CostLedger()
        key = RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=0)
        members = await roll_out_members(task, tools, key=key, num_rollouts=self.config.group_size, ledger=ledger)
        return Group(group_id=group_id(key), task_id=task.task_id, members=members, cost=ledger.cost())

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] GRPO's advantages."""
        return group_advantages(group.rewards, std_ddof=self.config.std_ddof)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return nothing: what GSPO does is in the metrics that every method has."""
        return {}
