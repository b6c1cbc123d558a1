"""AgentBench's OS tasks (arXiv:2308.03688; RAIL, arXiv:2608.05080, App. B.1): config, splits, episodes."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.environments.agentbench_os.episode import MAX_TURNS, ShellEpisode, random_seed
from midcourse.environments.agentbench_os.guide import ROLE_GUIDE, SYSTEM_PROMPT
from midcourse.environments.agentbench_os.machine import Machine
from midcourse.environments.agentbench_os.settings import MachineConfig, TaskFiles
from midcourse.environments.agentbench_os.systems import SystemSandbox
from midcourse.environments.agentbench_os.task_file import Problem
from midcourse.environments.agentbench_os.tools import TOOLS
from midcourse.environments.base import ENVIRONMENTS, Task
from midcourse.environments.replay import ReplayingEpisode
from midcourse.errors import ConfigError

SPLITS = ("train", "test")


@ENVIRONMENTS.register("agentbench_os")
class AgentBenchOSConfig(BaseModel):
    """AgentBench-OS: answer questions about a Linux system, or change it, with shell commands; AgentBench's files."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    train: TaskFiles = Field(default_factory=TaskFiles)
    """Tasks of the train split."""
    test: TaskFiles = Field(default_factory=TaskFiles)
    """Tasks of the test split."""
    answers: Literal["exact", "tolerant"] = "exact"
    """exact: as AgentBench's checks compare. tolerant: also as RAIL does (any case, within a short sentence)."""
    machine: MachineConfig = Field(default_factory=MachineConfig)
    """The system of an episode."""

    @property
    def turn_limits(self) -> Mapping[str, float]:
        """Setting -> seconds after which what a turn runs is ended."""
        return {"machine.command_seconds": self.machine.command_seconds}

    def build(self) -> "AgentBenchOSEnvironment":
        """Return the environment, a system tried.

        Raises:
            ConfigError: no file is named, or no system can be run here.
            DataError: a file cannot be used.
        """
        splits = {split: files.read() for split, files in (("train", self.train), ("test", self.test)) if files.path}
        if not splits:
            raise ConfigError(
                "environment.train.path or environment.test.path must name a file (docs/agentbench_os.md)"
            )
        return AgentBenchOSEnvironment(splits, sandbox=self.machine.build(), is_tolerant=self.answers == "tolerant")


class AgentBenchOSEnvironment:
    """Tasks and episodes of problems that have been read.

    Args:
        splits: split -> problems.
        sandbox: starts the systems.
        is_tolerant: compare answers as RAIL does.
    """

    name = "agentbench_os"
    system_prompt = SYSTEM_PROMPT
    tools = TOOLS
    max_turns = MAX_TURNS
    role_guide = ROLE_GUIDE

    def __init__(
        self, splits: Mapping[str, Sequence[Problem]], *, sandbox: SystemSandbox, is_tolerant: bool = False
    ) -> None:
        self._sandbox = sandbox
        self._is_tolerant = is_tolerant
        self._problems = {
            (split, problem.task_id): problem for split, problems in splits.items() for problem in problems
        }
        self._tasks = {split: tuple(problem.task(split) for problem in problems) for split, problems in splits.items()}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, in the files' order; set and way of grading are in their tags.

        Raises:
            ConfigError: no such split, or no file for it.
        """
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r} of agentbench_os; known: {', '.join(sorted(SPLITS))}")
        if split not in self._tasks:
            raise ConfigError(f"environment.{split}.path must name a file: split {split!r} is asked for")
        return self._tasks[split]

    def start(self, task: Task, *, seed: int) -> ReplayingEpisode:
        """Return a fresh episode on a system of its own; it forks by doing again what was done.

        Raises:
            EnvironmentFault: no system can be started, or the task's own scripts fail.
        """
        moments: dict[bytes, int] = {}
        problem = self._problems[task.split, task.task_id]
        begin = partial(self._begin, problem, random_seed(problem.task_id, seed), moments)
        return ReplayingEpisode(begin, episode=begin())

    def _begin(self, problem: Problem, seed: int, moments: dict[bytes, int]) -> ShellEpisode:
        machine = Machine(self._sandbox, seed=seed)
        try:
            return ShellEpisode(problem, machine=machine, seed=seed, moments=moments, is_tolerant=self._is_tolerant)
        except BaseException:
            machine.close()
            raise
