"""Does AgentBench-DB's environment accept every reference and nothing else? Prints one JSON object.

    python benchmarks/agentbench_db_gold.py FOLDER [--backend sqlite mariadb] [--url mysql://root@127.0.0.1:3306]

FOLDER holds the official standard.jsonl (docs/agentbench_db.md says where it is from). Every task is played as a policy
would. A change: its reference statement, scored by the file's own hash; then nothing at all, and a dropped table, which
must be worth nothing. A question, on SQLite alone, since no database decides on it: its reference answer written in
several ways, then many wrong ones.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from midcourse.environments.agentbench_db import (
    AgentBenchDBConfig,
    AgentBenchDBEnvironment,
    MariaDBConfig,
    ServerConfig,
    TaskFile,
)
from midcourse.environments.agentbench_db.answers import answer_matches
from midcourse.environments.base import Task
from midcourse.types import AssistantTurn, ToolCall

FILE = "standard.jsonl"


def reward(environment: AgentBenchDBEnvironment, task: Task, *calls: tuple[str, Any]) -> tuple[float, str]:
    """Play calls, one a turn; return the reward and the first error that a call met."""
    arguments = {"sql_query": "query", "answer_action": "answer"}
    episode = environment.start(task, seed=0)
    error = ""
    try:
        for name, argument in calls:
            turn = AssistantTurn(tool_calls=(ToolCall(name, {arguments[name]: argument}),))
            (result,) = episode.act(turn).results
            error = error or (result.content if result.is_error else "")
        return episode.score(), error
    finally:
        episode.close()


def right_answers(values: Sequence[str]) -> list[Any]:
    """Return the ways in which a policy may write the reference down."""
    written = [list(values), json.dumps(values), str([(value,) for value in values])]
    return [*written, values[0], f" {values[0]} ".upper()] if len(values) == 1 else [*written, list(reversed(values))]


def wrong_answers(task: Task, others: Sequence[Task]) -> Iterator[Any]:
    """Yield answers that are wrong: other tasks' references, one value more, one less, a number next to it, nothing."""
    values = task.evidence.facts["values"]
    for other in others:
        given = other.evidence.facts["values"]
        if {plain(value) for value in given} != {plain(value) for value in values}:
            yield list(given)
    yield [*values, "12345.5"]
    yield f"{values[0]} or 12345.5"
    yield ""
    yield []
    if len(values) > 1:
        yield list(values[1:])
    if isinstance(number := plain(values[0]), float):
        yield from (str(number + 1), str(number - 1), str(-number - 1), str(number + 0.02))
    else:
        yield from (f"{values[0]}x", values[0][:-1], f"not {values[0]}")


def plain(value: str) -> float | str:
    """Return a value as a number where it is one; "none" is 0, as AgentBench has it."""
    try:
        return 0.0 if value == "none" else float(value.replace(",", ""))
    except ValueError:
        return value


def check_changes(environment: AgentBenchDBEnvironment, tasks: Sequence[tuple[int, Task]]) -> dict[str, Any]:
    """Return how many references of changes are accepted, which are not, and what was accepted without any."""
    differing: dict[int, str] = {}
    seconds, idle, dropped = [], 0, 0
    for position, task in tasks:
        began = time.perf_counter()
        score, error = reward(environment, task, ("sql_query", task.evidence.facts["statement"]))
        seconds.append(time.perf_counter() - began)
        if score != 1.0:
            differing[position] = error or "another state than the file's hash"
        idle += reward(environment, task, ("answer_action", "done"))[0] == 1.0
        table = task.evidence.facts["tables"][0]
        dropped += reward(environment, task, ("sql_query", f"DROP TABLE `{table}`"))[0] == 1.0
    return {
        "tasks": len(tasks),
        "accepted": len(tasks) - len(differing),
        "differing": differing,
        "accepted_without_a_change": idle,
        "accepted_with_the_table_dropped": dropped,
        "median_milliseconds": round(1000 * statistics.median(seconds), 2),
    }


def check_questions(environment: AgentBenchDBEnvironment, tasks: Sequence[tuple[int, Task]]) -> dict[str, Any]:
    """Return for how many questions all right answers are accepted, and for how many any wrong one is."""
    refused, fooled, tried = [], [], 0
    others = [task for _, task in tasks]
    for position, task in tasks:
        right = [
            reward(environment, task, ("answer_action", answer))[0]
            for answer in right_answers(task.evidence.facts["values"])
        ]
        # The comparison alone: there are ten thousand of them, and no episode treats them otherwise.
        values = task.evidence.facts["values"]
        wrong = [float(answer_matches(answer, values)) for answer in wrong_answers(task, others)]
        tried += len(wrong)
        refused += [position] if min(right) < 1.0 else []
        fooled += [position] if max(wrong) > 0.0 else []
    return {
        "tasks": len(tasks),
        "accepted": len(tasks) - len(refused),
        "refused": refused,
        "wrong_answers_tried": tried,
        "tasks_with_a_wrong_answer_accepted": fooled,
    }


def opened(folder: Path, backend: str, url: str | None = None) -> AgentBenchDBEnvironment:
    """Return the environment on one backend."""
    return AgentBenchDBConfig(
        test=TaskFile(path=str(folder / FILE)),
        backend=backend,  # pyright: ignore[reportArgumentType] (checked by argparse)
        mariadb=MariaDBConfig(start_seconds=600.0) if backend == "mariadb" else MariaDBConfig(),
        server=ServerConfig(url=url if backend == "server" else None),
    ).build()


def numbered(environment: AgentBenchDBEnvironment, *, questions: bool) -> list[tuple[int, Task]]:
    """Return the questions or the changes with their places in the file."""
    tasks = enumerate(environment.tasks("test"))
    return [(place, task) for place, task in tasks if ("operation:select" in task.tags) == questions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", nargs="+", choices=("sqlite", "mariadb", "server"), default=["sqlite", "mariadb"])
    parser.add_argument("--url", help="of backend server")
    options = parser.parse_args()
    if not (options.folder / FILE).is_file():
        sys.exit(f"{options.folder / FILE} is not there")
    on_sqlite = opened(options.folder, "sqlite")
    found: dict[str, Any] = {
        "questions": check_questions(on_sqlite, numbered(on_sqlite, questions=True)),
        "changes": {},
    }
    for backend in options.backend:
        environment = opened(options.folder, backend, options.url)
        try:
            found["changes"][backend] = check_changes(environment, numbered(environment, questions=False))
        finally:
            environment.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
