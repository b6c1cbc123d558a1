"""RAIL's rivals in the world of letters: who writes how many turns, how uncertain, how it ends, by attempt and turn."""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.interventions.scripted_world import TASK
from tests.rollout.branch_world import KEY, VOCABULARY, KnowingEngine, SeededWorld, make_tools

from midcourse.environments.base import Task
from midcourse.errors import EngineError
from midcourse.methods.base import Method, RunFacts
from midcourse.types import Group

TASKS = tuple(
    replace(TASK, task_id=f"t{number}", query=f"find {word}") for number, word in enumerate(("it", "a b", "c"))
)
KEYS = [replace(KEY, task_id=task.task_id) for task in (TASK, *TASKS)]
DRAWS = {
    replace(key, attempt=attempt).turn_seed(turn): (attempt, turn)
    for key in KEYS
    for attempt in range(40)
    for turn in range(3)
}
"""Seed of a draw -> whose it is: which attempt's, at which turn."""


def engine_of(
    *,
    turns: Callable[[int], int] = lambda attempt: 2,
    wins: Collection[int] = (),
    fails: Collection[tuple[int, int]] = (),
    silent: Collection[tuple[int, int]] = (),
    entropies: Mapping[tuple[int, int], float] = {},
    kind: type[KnowingEngine] = KnowingEngine,
    **settings: Any,
) -> KnowingEngine:
    """Return an engine whose attempts look, and press a key in their last turn; every draft names itself.

    Args:
        turns: of an attempt, that it ends with.
        wins: attempts that press the right key.
        fails: (attempt, turn) whose request is an engine's error.
        silent: (attempt, turn) that call no tool, so that nothing answers.
        entropies: share of log(vocabulary) of the drafts of (attempt, turn), else 1/4.
        kind: of engine.
        settings: of the scripted engine.
    """

    def say(prompt_ids: Sequence[int], sampling: Any) -> Any:
        attempt, turn = DRAWS[sampling.seed]
        if (attempt, turn) in fails:
            return EngineError("down")
        ends = turn >= turns(attempt) - 1
        call = "" if (attempt, turn) in silent else "+b" if ends and attempt in wins else "+a" if ends else "+l"
        return [*map(ord, f"{attempt},{turn}{call};")]

    def entropy_of(sampling: Any) -> float:
        return entropies.get(DRAWS[sampling.seed], 0.25) * math.log(VOCABULARY)

    return kind(say, entropy_of=entropy_of, **settings)


def collect(method: Method, engine: Any, *, task: Task = TASK, world: Any = None, temperature: float = 0.8) -> Group:
    """Return the group of one task."""
    (group,) = collect_all(method, engine, [task], world=world, temperature=temperature)
    return group


def collect_all(
    method: Method, engine: Any, tasks: Sequence[Task], *, world: Any = None, temperature: float = 0.8
) -> list[Group]:
    """Return the groups of tasks that are rolled out together."""
    tools = make_tools(engine, world or SeededWorld(), temperature=temperature)

    async def together() -> list[Group]:
        return list(
            await asyncio.gather(*(method.collect(task, tools, seed=KEY.seed, update=KEY.update) for task in tasks))
        )

    return asyncio.run(together())


def begun(method: Any, tasks: Sequence[Task] = TASKS, *, update: int = KEY.update) -> Any:
    """Return the method as it stands in an update of all tasks."""
    method.begin(RunFacts(seed=KEY.seed, updates=10, hidden_size=4, tasks=tasks))
    method.begin_update(update, tasks)
    return method


def branches(group: Group) -> list[tuple[int | None, int, Sequence[int]]]:
    """Return the parent, turn and rollouts of each branch."""
    return [(record.parent, record.turn, record.rollouts) for record in group.branches]


def attempts(group: Group) -> list[str]:
    """Return who wrote each turn of each member, as "attempt,turn"."""
    return [" ".join(turn.message.content for turn in member.trajectory.turns) for member in group.members]


def world_seed(attempt: int, task_id: str = TASK.task_id) -> int:
    """Return the seed of the world that an attempt from the start plays in."""
    return replace(KEY, task_id=task_id, attempt=attempt).turn_seed(0, "environment")


def failures(group: Group) -> list[str | None]:
    """Return the kind of failure of each member."""
    return [member.trajectory.failure for member in group.members]
