"""GRPO (RTI Eq. 1-2; arXiv:2402.03300): sample a group, compare its rewards.

With `extra_attempts` it is the control for RTI: the same number of further attempts on a failed group, unaided.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.advantages.group import group_advantages
from midcourse.environments.base import Task
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.rollout.episode import RolloutKey, StepHook, TurnWriter, run_episode
from midcourse.types import Group, Member, Origin, Trajectory

SUCCESS_REWARD = 1.0
"""Task units: the reward that makes an attempt a success (RTI, Algorithm 1, line 24)."""


@METHODS.register("grpo")
class GRPOConfig(BaseModel):
    """GRPO: sample a group of rollouts, compare their rewards."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["grpo"] = "grpo"
    """The method."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of one task that are compared."""
    std_ddof: Literal[0, 1] = 0
    """0 divides the squared deviations by the group's size (Eq. 1), 1 by one less (as TRL and verl do)."""
    extra_attempts: int = Field(default=0, ge=0)
    """Further unaided attempts on a group without a success: the control for RTI's `attempts`. Ours."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL."""

    def build(self) -> "GRPO":
        """Return the method."""
        return GRPO(self)


class GRPO:
    """Plain group-relative policy optimisation."""

    def __init__(self, config: GRPOConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return `group_size` rollouts; after a failure of all, one of them may be an extra attempt that succeeded."""
        config, ledger = self.config, CostLedger()
        key = RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=0)
        members = await roll_out_members(task, tools, key=key, num_rollouts=config.group_size, ledger=ledger)
        extra: Sequence[Trajectory] = ()
        if config.extra_attempts and is_failed_group(members):
            first = config.group_size
            extra = await roll_out(
                task, tools, key=key, attempts=range(first, first + config.extra_attempts), ledger=ledger
            )
            winner = first_success(extra)
            if winner is not None:
                members = replace_one_failure(members, extra[winner], origin=Origin.ROOT, key=key)
                extra = [*extra[:winner], *extra[winner + 1 :]]
        return Group(
            group_id=group_id(key), task_id=task.task_id, members=members, extra=tuple(extra), cost=ledger.cost()
        )

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] Eq. 1 over the group as it stands."""
        return group_advantages(group.rewards, std_ddof=self.config.std_ddof)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return nothing: what GRPO does is in the metrics that every method has."""
        return {}


def group_id(key: RolloutKey) -> str:
    """Return the name of the group that `key` belongs to."""
    return f"{key.update}:{key.task_id}"


async def roll_out_members(
    task: Task, tools: RolloutTools, *, key: RolloutKey, num_rollouts: int, ledger: CostLedger
) -> list[Member]:
    """Return `num_rollouts` unaided rollouts as members, attempts 0 to `num_rollouts` - 1 of `key`."""
    trajectories = await roll_out(task, tools, key=key, attempts=range(num_rollouts), ledger=ledger)
    return [Member(trajectory=trajectory) for trajectory in trajectories]


async def roll_out(
    task: Task,
    tools: RolloutTools,
    *,
    key: RolloutKey,
    attempts: Sequence[int],
    ledger: CostLedger,
    step_hook: StepHook | None = None,
    turn_writer: TurnWriter | None = None,
    purpose: str = "policy",
) -> list[Trajectory]:
    """Return one rollout for each attempt number, in that order, run together.

    A writer asks engines of its own: `purpose` names what the loop itself asks for.
    """
    engine = MeteredEngine(tools.engine, purpose=purpose, ledger=ledger)
    return await asyncio.gather(
        *(
            run_episode(
                task,
                engine=engine,
                chat=tools.chat,
                environment=tools.environment,
                config=tools.rollout,
                key=replace(key, attempt=attempt),
                step_hook=step_hook,
                turn_writer=turn_writer,
            )
            for attempt in attempts
        )
    )


def is_failed_group(members: Sequence[Member]) -> bool:
    """Return whether something could be scored and nothing succeeded (RTI, Algorithm 1, line 5)."""
    scored = [member.trajectory.reward for member in members if member.trajectory.reward is not None]
    return bool(scored) and max(scored) <= 0


def is_success(trajectory: Trajectory) -> bool:
    """Return whether the rollout earned the full reward."""
    return trajectory.reward is not None and trajectory.reward >= SUCCESS_REWARD


def first_success(
    trajectories: Sequence[Trajectory], *, accept: Callable[[Trajectory], bool] = is_success
) -> int | None:
    """Return the lowest index that `accept` takes, never the first to finish; None where there is none."""
    return next((index for index, trajectory in enumerate(trajectories) if accept(trajectory)), None)


def replace_one_failure(
    members: Sequence[Member], trajectory: Trajectory, *, origin: Origin, key: RolloutKey
) -> list[Member]:
    """Return the members with ONE scored one replaced by `trajectory`; which one depends on `key` alone.

    Raises:
        ValueError: no member was scored.
    """
    candidates = [index for index, member in enumerate(members) if member.trajectory.reward is not None]
    if not candidates:
        raise ValueError(f"task {key.task_id!r}: no scored member can be replaced")
    chosen = candidates[replace(key, attempt=0).turn_seed(0, "replacement") % len(candidates)]
    replacement = Member(trajectory=trajectory, origin=origin, replaced=members[chosen].trajectory)
    return [*members[:chosen], replacement, *members[chosen + 1 :]]
