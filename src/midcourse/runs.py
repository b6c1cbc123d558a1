"""What is done with the parts of a run: it is trained, scored, rolled out, audited. For the commands and the demo."""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from midcourse.assembly import Parts, assembled
from midcourse.config import RunConfig, kept_settings, load_config, resolved_toml
from midcourse.config.schema import nested_tables
from midcourse.environments.base import Environment, Evidence, Task
from midcourse.errors import ConfigError, RunFolderError
from midcourse.evaluation.evaluate import EvaluationResult, evaluate_policy
from midcourse.evaluation.markdown import percent
from midcourse.interventions.audit import (
    CounterfactualAudit,
    OffersCounterfactuals,
    StepRecorder,
    counterfactual_leak_audit,
)
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.pipeline import InterventionConfig, InterventionPipeline
from midcourse.interventions.roles import Roles
from midcourse.methods.base import METHODS, LearningMethod, MethodConfig
from midcourse.methods.grpo import roll_out
from midcourse.recording.settings import check_same_settings
from midcourse.rollout.chat import ChatFormat
from midcourse.rollout.episode import RolloutKey, Step
from midcourse.training.launch import Launch
from midcourse.training.policy import PolicyConfig, load_policy
from midcourse.training.world import Alone, World
from midcourse.types import Group

logger = logging.getLogger(__name__)

Advance = Callable[[int, str], None]
FAILURE_METRICS: Mapping[str, str] = {
    "rollouts": "rollout/errors/total",
    "role calls": "intervention/outcome/role_failed",
    "reviews": "intervention/review/judge_failed",
    "teacher scores": "intervention/teacher_failed",
    "readings of the policy": "intervention/states_failed",
}
"""What a run goes on without, and so must tell: kind -> metric that counts it in an update."""
_STEP = re.compile(r"step_\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace:
    """A checkpoint and the run that it belongs to."""

    run: Path
    step: Path

    @property
    def model(self) -> Path:
        """The folder that holds the weights."""
        return self.step / "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Groups with their tasks, and the chat format that reads their tokens."""

    groups: Sequence[tuple[Task, Group]]
    chat: ChatFormat


def locate_checkpoint(path: Path) -> CheckpointPlace:
    """Return the checkpoint at `path`, or the newest whole one of the run at `path`.

    A damaged one of a run is named in a warning, and the one before it is taken.

    Raises:
        RunFolderError: neither a run folder nor a checkpoint of one, or a run without checkpoints.
        CheckpointError: the checkpoint at `path` is damaged, or no checkpoint of the run is whole.
    """
    from midcourse.training.checkpoint import check_manifest, newest_whole

    run = path.absolute().parent.parent  # of "step_40" as well
    if _STEP.fullmatch(path.name) and os.path.isfile(run / "config.toml"):
        check_manifest(path)
        return CheckpointPlace(run=run, step=path)
    if not os.path.isfile(path / "config.toml"):  # unlike Path.is_file it does not raise for a name that is too long
        raise RunFolderError(f"{path} is neither a run folder (with config.toml) nor a run's checkpoints/step_N")
    newest = newest_whole(path / "checkpoints")
    if newest is None:
        raise RunFolderError(f"{path / 'checkpoints'} holds no checkpoint")
    return CheckpointPlace(run=path, step=newest)


def joined_world(config: RunConfig, launch: Launch) -> AbstractContextManager[World]:
    """Yield the processes that train together once they are there; see `distributed.joined` for what is raised."""
    if launch.size == 1:
        return nullcontext(Alone())
    from midcourse.training.distributed import joined

    return joined(launch, config.policy.device, config.training)


def train_beside(config: RunConfig, launch: Launch) -> None:
    """Train beside the main process of a run, which has the same settings, until it is done.

    Raises:
        TrainingError: the main process failed or is gone.
    """
    from midcourse.training.distributed import joined
    from midcourse.training.trainer import repeatable
    from midcourse.training.update import follow

    with joined(launch, config.policy.device, config.training) as world:
        # Loaded on the CPU: from there each layer is split before the next one is moved.
        policy = load_policy(config.policy.model_copy(update={"device": "cpu"}))
        with repeatable(world.device, threads=config.policy.threads):
            follow(policy, world, world.calls())


async def train_run(config: RunConfig, *, resume: bool, advance: Advance, world: World | None = None) -> dict[str, Any]:
    """Train as the settings say, write the run folder, and return where it is, the last scores, and what failed.

    Args:
        config: settings; `output_folder` is where the run is written.
        resume: go on with the run that is there.
        advance: told how many updates are done.
        world: the processes that train; this is the main one. None: it is alone.

    Raises:
        OccupiedError: a folder that holds a run while `resume` is off, or one with other settings.
        ConfigError: settings that do not fit the tasks.
        CheckpointError: a checkpoint cannot be written or read.
    """
    from midcourse.recording.writer import RunWriter, check_folder
    from midcourse.training.trainer import TrainingParts, train_async

    folder = config.output_folder
    if resume and os.path.isfile(folder / "config.toml"):
        known = load_config(folder / "config.toml")
        check_same_settings(kept_settings(known), kept_settings(config), place=folder)
    check_folder(folder, resolved_config=resolved_toml(config), resume=resume)
    if resume and (done := _updates_done(folder)):
        advance(done, "")
        if done == config.training.updates and locate_checkpoint(folder).step.name == f"step_{done}":
            logger.info("all %d updates are done", done)
            return _summary(config, _last_scores(folder, done), {})
        logger.info("going on after update %d", done)
    scores: dict[str, Any] = {}
    failed = dict.fromkeys(FAILURE_METRICS, 0)

    def note(update: int, metrics: Mapping[str, float]) -> None:
        for name, metric in FAILURE_METRICS.items():
            failed[name] += int(metrics.get(metric, 0))
        advance(update, ", ".join(f"{count} failed {name}" for name, count in failed.items() if count))

    async with assembled(config) as parts:
        evaluation_tasks(parts)  # splits that cannot be scored must not be found out after training
        with RunWriter(folder, config.recording, resolved_config=resolved_toml(config), resume=resume) as writer:

            async def evaluate(update: int) -> Mapping[str, Any]:
                result = await evaluate_parts(
                    parts, finished=lambda done, total: advance(update, f"evaluating, rollout {done}/{total}")
                )
                scores.update(result.to_dict())
                told = (
                    f"{split} pass@1 {percent(next(iter(sheet['pass_at'].values()))['value'])}"
                    for split, sheet in scores["splits"].items()
                )
                logger.info("scores after update %d: %s", update, ", ".join(told))
                return result.to_dict()

            await train_async(
                TrainingParts(
                    policy=parts.policy,
                    tools=parts.tools,
                    method=parts.method,
                    recorder=writer,
                    tasks=parts.tools.environment.tasks("train"),
                    settings=kept_settings(config),
                    evaluate=evaluate,
                    progress=note,
                    world=world or Alone(),
                ),
                config.training,
                seed=config.seed,
                folder=folder,
                resume=resume,
                evaluate_every=config.evaluation.every,
                evaluate_at_start=config.evaluation.at_start,
            )
    return _summary(config, scores, failed)


def _updates_done(folder: Path) -> int:
    """Return the update of a run's newest checkpoint by its name, whole or not; 0 where there is none."""
    steps = (path.name for path in (folder / "checkpoints").glob("step_*") if _STEP.fullmatch(path.name))
    return max((int(name.removeprefix("step_")) for name in steps), default=0)


def _last_scores(folder: Path, update: int) -> Mapping[str, Any]:
    """Return the scores after an update as a run's folder has them; none where there are none."""
    from midcourse.recording.reader import RunReader

    return next((found for found in reversed(RunReader(folder).evaluations()) if found["update"] == update), {})


def _summary(config: RunConfig, scores: Mapping[str, Any], failed: Mapping[str, int]) -> dict[str, Any]:
    return {
        "output": str(config.output_folder),
        "updates": config.training.updates,
        "evaluation": {name: value for name, value in scores.items() if name != "update"} or None,
        "failed": {name: count for name, count in failed.items() if count},
    }


def evaluation_tasks(parts: Parts) -> list[Task]:
    """Return the tasks that the settings score the policy on.

    Raises:
        ConfigError: a split is unknown or named twice, or the splits hold no task.
    """
    chosen = parts.config.evaluation
    if len(set(chosen.splits)) < len(chosen.splits):
        raise ConfigError(f"evaluation.splits = {list(chosen.splits)}: expected every split once")
    try:
        tasks = [task for split in chosen.splits for task in parts.tools.environment.tasks(split)[: chosen.max_tasks]]
    except ConfigError as error:
        raise ConfigError(f"evaluation.splits = {list(chosen.splits)}: {error}") from error
    if not tasks:
        raise ConfigError(f"evaluation.splits = {list(chosen.splits)}: expected splits that hold a task")
    return tasks


async def evaluate_parts(
    parts: Parts, *, finished: Callable[[int, int], None] = lambda done, total: None
) -> EvaluationResult:
    """Return the scores of the weights in place, on the splits that the settings name.

    Args:
        parts: of a run.
        finished: told how many rollouts are done, of how many.

    Raises:
        ConfigError: as `evaluation_tasks`.
    """
    tools, chosen = parts.tools, parts.config.evaluation
    return await evaluate_policy(
        tools.environment,
        tools.engine,
        tools.chat,
        tools.rollout,
        evaluation_tasks(parts),
        attempts=chosen.attempts,
        seed=parts.config.seed,
        temperature=chosen.temperature,
        rollouts_per_wave=chosen.rollouts_per_wave,
        bootstrap_resamples=chosen.bootstrap_resamples,
        finished=finished,
    )


def with_weights(config: RunConfig, model: Path) -> RunConfig:
    """Return the settings of a run with the weights in folder `model` as its policy."""
    policy: PolicyConfig = config.policy.model_copy(update={"path": str(model)})
    return config.model_copy(update={"policy": policy})


async def evaluate_checkpoint(
    config: RunConfig, model: Path, *, finished: Callable[[int, int], None]
) -> EvaluationResult:
    """Return the scores of the weights in folder `model`, with the settings of the run that they come from.

    `finished` is told how many rollouts are done, of how many.
    """
    async with assembled(with_weights(config, model)) as parts:
        return await evaluate_parts(parts, finished=finished)


async def collect_groups(
    config: RunConfig, *, num_tasks: int, split: str, intervene: bool, advance: Advance
) -> Collected:
    """Return the groups of the first `num_tasks` tasks of a split, as the method collects them before any update.

    Args:
        config: settings.
        num_tasks: tasks, at most the split's.
        split: of the environment.
        intervene: False collects plain rollouts (GRPO's), whatever the method.
        advance: told how many tasks are done.

    Raises:
        ConfigError: no such split, or it is empty, or fewer tasks than one are asked for.
    """
    _check_counts(num_tasks=num_tasks)
    if not intervene:
        plain = METHODS["grpo"](group_size=cast(MethodConfig, config.method).group_size)
        config = config.model_copy(update={"method": plain})
    async with assembled(config) as parts:
        tasks = parts.tools.environment.tasks(split)[:num_tasks]
        if not tasks:
            raise ConfigError(f"split {split!r} holds no task")
        if isinstance(parts.method, LearningMethod):
            from midcourse.training.trainer import run_facts

            parts.method.begin(run_facts(parts.policy, tasks, seed=config.seed, updates=config.training.updates))
            parts.method.begin_update(0, tasks)
        done = 0

        async def collect(task: Task) -> Group:
            nonlocal done
            group = await parts.method.collect(task, parts.tools, seed=config.seed, update=0)
            done += 1
            advance(done, task.task_id)
            return group

        groups: list[Group] = []
        for start in range(0, len(tasks), config.rollout.groups_per_wave):
            wave = tasks[start : start + config.rollout.groups_per_wave]
            groups += await asyncio.gather(*(collect(task) for task in wave))
        return Collected(groups=list(zip(tasks, groups, strict=True)), chat=parts.tools.chat)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name} = {count}: expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """A leak audit, and the chat format that reads its tokens."""

    audit: CounterfactualAudit
    chat: ChatFormat


async def audit_leaks(
    config: RunConfig, *, num_tasks: int, attempts: int, split: str, advance: Callable[[int, str, int], None]
) -> Audited:
    """Return the leak audit of the roles over every step of intervened rollouts.

    Args:
        config: settings; the method must be one with roles.
        num_tasks: tasks, the split's first that could have other evidence; fewer where the split has fewer.
        attempts: intervened rollouts a task; the steps that the roles see in them are audited.
        split: of the environment.
        advance: told how many are done, of what, of how many.

    Raises:
        ConfigError: the method has no roles, no task of the split could have other evidence, or fewer tasks or
            attempts than one are asked for.
    """
    _check_counts(num_tasks=num_tasks, attempts=attempts)
    # RTI itself, or RAIL with `repair`, whose corrections are a table of it.
    tables = (config.method, *(table for _, table in nested_tables(config.method, "method")))
    settings = next((table for table in tables if isinstance(table, InterventionConfig)), None)
    if settings is None:
        raise ConfigError(
            f"method.name = {config.name_of('method')!r}: it has no roles to audit; choose rti, or rail with repair"
        )
    async with assembled(config) as parts:
        tools, ledger = parts.tools, CostLedger()
        pairs = _tasks_with_other_evidence(tools.environment, split=split, num_tasks=num_tasks)
        cases: list[tuple[Step, Evidence]] = []
        for done, (task, other) in enumerate(pairs):
            advance(done, "rollouts", len(pairs))
            recorder = StepRecorder(InterventionPipeline(tools, config=settings, ledger=ledger))
            key = RolloutKey(seed=config.seed, update=0, task_id=task.task_id, attempt=0)
            await roll_out(task, tools, key=key, attempts=range(attempts), ledger=ledger, step_hook=recorder)
            # Rollouts are asked about in any order; the same settings must list the same steps.
            steps = sorted(recorder.steps, key=lambda step: (step.key.attempt, step.turn_index))
            cases += [(step, other) for step in steps]
        advance(0, "steps", len(cases))
        audit = await counterfactual_leak_audit(
            cases,
            Roles(tools, config=settings.roles, ledger=ledger, conceal=settings.conceal),
            audited=lambda done: advance(done, "steps", len(cases)),
        )
        return Audited(audit=audit, chat=tools.chat)


def _tasks_with_other_evidence(
    environment: Environment, *, split: str, num_tasks: int
) -> Sequence[tuple[Task, Evidence]]:
    if not isinstance(environment, OffersCounterfactuals):
        raise ConfigError(f"environment {environment.name!r} offers no other evidence for its tasks")
    twins = ((task, environment.counterfactual(task)) for task in environment.tasks(split))
    found = list(islice(((task, twin.evidence) for task, twin in twins if twin is not None), num_tasks))
    if not found:
        raise ConfigError(f"no task of split {split!r} could have other evidence: nothing can be audited")
    return found
