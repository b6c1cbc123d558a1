"""Tasks in AgentBench's form for tests, made up, and worlds of them on every kind of system that works here."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from midcourse.environments.agentbench_os import AgentBenchOSConfig, AgentBenchOSEnvironment, MachineConfig, TaskFiles
from midcourse.environments.base import Episode
from midcourse.errors import ConfigError
from midcourse.types import AssistantTurn, ToolCall, ToolResult

ROOT_VARIABLE = "MIDCOURSE_AGENTBENCH_OS_ROOT"
HOW = "make one with `python -m midcourse.environments.agentbench_os.prepare FOLDER` (debootstrap, bubblewrap, root)"
KINDS = ("readonly", "overlay")

COUNT = {
    "description": "How many files in your home end in .txt?",
    "create": {"init": "cd ~; touch a.txt b.txt c.log; echo $RANDOM > draw"},
    "evaluation": {
        "check": [None, {"language": "python", "file": "check/integer-match.py"}],
        "example": "find ~ -name '*.txt' | wc -l",
    },
}
CHANGE = {
    "description": "Make ~/notes readable to its owner alone.",
    "create": {"init": "echo secret > ~/notes; chmod 644 ~/notes"},
    "evaluation": {
        "check": {"code": '[ "$(stat -c %a ~/notes)" = 600 ]'},
        "example": {"code": "chmod 600 ~/notes"},
    },
    "labels": ["permission"],
}
MATCH = {
    "description": "What is the value of the variable colour?",
    "start": "colour=blue; cd /tmp",
    "evaluation": {"match": "blue"},
}


def write_tasks(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "tasks.json"
    path.write_text(json.dumps(list(records)))
    return str(path)


def machine(kind: str, **settings: Any) -> MachineConfig:
    """Return settings of a system, or skip with what is missing here."""
    root = os.environ.get(ROOT_VARIABLE) if kind == "overlay" else None
    if kind == "overlay" and root is None:
        pytest.skip(f"{ROOT_VARIABLE} names no prepared root; {HOW}")
    return MachineConfig(kind=kind, root=root, **settings)  # pyright: ignore[reportArgumentType]


def world(folder: Path, kind: str, *records: dict[str, Any], answers: str = "exact", **settings: Any):
    """Return an environment of these tasks, or skip with what is missing here."""
    config = AgentBenchOSConfig(
        train=TaskFiles(path=write_tasks(folder, *records)),
        answers=answers,  # pyright: ignore[reportArgumentType]
        machine=machine(kind, **settings),
    )
    try:
        return config.build()
    except ConfigError as error:
        pytest.skip(f"no {kind} system works here: {error}")


def begin(environment: AgentBenchOSEnvironment, number: int = 0, *, seed: int = 0):
    return environment.start(environment.tasks("train")[number], seed=seed)


def call(episode: Episode, name: str, **arguments: Any) -> ToolResult:
    (result,) = episode.act(AssistantTurn(tool_calls=(ToolCall(name, arguments),))).results
    return result


def bash(episode: Episode, script: str) -> str:
    """Run a script that is no error, and return what it printed."""
    result = call(episode, "bash_action", script=script)
    assert not result.is_error, result.content
    return "" if result.content == "The output of the OS is empty." else result.content.split("\n\n", 1)[1]
