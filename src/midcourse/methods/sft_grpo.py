"""SFT+GRPO: imitate complete trajectories of a teacher first, then GRPO (the off-policy baseline of "MInTRL").

The teacher is MInTRL's judge-intervention policy writing responses from their first token to their last; episodes run
as always, so that the environment scores them and tools are really called. The loss of the first part is the mean
negative log-likelihood a token (`objectives/supervised.py`).

Differs from the paper, which says that complete trajectories are imitated and no more: those without the full reward
are left out by default; trajectories are sampled anew for each update, of the tasks that GRPO would have had; how many
updates are supervised; moments of the optimizer start anew when GRPO begins.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.advantages.group import group_advantages
from midcourse.engines.base import Feature
from midcourse.environments.base import Task
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.teacher import Demonstrator, DemonstratorConfig
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.methods.grpo import group_id, is_success, roll_out, roll_out_members
from midcourse.objectives.base import Objective
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.supervised import SupervisedObjective
from midcourse.rollout.episode import RolloutKey
from midcourse.types import Group, Member, Origin

SUPERVISED, PLAIN = "supervised", "plain"


@METHODS.register("sft_grpo")
class SFTGRPOConfig(BaseModel):
    """SFT+GRPO: fine-tuning on complete trajectories of a teacher, then GRPO."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["sft_grpo"] = "sft_grpo"
    """The method."""
    group_size: int = Field(default=8, ge=1)
    """GRPO's: rollouts of one task that are compared."""
    supervised_updates: int = Field(default=200, ge=0)
    """Updates of fine-tuning; GRPO follows. 0 is GRPO. Ours: as many as MInTRL's updates with interventions."""
    demonstrations: int = Field(default=8, ge=1)
    """Trajectories of the teacher a task and update; of a script 1 is enough: it always writes the same. Ours."""
    keep_failures: bool = False
    """Imitate trajectories without the full reward, too. Ours."""
    teacher: DemonstratorConfig = Field(default_factory=DemonstratorConfig)
    """Who writes what is imitated."""
    std_ddof: Literal[0, 1] = 0
    """GRPO's: 0 divides the squared deviations by the group's size, 1 by one less."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """GRPO's clip, aggregation and KL to the policy as it was before fine-tuning."""

    @property
    def needs(self) -> frozenset[Feature]:
        """The policy scores what the teacher wrote."""
        return frozenset({Feature.PROMPT_SCORES})

    def build(self) -> "SFTGRPO":
        """Return the method."""
        return SFTGRPO(self)


class SFTGRPO:
    """Imitation first, GRPO afterwards."""

    def __init__(self, config: SFTGRPOConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)
        self._objectives: Mapping[str, Objective] = {SUPERVISED: SupervisedObjective(), PLAIN: self.objective}

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return the teacher's trajectories; in the second part GRPO's rollouts, draw by draw.

        Raises:
            ConfigError: the teacher is a model or a script that this run does not have.
        """
        config, ledger, phase = self.config, CostLedger(), self.phase(update)
        key = RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=0)
        if phase == SUPERVISED:
            trajectories = await roll_out(
                task,
                tools,
                key=key,
                attempts=range(config.demonstrations),
                ledger=ledger,
                turn_writer=Demonstrator(tools, config=config.teacher, ledger=ledger),
            )
            members = [Member(trajectory=trajectory, origin=Origin.TEACHER) for trajectory in trajectories]
        else:
            members = await roll_out_members(task, tools, key=key, num_rollouts=config.group_size, ledger=ledger)
        return Group(
            group_id=group_id(key), task_id=task.task_id, members=tuple(members), cost=ledger.cost(), phase=phase
        )

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] 1 for what is imitated and None for what is not; in groups of GRPO's part its own advantages."""
        if group.phase == PLAIN:
            return group_advantages(group.rewards, std_ddof=self.config.std_ddof)
        return [1.0 if self._is_imitated(member) else None for member in group.members]

    def _is_imitated(self, member: Member) -> bool:
        trajectory = member.trajectory
        return trajectory.failure is None and (self.config.keep_failures or is_success(trajectory))

    def phase(self, update: int) -> str:
        """Return the part of the schedule that an update belongs to; updates count from 1, 0 is before the first."""
        return SUPERVISED if 0 < self.config.supervised_updates >= update else PLAIN

    def objective_in(self, phase: str) -> Objective:
        """Return the loss of one part of the schedule."""
        return self._objectives[phase]

    def finish_update(self, groups: Sequence[Group]) -> None:
        """Do nothing: the schedule is fixed."""

    def state(self) -> Mapping[str, Any]:
        """Return nothing: the number of updates done tells the part."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is nothing to know."""

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return how many trajectories were asked of the teacher, and how many of them are imitated."""
        taught = [member for group in groups if group.phase == SUPERVISED for member in group.members]
        if not taught:
            return {}
        return {
            "intervention/demonstrations": float(len(taught)),
            "intervention/demonstrations_imitated": float(sum(map(self._is_imitated, taught))),
        }
