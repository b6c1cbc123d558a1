"""RTI: Rollout-Time Intervention (papers: "Rollout-Time Intervention", Algorithm 1, Eq. 3-7).

Differs from the paper: a success replaces a member only if at least one correction was accepted in it, so that
delta = 0 is GRPO; several attempts run and the lowest successful one wins; a member that could not be scored neither
triggers nor is replaced; a deterministic leak check precedes the verifier; the correction prompt holds diagnosis and
suggested step alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from midcourse.advantages.group import group_advantages
from midcourse.engines.base import Feature
from midcourse.environments.base import Task
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.pipeline import InterventionConfig, InterventionPipeline
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.methods.grpo import (
    first_success,
    group_id,
    is_failed_group,
    is_success,
    replace_one_failure,
    roll_out,
    roll_out_members,
)
from midcourse.methods.rti_statistics import is_flagged_but_kept, rti_statistics
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.rollout.episode import RolloutKey
from midcourse.types import Group, Origin, TokenSource, Trajectory


@METHODS.register("rti")
class RTIConfig(InterventionConfig):
    """RTI: a group that failed is rolled out again under corrections by validator, corrector and verifier."""

    name: Literal["rti"] = "rti"
    """The method."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of one task that are compared."""
    std_ddof: Literal[0, 1] = 0
    """0 divides the squared deviations by the group's size (Eq. 1), 1 by one less (as TRL and verl do)."""
    attempts: int = Field(default=8, ge=0)
    """Intervened rollouts of a failed group (Table 6: 1,200 for 150 groups). 0 turns intervention off."""
    early_stop: bool = False
    """True makes the attempts one after the other and stops at the first that can replace a member. Ours."""
    flagged_kept_weight: float = Field(default=1.0, ge=0, le=1)
    """Weight of a rescued rollout's drafts that were flagged and stood, as their correction was refused. Ours."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL."""

    @property
    def needs(self) -> frozenset[Feature]:
        """Corrections are scored, for the gate and for their weights."""
        return frozenset({Feature.PROMPT_SCORES})

    def build(self) -> "RTI":
        """Return the method."""
        return RTI(self)


class RTI:
    """Rollouts that are corrected on the way where the whole group failed."""

    def __init__(self, config: RTIConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return the group of Algorithm 1, lines 4-31; the attempts that did not become members are its `extra`.

        Raises:
            ConfigError: a role is to be played by an engine or a script that this run does not have.
        """
        ledger = CostLedger()
        key = RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=0)
        pipeline = InterventionPipeline(tools, config=self.config, ledger=ledger)
        members = await roll_out_members(task, tools, key=key, num_rollouts=self.config.group_size, ledger=ledger)
        extra: Sequence[Trajectory] = ()
        if is_failed_group(members):
            attempts = await self._attempts(task, tools, key, pipeline, ledger)
            winner = first_success(attempts, accept=is_rescued)
            extra = attempts
            if winner is not None:
                rescued = discount_flagged(attempts[winner], weight=self.config.flagged_kept_weight)
                members = replace_one_failure(members, rescued, origin=Origin.INTERVENED, key=key)
                extra = [*attempts[:winner], *attempts[winner + 1 :]]
        return Group(
            group_id=group_id(key), task_id=task.task_id, members=members, extra=tuple(extra), cost=ledger.cost()
        )

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] Eq. 1 over the group as it stands at the end."""
        return group_advantages(group.rewards, std_ddof=self.config.std_ddof)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return the paper's Table 6 and what else `RTIStatistics` counts, under intervention/."""
        advantages = [self.advantages(group) for group in groups]
        return rti_statistics(groups, advantages=advantages, epsilon_cal=self.config.epsilon_cal).metrics()

    async def _attempts(
        self, task: Task, tools: RolloutTools, key: RolloutKey, pipeline: InterventionPipeline, ledger: CostLedger
    ) -> list[Trajectory]:
        """Return the intervened rollouts in order. Their numbers follow those of the unaided ones."""
        numbers = range(self.config.group_size, self.config.group_size + self.config.attempts)
        waves = [[number] for number in numbers] if self.config.early_stop else [list(numbers)]
        finished: list[Trajectory] = []
        for wave in waves:
            finished += await roll_out(
                task,
                tools,
                key=key,
                attempts=wave,
                ledger=ledger,
                step_hook=pipeline,
                purpose="intervened_policy",
            )
            if any(map(is_rescued, finished)):
                break
        return finished


def is_rescued(trajectory: Trajectory) -> bool:
    """Return whether the rollout succeeded with the help of at least one accepted correction."""
    return is_success(trajectory) and trajectory.accepted_interventions >= 1


def discount_flagged(trajectory: Trajectory, *, weight: float) -> Trajectory:
    """Return the trajectory with `weight` on the policy's tokens of turns that were flagged and kept.

    Raises:
        ValueError: the weight is negative or not finite.
    """
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(f"weight must be at least 0 and finite: got {weight}")
    weights = list(trajectory.weights)
    for turn in trajectory.turns:
        if turn.intervention is None or not is_flagged_but_kept(turn.intervention):
            continue
        for position in range(turn.start, turn.end):
            if trajectory.sources[position] is TokenSource.POLICY:
                weights[position] = weight
    return replace(trajectory, weights=tuple(weights))
