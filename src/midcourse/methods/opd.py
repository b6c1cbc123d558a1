"""OPD: on-policy distillation (a baseline of "MInTRL" and of "Rollout-Time Intervention"; arXiv:2306.13649).

The policy rolls a group out alone, as in GRPO; a teacher says how likely it finds every token. Two forms of a token's
advantage, with r_t = log pi_S(y_t) - log pi_T(y_t), whose mean estimates the reverse KL a token (at rollout.top_p 1,
without bias; both at the rollout's temperature):

- `reverse_kl`: A_t = -c r_t. No reward and no comparison within the group.
- `with_grpo`: A_t = A_GRPO - c r_t, as RTI's baseline folds it in.

Both are policy gradients (PG-OPD): surrogate, importance ratio and clip are GRPO's. That rewards without spread move
nothing holds for GRPO's own part alone: here such a group still learns from its teacher.

Differs from the papers, which say no more than what is distilled and from whom: c; GRPO's mean over tokens, rows and
groups; a rollout that failed, or that the teacher could not score, does not train.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.advantages.group import group_advantages
from midcourse.engines.base import Feature
from midcourse.environments.base import Task
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.teacher import ScorerConfig, ScoringTeacher
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.methods.grpo import group_id, roll_out
from midcourse.objectives.base import Objective
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.distillation import DistillationObjective
from midcourse.rollout.episode import RolloutKey
from midcourse.types import Group, Member


@METHODS.register("opd")
class OPDConfig(BaseModel):
    """OPD: the policy's own rollouts, each token pulled to what a teacher thinks of it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["opd"] = "opd"
    """The method."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of one task; mode with_grpo compares them."""
    mode: Literal["reverse_kl", "with_grpo"] = "reverse_kl"
    """Distillation alone (MInTRL's baseline), or on top of GRPO's advantage (RTI's)."""
    coefficient: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Advantage units a nat of log pi_T - log pi_S. 0 asks no teacher: with_grpo is GRPO then. Ours."""
    std_ddof: Literal[0, 1] = 0
    """GRPO's: 0 divides the squared deviations by the group's size, 1 by one less."""
    teacher: ScorerConfig = Field(default_factory=ScorerConfig)
    """Who scores."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL to the initial policy."""

    @model_validator(mode="after")
    def _something_is_learned(self) -> Self:
        if self.mode == "reverse_kl" and not self.coefficient:
            raise ValueError(
                f"coefficient must be > 0 in mode reverse_kl, which has no other signal: got {self.coefficient}"
            )
        return self

    @property
    def needs(self) -> frozenset[Feature]:
        """The teacher scores what the policy wrote."""
        return frozenset({Feature.PROMPT_SCORES})

    def build(self) -> "OPD":
        """Return the method."""
        return OPD(self)


class OPD:
    """On-policy distillation."""

    def __init__(self, config: OPDConfig) -> None:
        self.config = config
        self.objective: Objective = ClippedObjective(config.objective)
        if config.coefficient:
            self.objective = DistillationObjective(config.objective, coefficient=config.coefficient)

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return `group_size` rollouts, those of GRPO draw by draw, with the teacher's log-probabilities.

        Raises:
            ConfigError: this run has no such teacher, or it has another vocabulary than the policy.
        """
        config, ledger = self.config, CostLedger()
        key = RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=0)
        teacher = ScoringTeacher(tools, config=config.teacher, ledger=ledger) if config.coefficient else None
        trajectories = await roll_out(
            task, tools, key=key, attempts=range(config.group_size), ledger=ledger, step_hook=teacher
        )
        if teacher is not None:
            trajectories = teacher.attach(trajectories)
        members = tuple(Member(trajectory=trajectory) for trajectory in trajectories)
        return Group(group_id=group_id(key), task_id=task.task_id, members=members, cost=ledger.cost())

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] GRPO's advantages, or 0 in mode reverse_kl: the objective adds what the teacher thinks."""
        values = group_advantages(group.rewards, std_ddof=self.config.std_ddof)
        if self.config.mode == "reverse_kl":
            values = [None if value is None else 0.0 for value in values]
        if not self.config.coefficient:
            return values
        taught = [member.trajectory.teacher_logprobs is not None for member in group.members]
        return [value if is_taught else None for value, is_taught in zip(values, taught, strict=True)]

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return how many rollouts have a reward and the teacher's scores, and how many lack only the latter."""
        if not self.config.coefficient:
            return {}
        members = [member.trajectory for group in groups for member in group.members]
        rewarded = [trajectory for trajectory in members if trajectory.failure is None]
        num_scored = sum(trajectory.teacher_logprobs is not None for trajectory in rewarded)
        return {
            "intervention/teacher_scored": float(num_scored),
            "intervention/teacher_failed": float(len(rewarded) - num_scored),
        }
