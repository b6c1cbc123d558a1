"""The order of training: tasks -> waves of groups -> advantages -> update -> new weights -> record -> checkpoint.

On one machine's CPU a run that was killed and resumed ends with the same weights and metrics, bit for bit, as one
that never stopped; only metrics under time/ differ: seconds, and how many prompt tokens this process asked the engine
for and how many of them its cache held (a wave that is read from the journal asks for none). What makes it so: draws
are keyed by seed, update, task, attempt and turn; the order of tasks follows from the seed; a wave is journalled whole
and begins with an empty prefix cache, so that it does not matter whether the wave before it was rolled out or read
from the journal.
"""

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch

from midcourse.engines.base import EngineUsage
from midcourse.environments.base import Task
from midcourse.errors import ConfigError, OccupiedError
from midcourse.methods.base import LearningMethod, Method, RolloutTools, RunFacts, ScheduledMethod
from midcourse.recording.journal import Journal
from midcourse.recording.metrics import group_metrics
from midcourse.recording.settings import check_same_settings
from midcourse.training.checkpoint import TrainingState, has_checkpoints, load_latest, save_checkpoint
from midcourse.training.config import TrainingConfig
from midcourse.training.policy import Policy
from midcourse.training.update import Updater
from midcourse.training.world import Alone, World
from midcourse.types import Group

Evaluate = Callable[[int], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""update -> scores of the current weights as plain values."""
Progress = Callable[[int, Mapping[str, float]], None]
"""Told of every update that is done, with its metrics."""


class Recorder(Protocol):
    """Where a run is written. What a call was given is in its file when the call returns."""

    def write_metrics(self, update: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of an update."""
        ...

    def write_groups(self, update: int, groups: Sequence[Group]) -> None:
        """Store the groups of an update."""
        ...

    def write_evaluation(self, update: int, evaluation: Mapping[str, Any]) -> None:
        """Append the scores after an update; 0 is before the first."""
        ...

    def truncate_after(self, update: int) -> None:
        """Forget what was written for later updates: they come again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingParts:
    """Everything that training works with, already built."""

    policy: Policy
    tools: RolloutTools  # its engine holds the policy's own weights
    method: Method
    recorder: Recorder
    tasks: Sequence[Task]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the numbers follow from, key -> value as TOML writes it. A run that is resumed must have the same."""
    evaluate: Evaluate | None = None
    progress: Progress | None = None
    world: World = field(default_factory=Alone)  # the processes that train; this one is the main one of them


def train(
    parts: TrainingParts,
    config: TrainingConfig,
    *,
    seed: int,
    folder: Path,
    resume: bool = False,
    evaluate_every: int = 0,
    evaluate_at_start: bool = True,
) -> None:
    """Train the policy in place, from the start or from where the run in `folder` was cut off.

    Args:
        parts: policy, engine, method, tasks and where to write.
        config: how many updates of what size.
        seed: of the order of tasks and of every draw.
        folder: the run's; gets checkpoints/ and journal/.
        resume: go on from the newest whole checkpoint, or from the journal if there is none yet.
        evaluate_every: updates between evaluations; 0 evaluates after the last one (and at the start) only.
        evaluate_at_start: score the policy before the first update too.

    Raises:
        OccupiedError: a folder that holds a run while `resume` is off, or one with other settings.
        ConfigError: no tasks, or more tasks an update than there are; a resumed run whose order of
            tasks would be another one, or which has more updates already.
        CheckpointError: a checkpoint cannot be written, or none of them can be read.
        TrainingError: gradients stayed non-finite.
    """
    asyncio.run(
        train_async(
            parts,
            config,
            seed=seed,
            folder=folder,
            resume=resume,
            evaluate_every=evaluate_every,
            evaluate_at_start=evaluate_at_start,
        )
    )


async def train_async(
    parts: TrainingParts,
    config: TrainingConfig,
    *,
    seed: int,
    folder: Path,
    resume: bool = False,
    evaluate_every: int = 0,
    evaluate_at_start: bool = True,
) -> None:
    """Do as `train` inside a running event loop, the one that the engine works in."""
    check_tasks(parts.tasks, config.tasks_per_update)
    with repeatable(parts.policy.device, threads=parts.policy.config.threads):
        run = _Run(parts, config, seed=seed, folder=folder)
        done = run.begin(resume=resume)
        if parts.evaluate is not None and evaluate_at_start and done == 0:
            await run.evaluate(0)
        order = draw_tasks(len(parts.tasks), config.tasks_per_update, seed=seed)
        for update, indices in enumerate(islice(order, done, config.updates), start=done + 1):
            await run.advance(update, [parts.tasks[index] for index in indices])
            is_last = update == config.updates
            if parts.evaluate is not None and (is_last or (evaluate_every and update % evaluate_every == 0)):
                await run.evaluate(update)
            if is_last or update % config.checkpoint_every == 0:
                run.save(update)


@contextmanager
def repeatable(device: torch.device, *, threads: int) -> Iterator[None]:
    """Let torch compute the same bits each time, as far as it can on the device."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    # A GPU has no deterministic form of some operations: there it is a wish, on the CPU it holds.
    torch.use_deterministic_algorithms(True, warn_only=device.type != "cpu")
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic)


def check_tasks(tasks: Sequence[Task], tasks_per_update: int) -> None:
    """Raise ConfigError unless an update's tasks can be drawn without taking one twice."""
    if not tasks:
        raise ConfigError("there are no tasks to train on")
    if len({task.task_id for task in tasks}) != len(tasks):
        raise ConfigError("task ids must differ: draws are keyed by them")
    if tasks_per_update > len(tasks):
        raise ConfigError(f"training.tasks_per_update must be at most the {len(tasks)} tasks: got {tasks_per_update}")


def draw_tasks(num_tasks: int, tasks_per_update: int, *, seed: int) -> Iterator[list[int]]:
    """Yield without end the task indices of each update; every epoch holds each task once, in an order of its own.

    An update that crosses into the next epoch takes no task twice: the tasks it holds already are moved back in that
    epoch's order.
    """
    pending: list[int] = []
    epoch = 0
    while True:
        while len(pending) < tasks_per_update:
            fresh = list(range(num_tasks))
            random.Random(f"tasks:{seed}:{epoch}").shuffle(fresh)
            held = set(pending)
            first = [index for index in fresh if index not in held][: tasks_per_update - len(pending)]
            taken = set(first)
            pending += first + [index for index in fresh if index not in taken]
            epoch += 1
        yield pending[:tasks_per_update]
        pending = pending[tasks_per_update:]


class _Run:
    """One call of `train`: the parts with what only this run knows."""

    def __init__(self, parts: TrainingParts, config: TrainingConfig, *, seed: int, folder: Path) -> None:
        self.parts = parts
        self.config = config
        self.seed = seed
        self.checkpoints = folder / "checkpoints"
        self.journal = Journal(folder / "journal")
        self.updater = Updater(parts.policy, parts.method.objective, config, world=parts.world)
        self.scores: tuple[int, Mapping[str, Any]] | None = None  # the last ones, and after which update
        self.data = {"num_tasks": len(parts.tasks), "tasks_per_update": config.tasks_per_update, "seed": seed}
        if isinstance(parts.method, LearningMethod):
            parts.method.begin(run_facts(parts.policy, parts.tasks, seed=seed, updates=config.updates))

    def begin(self, *, resume: bool) -> int:
        """Return the updates that are done, with their weights in place and the record cut back to them."""
        if not resume:
            if has_checkpoints(self.checkpoints):
                raise OccupiedError(f"{self.checkpoints} holds a run: resume it, or choose another folder")
            self.journal.clear()
            return 0
        state = load_latest(self.checkpoints, policy=self.parts.policy, updater=self.updater)
        if state is None:
            # Not even the evaluation before the first update is kept: it is made again.
            self.parts.recorder.truncate_after(-1)
            return 0
        check_same_settings(state.settings, self.parts.settings, place=self.checkpoints / f"step_{state.update}")
        if dict(state.data) != self.data:
            raise ConfigError(f"the run was started with {dict(state.data)}, which must not change: got {self.data}")
        if state.update > self.config.updates:
            raise ConfigError(
                f"training.updates = {self.config.updates}: the run has {state.update} updates already; "
                f"expected at least {state.update}"
            )
        self.parts.recorder.truncate_after(state.update)
        if isinstance(self.parts.method, ScheduledMethod):
            self.parts.method.restore(state.method)
        if isinstance(self.parts.method, LearningMethod):
            self.parts.method.load_state_dict(state.arrays)
        return state.update

    async def advance(self, update: int, tasks: Sequence[Task]) -> None:
        """Make one update of the policy, from tasks to metrics."""
        method = self.parts.method
        if isinstance(method, ScheduledMethod):
            phase = method.phase(update)
            self.updater.enter(phase, method.objective_in(phase))
        if isinstance(method, LearningMethod):
            method.begin_update(update, tasks)
        started, asked = time.monotonic(), self.parts.tools.engine.usage()
        groups = await self.collect(update, tasks)
        collected = time.monotonic()
        advantages = [method.advantages(group) for group in groups]
        losses = self.updater.update(groups, advantages)
        await self.parts.tools.engine.update_weights(None, update)
        metrics = {
            **_timed(group_metrics(groups)),
            **method.statistics(groups),
            **losses,
            **_prompt_metrics(asked, self.parts.tools.engine.usage()),
            "time/rollout": collected - started,
            "time/update": time.monotonic() - collected,
        }
        if isinstance(method, ScheduledMethod):
            method.finish_update(groups)
        if isinstance(method, LearningMethod):
            learning = time.monotonic()
            metrics |= method.learn(groups, update=update)
            metrics["time/learn"] = time.monotonic() - learning
        self.parts.recorder.write_groups(update, groups)
        self.parts.recorder.write_metrics(update, metrics)
        if self.parts.progress is not None:
            self.parts.progress(update, metrics)

    async def collect(self, update: int, tasks: Sequence[Task]) -> list[Group]:
        """Return the groups of the tasks, wave after wave: from the journal where a wave is there, else rolled out."""
        groups: list[Group] = []
        size = self.parts.tools.rollout.groups_per_wave
        for wave, start in enumerate(range(0, len(tasks), size)):
            part = tasks[start : start + size]
            request = {**self.data, "update": update, "tasks": [task.task_id for task in part]}
            settings = self.parts.settings
            found = self.journal.read(update=update, wave=wave, request=request, settings=settings)
            if found is None:
                # Drops every cached prefix, see the module's text. Rollouts of update U use the weights of U - 1.
                await self.parts.tools.engine.update_weights(None, update - 1)
                if self.parts.tools.judge is not None:
                    await self.parts.tools.judge.engine.update_weights(None, 0)
                found = await self.roll_out(update, part)
                self.journal.write(found, update=update, wave=wave, request=request, settings=settings)
            groups += found
        return groups

    async def roll_out(self, update: int, tasks: Sequence[Task]) -> list[Group]:
        """Return one group a task, collected together; if one fails the others are ended, too."""
        running = [
            asyncio.ensure_future(self.parts.method.collect(task, self.parts.tools, seed=self.seed, update=update))
            for task in tasks
        ]
        try:
            return list(await asyncio.gather(*running))
        finally:
            for future in running:
                future.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def evaluate(self, update: int) -> None:
        """Score the current weights, from an empty prefix cache."""
        assert self.parts.evaluate is not None
        await self.parts.tools.engine.update_weights(None, update)
        found = self.parts.evaluate(update)
        scores = await found if inspect.isawaitable(found) else found
        self.parts.recorder.write_evaluation(update, scores)
        self.scores = (update, scores)

    def save(self, update: int) -> None:
        """Write a checkpoint; the journal of what it holds is not needed any more."""
        method = self.parts.method
        kept = method.state() if isinstance(method, ScheduledMethod) else {}
        state = TrainingState(
            update=update,
            data=self.data,
            settings=self.parts.settings,
            method=kept,
            arrays=method.state_dict() if isinstance(method, LearningMethod) else {},
        )
        save_checkpoint(
            self.checkpoints,
            policy=self.parts.policy,
            updater=self.updater,
            state=state,
            keep=self.config.keep_checkpoints,
            evaluation=self.scores[1] if self.scores is not None and self.scores[0] == update else None,
        )
        self.journal.drop_up_to(update)


def run_facts(policy: Policy, tasks: Sequence[Task], *, seed: int, updates: int) -> RunFacts:
    """Return what a method that learns is told of a run."""
    hidden_size = policy.model.config.get_text_config().hidden_size
    return RunFacts(seed=seed, updates=updates, hidden_size=hidden_size, tasks=tasks)


def _timed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics with awaited seconds under time/, whose values may differ between equal runs."""
    return {name.replace("rollout/seconds/", "time/rollout/"): value for name, value in metrics.items()}


def _prompt_metrics(before: EngineUsage, after: EngineUsage) -> dict[str, float]:
    """Return the prompt tokens asked for between two readings, those that the engine did not compute again, and how
    long weights were on their way where they have one.
    """
    synced = {"time/engine/weight_sync": after.sync_seconds - before.sync_seconds} if after.syncs > before.syncs else {}
    return {
        "time/engine/prompt_tokens": float(after.prompt_tokens - before.prompt_tokens),
        "time/engine/prompt_tokens_reused": float(after.prompt_tokens_reused - before.prompt_tokens_reused),
        **synced,
    }
