"""Score a policy on tasks as it stands: the plain rollout loop without a step hook, so never with an intervention."""

import asyncio
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from midcourse.engines.base import Engine
from midcourse.environments.base import Environment, Task
from midcourse.evaluation.estimators import Estimate, estimate_pass
from midcourse.rollout.chat import ChatFormat
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import StopReason, TokenSource, Trajectory


class EvaluationConfig(BaseModel):
    """On what the policy is scored, and how often."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    every: int = Field(default=20, ge=0)
    """Updates between evaluations; the last update always has one. 0: no other."""
    at_start: bool = True
    """Score the policy before the first update too."""
    attempts: int = Field(default=4, ge=1)
    """Rollouts a task. pass@k and pass^k are given for every k up to it. RTI evaluates with 4."""
    temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Sampling temperature; none takes the training rollouts' own."""
    splits: tuple[str, ...] = ("test",)
    """Splits of the environment to score."""
    max_tasks: int | None = Field(default=None, ge=1)
    """Most tasks a split, the first ones; none takes all."""
    rollouts_per_wave: int = Field(default=64, ge=1)
    """Rollouts in flight together."""
    bootstrap_resamples: int = Field(default=1000, ge=1)
    """Draws of the bootstrap over tasks that the 95 % intervals come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSheet:
    """The scores of one set of tasks. Rollouts that failed are counted in `failures` and in nothing else."""

    num_tasks: int
    num_attempts: int
    num_scored: int
    failures: Mapping[str, int]  # by kind
    num_truncated: int  # ended by a turn or token limit; scored all the same
    reward_mean: float | None  # over scored rollouts, task units
    pass_at: Mapping[str, Estimate]  # "1".."attempts"
    pass_hat: Mapping[str, Estimate]
    pass_at_mean: float | None  # mean of pass@k over k; None where one of them has no value
    pass_hat_mean: float | None
    turns: Mapping[str, int]  # scored rollouts by number of turns
    tokens: Mapping[str, int]  # of all attempts, by source


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Scores by split, and by split and tag under names such as "test/hard"."""

    attempts: int
    temperature: float
    seconds: float  # wall clock
    splits: Mapping[str, ScoreSheet]
    tags: Mapping[str, ScoreSheet]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return asdict(self)


async def evaluate_policy(
    environment: Environment,
    engine: Engine,
    chat: ChatFormat,
    rollout: RolloutConfig,
    tasks: Sequence[Task],
    *,
    attempts: int,
    seed: int,
    temperature: float | None = None,
    rollouts_per_wave: int = 64,
    bootstrap_resamples: int = 1000,
    finished: Callable[[int, int], None] = lambda done, total: None,
) -> EvaluationResult:
    """Roll every task out `attempts` times and score what came back.

    The draws depend on the seed, task and attempt alone, not on the update: two evaluations of the same weights are
    equal, and a curve over updates compares like with like. They are not those of any training rollout.

    Args:
        environment, engine, chat: as for training rollouts.
        rollout: limits and sampling; `temperature` takes the place of its own where given.
        tasks: what to score; the split and tags on each say where it counts.
        attempts: rollouts a task, >= 1.
        seed: the run's.
        temperature: > 0.
        rollouts_per_wave: rollouts in flight together, >= 1.
        bootstrap_resamples: draws of the intervals.
        finished: told after every rollout how many are done, of how many; and before the first.
    """
    if temperature is not None:
        rollout = rollout.model_copy(update={"temperature": temperature})
    evaluation = evaluation_seed(seed)

    pairs = [(task, attempt) for task in tasks for attempt in range(attempts)]
    num_finished = 0

    async def attempt_task(task: Task, attempt: int) -> Trajectory:
        nonlocal num_finished
        key = RolloutKey(seed=evaluation, update=0, task_id=task.task_id, attempt=attempt)
        found = await run_episode(task, engine=engine, chat=chat, environment=environment, config=rollout, key=key)
        num_finished += 1
        finished(num_finished, len(pairs))
        return found

    started = time.monotonic()
    finished(0, len(pairs))
    done: list[tuple[Task, Trajectory]] = []
    for start in range(0, len(pairs), rollouts_per_wave):
        wave = pairs[start : start + rollouts_per_wave]
        found = await asyncio.gather(*(attempt_task(task, attempt) for task, attempt in wave))
        done += [(task, trajectory) for (task, _), trajectory in zip(wave, found, strict=True)]
    return summarize(
        done,
        attempts=attempts,
        temperature=rollout.temperature,
        seconds=time.monotonic() - started,
        seed=seed,
        bootstrap_resamples=bootstrap_resamples,
    )


def evaluation_seed(seed: int) -> int:
    """Return the seed of evaluation draws, 63 bits: no training rollout of the same run shares it."""
    digest = hashlib.blake2b(f"evaluation:{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def summarize(
    done: Sequence[tuple[Task, Trajectory]],
    *,
    attempts: int,
    temperature: float,
    seconds: float,
    seed: int,
    bootstrap_resamples: int = 1000,
) -> EvaluationResult:
    """Return the scores of finished rollouts, each with its task."""

    def sheet(chosen: list[tuple[Task, Trajectory]]) -> ScoreSheet:
        return _score_sheet(chosen, attempts=attempts, seed=seed, bootstrap_resamples=bootstrap_resamples)

    splits = dict.fromkeys(task.split for task, _ in done)
    tags = sorted({(task.split, tag) for task, _ in done for tag in task.tags})
    return EvaluationResult(
        attempts=attempts,
        temperature=temperature,
        seconds=seconds,
        splits={split: sheet([pair for pair in done if pair[0].split == split]) for split in splits},
        tags={
            f"{split}/{tag}": sheet([pair for pair in done if pair[0].split == split and tag in pair[0].tags])
            for split, tag in tags
        },
    )


def _score_sheet(
    done: Sequence[tuple[Task, Trajectory]], *, attempts: int, seed: int, bootstrap_resamples: int
) -> ScoreSheet:
    rewards: dict[str, list[float | None]] = {}
    for task, trajectory in done:
        rewards.setdefault(task.task_id, []).append(trajectory.reward)
    trajectories = [trajectory for _, trajectory in done]
    scored = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]

    def estimates(all_must_pass: bool) -> dict[str, Estimate]:
        return {
            str(k): estimate_pass(rewards, k, all_must_pass=all_must_pass, seed=seed, num_resamples=bootstrap_resamples)
            for k in range(1, attempts + 1)
        }

    pass_at, pass_hat = estimates(False), estimates(True)
    return ScoreSheet(
        num_tasks=len(rewards),
        num_attempts=len(done),
        num_scored=len(scored),
        failures=dict(Counter(trajectory.failure.value for trajectory in trajectories if trajectory.failure)),
        num_truncated=sum(
            trajectory.stop_reason in (StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT) for trajectory in trajectories
        ),
        reward_mean=math.fsum(scored) / len(scored) if scored else None,
        pass_at=pass_at,
        pass_hat=pass_hat,
        pass_at_mean=_mean_value(pass_at),
        pass_hat_mean=_mean_value(pass_hat),
        turns={
            str(length): count
            for length, count in sorted(Counter(len(t.turns) for t in trajectories if t.reward is not None).items())
        },
        tokens={source.value: sum(t.count(source) for t in trajectories) for source in TokenSource},
    )


def _mean_value(estimates: Mapping[str, Estimate]) -> float | None:
    values = [estimate.value for estimate in estimates.values()]
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present and len(present) == len(values) else None
