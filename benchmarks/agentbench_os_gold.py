"""Does AgentBench-OS's environment accept every reference and nothing else? Prints one JSON object.

    python benchmarks/agentbench_os_gold.py FOLDER --root ROOT [--every 10] [--kind readonly]

FOLDER is AgentBench's data/os_interaction, with `data`, `scripts` and `train_0317` in it; or one with `data` and
`training.json` alone, of which the tasks that need no script are played. ROOT is what prepare.py made. Every task is
played twice as a policy would: with its own example (its output is the answer, where one is asked for), which must be
right; then with nothing done and a wrong answer near the right one, which must not.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from midcourse.environments.agentbench_os import AgentBenchOSConfig, AgentBenchOSEnvironment, MachineConfig, TaskFiles
from midcourse.environments.agentbench_os.systems import ENVIRONMENT
from midcourse.environments.base import Task
from midcourse.errors import EnvironmentFault
from midcourse.types import AssistantTurn, ToolCall

OUTPUT = "The output of the OS:\n\n"
REASON_CHARACTERS = 300


def act(episode: Any, name: str, **arguments: str) -> str:
    """Make one call; return what it answers."""
    (result,) = episode.act(AssistantTurn(tool_calls=(ToolCall(name, arguments),))).results
    return result.content


def play_example(environment: AgentBenchOSEnvironment, task: Task) -> tuple[float, str]:
    """Do what the task's example does; return the reward and what was answered."""
    facts = task.evidence.facts
    episode = environment.start(task, seed=0)
    try:
        answer = facts["answer"]
        if answer is None:
            interpreter = "python3" if facts["example_language"] == "python" else "bash"
            # By itself, as the check runs it: the shell has read .bashrc, which some examples do once more.
            variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in ENVIRONMENT.items())
            script = f"env -i {variables} {interpreter} -c {shlex.quote(facts['example'])} 2>/dev/null"
            output = act(episode, "bash_action", script=script)
            answer = output.removeprefix(OUTPUT).strip() if output.startswith(OUTPUT) else ""
        act(episode, "answer_action", answer=answer)
        return episode.score(), answer
    finally:
        episode.close()


def play_wrong(environment: AgentBenchOSEnvironment, task: Task, answer: str) -> float:
    """Do nothing and give an answer next to the right one; return the reward."""
    wrong = str(int(answer) + 1) if answer.lstrip("-").isdigit() else f"{answer}x"
    episode = environment.start(task, seed=0)
    try:
        act(episode, "answer_action", answer=wrong)
        return episode.score()
    finally:
        episode.close()


def play_both(environment: AgentBenchOSEnvironment, task: Task) -> tuple[str, bool, float]:
    """Return why the reference is not accepted ("": it is), whether a wrong answer is, and seconds of the reference."""
    began = time.perf_counter()
    try:
        score, answer = play_example(environment, task)
        seconds = time.perf_counter() - began
        fooled = play_wrong(environment, task, answer) != 0.0
    except EnvironmentFault as error:
        return str(error)[:REASON_CHARACTERS], False, time.perf_counter() - began
    return "" if score == 1.0 else f"not accepted: {answer[:REASON_CHARACTERS]!r}", fooled, seconds


def check(environment: AgentBenchOSEnvironment, tasks: Sequence[Task], *, concurrency: int) -> dict[str, Any]:
    """Return how many references are accepted, which are not and why, and which wrong answers are."""
    differing: dict[str, str] = {}
    fooled: list[str] = []
    accepted: Counter[str] = Counter()
    played: Counter[str] = Counter()
    with ThreadPoolExecutor(concurrency) as pool:
        outcomes = list(pool.map(lambda task: play_both(environment, task), tasks))
    for task, (reason, is_fooled, _) in zip(tasks, outcomes, strict=True):
        group = " ".join(task.tags)
        played[group] += 1
        accepted[group] += not reason
        differing |= {task.task_id: reason} if reason else {}
        fooled += [task.task_id] if is_fooled else []
    return {
        "tasks": len(tasks),
        "accepted": sum(accepted.values()),
        "by_set_and_grading": {group: f"{accepted[group]} of {played[group]}" for group in sorted(played)},
        "differing": differing,
        "wrong_answers_accepted": fooled,
        "median_milliseconds": round(1000 * statistics.median(seconds for _, _, seconds in outcomes), 1),
    }


def opened(folder: Path, machine: MachineConfig) -> AgentBenchOSEnvironment:
    """Return the environment on the files of a folder."""
    scripts = folder / "scripts"
    training = folder / "train_0317" / "training.json"
    return AgentBenchOSConfig(
        train=TaskFiles(path=str(training if training.is_file() else folder / "training.json")),
        test=TaskFiles(
            path=str(folder / "data"),
            scripts=str(scripts) if scripts.is_dir() else None,
            without_scripts="refuse" if scripts.is_dir() else "leave_out",
        ),
        machine=machine,
    ).build()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root")
    parser.add_argument("--kind", choices=("overlay", "readonly"), default="overlay")
    parser.add_argument("--every", type=int, default=1, help="play one in so many tasks of each split")
    parser.add_argument("--concurrency", type=int, default=1, help="tasks that are played at once")
    parser.add_argument("--splits", nargs="+", choices=("train", "test"), default=["test", "train"])
    options = parser.parse_args()
    if not (options.folder / "data").is_dir():
        sys.exit(f"{options.folder / 'data'} is not there")
    machine = MachineConfig(kind=options.kind, root=options.root, script_seconds=600.0, command_seconds=60.0)
    environment = opened(options.folder, machine)
    found = {
        split: check(environment, environment.tasks(split)[:: options.every], concurrency=options.concurrency)
        for split in options.splits
    }
    print(json.dumps({"kind": options.kind, **found}, indent=2))


if __name__ == "__main__":
    main()
