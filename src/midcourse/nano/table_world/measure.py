"""What a table world policy can do: `python -m midcourse.nano.table_world.measure [FOLDER]` prints one JSON object.

Success by difficulty, and by number of traps and kind of request; the share of groups of eight whose rewards differ;
behind the cue, success on the same tasks; and how uncertain the policy is at the beginning of each sort of turn.
"""

import asyncio
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from midcourse.assembly import Parts, assembled
from midcourse.branching.anchors import anchor_entropy
from midcourse.config import build_config
from midcourse.environments.base import Task
from midcourse.environments.table_world.statements import look_up
from midcourse.nano.settings import table_world_settings
from midcourse.nano.table_world.chat import ANSWER, CHECK, VOCABULARY
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.types import Trajectory

GROUP_SIZE = 8
MEASURE_SEED = 999
"""Of the rollouts, and of the databases where none is asked for: no benchmark draws with it."""
CONCURRENT = 128
SORTS: Mapping[str, str] = {
    look_up("").partition("'")[0]: "look up",
    "SELECT name FROM pragma_table_info": "columns",
    "SELECT": "find",
    ANSWER: "answer",
}
"""How a turn begins -> what sort it is; the first that fits. Other turns change the tables."""


Attempts = tuple[Task, Sequence[Trajectory]]


async def groups_of(parts: Parts, tasks: Sequence[Task]) -> list[Attempts]:
    """Return a group of plain rollouts of each task."""

    async def attempt(task: Task, number: int) -> Trajectory:
        tools = parts.tools
        return await run_episode(
            task,
            engine=tools.engine,
            chat=tools.chat,
            environment=tools.environment,
            config=tools.rollout,
            key=RolloutKey(seed=MEASURE_SEED, update=0, task_id=task.task_id, attempt=number),
        )

    found: list[Attempts] = []
    at_once = CONCURRENT // GROUP_SIZE
    for start in range(0, len(tasks), at_once):
        wave = tasks[start : start + at_once]
        trajectories = await asyncio.gather(*(attempt(task, number) for task in wave for number in range(GROUP_SIZE)))
        found += [
            (task, trajectories[index * GROUP_SIZE : (index + 1) * GROUP_SIZE]) for index, task in enumerate(wave)
        ]
    return found


def success(groups: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """Return how many rollouts succeed, of how many groups one does, and of how many the rewards differ.

    Args:
        groups: rewards of each group's rollouts; None, of one that failed, counts in `failed` alone.
    """
    found = [[reward for reward in rewards if reward is not None] for rewards in groups]
    scored = [rewards for rewards in found if rewards]
    return {
        "groups": len(scored),
        "failed": sum(map(len, groups)) - sum(map(len, scored)),
        "pass@1": statistics.fmean(reward for rewards in scored for reward in rewards),
        f"pass@{GROUP_SIZE}": statistics.fmean(any(rewards) for rewards in scored),
        "mixed_groups": statistics.fmean(len(set(rewards)) > 1 for rewards in scored),
    }


def by_tag(groups: Sequence[Attempts]) -> dict[str, dict[str, float]]:
    """Return `success` for each tag of the tasks."""
    tags = sorted({tag for task, _ in groups for tag in task.tags})
    return {tag: success(rewards_of([group for group in groups if tag in group[0].tags])) for tag in tags}


def rewards_of(groups: Sequence[Attempts]) -> list[list[float | None]]:
    """Return the rewards of each group."""
    return [[trajectory.reward for trajectory in trajectories] for _, trajectories in groups]


def sort_of(text: str) -> str:
    """Return which sort of turn a text is."""
    return next((sort for start, sort in SORTS.items() if text.startswith(start)), "change")


async def uncertainty(parts: Parts, trajectories: Sequence[Trajectory]) -> dict[str, dict[str, float]]:
    """Return, for each sort of turn, quartiles of the normalised entropy of its first tokens."""
    temperature = parts.tools.rollout.temperature
    found: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            prompt_ids, turn_ids = trajectory.token_ids[: turn.start], trajectory.token_ids[turn.start : turn.end]
            scores = await parts.tools.engine.score(prompt_ids, turn_ids, temperature=temperature)
            sort = sort_of(parts.tools.chat.decode(turn_ids))
            found[sort].append(anchor_entropy(scores.entropies, len(VOCABULARY)))
    return {
        sort: dict(zip(("low", "median", "high"), statistics.quantiles(values, n=4), strict=True))
        for sort, values in sorted(found.items())
        if len(values) > 1
    }


async def measure(path: str, *, seed: int = MEASURE_SEED, tasks: int = 80) -> dict[str, Any]:
    """Return what the module's docstring lists.

    Args:
        path: of the policy; "nano-table-world" for the one that ships.
        seed: of the databases.
        tasks: easy ones, hard ones, and of each in the ood split.
    """
    settings = table_world_settings("grpo", seed=seed, updates=1, folder=Path("unused"))
    settings["policy"]["path"] = path
    settings["environment"] |= {"seed": seed, "hard_fraction": 0.5, "test_tasks": 3 * tasks}
    async with assembled(build_config(settings)) as parts:
        environment = parts.tools.environment
        chosen = {
            "easy": environment.tasks("easy")[:tasks],
            "hard": environment.tasks("hard")[:tasks],
            "ood": environment.tasks("ood")[: 2 * tasks],
        }
        groups = {name: await groups_of(parts, list(found)) for name, found in chosen.items()}
        cued = await groups_of(parts, [replace(task, query=f"{CHECK} {task.query}") for task in chosen["hard"]])
        played = [trajectory for _, members in groups["hard"] for trajectory in members[:1]]
        lengths = [len(trajectory.token_ids) for _, members in groups["hard"] for trajectory in members]
        return {
            "success": {name: success(rewards_of(found)) for name, found in groups.items()},
            "cued": success(rewards_of(cued)),
            "by_tag": {name: by_tag(groups[name]) for name in ("hard", "ood")},
            "uncertainty": await uncertainty(parts, played),
            "tokens": {"mean": statistics.fmean(lengths), "most": max(lengths)},
        }


def main() -> None:
    """Measure and print."""
    path = sys.argv[1] if len(sys.argv) > 1 else "nano-table-world"
    print(json.dumps(asyncio.run(measure(path)), indent=1))


if __name__ == "__main__":
    main()
