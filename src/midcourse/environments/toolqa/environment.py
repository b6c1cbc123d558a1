"""ToolQA's coffee questions (arXiv:2306.13304; RAIL, App. B.1): config, splits, episodes."""

import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.environments.base import ENVIRONMENTS, ForkableEpisode, Task
from midcourse.environments.replay import ReplayingEpisode
from midcourse.environments.sandbox import SandboxConfig
from midcourse.environments.toolqa.episode import MAX_TURNS, TableEpisode
from midcourse.environments.toolqa.guide import ROLE_GUIDE, system_prompt
from midcourse.environments.toolqa.interpreter import Interpreter, Workshop
from midcourse.environments.toolqa.packages import pandas_packages
from midcourse.environments.toolqa.questions import Question, make_questions, read_questions
from midcourse.environments.toolqa.table import PriceTable
from midcourse.environments.toolqa.tools import TOOLS
from midcourse.errors import ConfigError, DataError, EnvironmentFault

SPLITS = ("train", "test")


class QuestionSet(BaseModel):
    """What a split consists of: questions from files, and then questions made from the table."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    paths: tuple[str, ...] = ()
    """Files of questions, one after the other; JSON lines or one JSON list (docs/toolqa.md says where they are)."""
    sha256: tuple[str, ...] = ()
    """Digests that the files must have, one a file in their order; none reads any file."""
    first: int = Field(default=0, ge=0)
    """Position of the first question of the files that is taken, from 0."""
    every: int = Field(default=1, ge=1)
    """Step from one question taken to the next: files have their kinds in blocks, 2 takes half of each."""
    count: int | None = Field(default=None, ge=1)
    """How many questions of the files are taken at most; none takes all."""
    made: int = Field(default=0, ge=0, le=20_000)
    """Questions made from the table after ToolQA's templates; none of them is in a file of either split."""
    made_level: Literal["easy", "hard", "both"] = "hard"
    """Templates of the questions that are made. RAIL trains on hard ones."""
    made_seed: int = Field(default=0, ge=0)
    """Seed of the questions that are made."""

    @model_validator(mode="after")
    def _has_a_digest_for_each_file_or_none(self) -> Self:
        if self.sha256 and len(self.sha256) != len(self.paths):
            raise ValueError(f"sha256 has {len(self.sha256)} digests: expected one for each of {len(self.paths)} paths")
        return self

    def read(self, table: PriceTable) -> list[Question]:
        """Return all questions of the files.

        Raises:
            DataError: a file cannot be used, or two have a question of the same name.
        """
        questions: dict[str, Question] = {}
        for path, digest in zip(self.paths, self.sha256 or [None] * len(self.paths), strict=True):
            for question in read_questions(Path(path), table, sha256=digest):
                if question.task_id in questions:
                    raise DataError(f"{path}: an earlier file has the same qid, {question.task_id}")
                questions[question.task_id] = question
        return list(questions.values())

    def chosen(self, read: Sequence[Question], table: PriceTable, *, taken: Collection[str]) -> list[Question]:
        """Return the questions of the split.

        Args:
            read: all questions of the files.
            table: what others are made from.
            taken: texts of questions that must not be made.

        Raises:
            DataError: no question of the files is left, or the table gives too few others.
        """
        last = None if self.count is None else self.first + self.count * self.every
        chosen = list(read[self.first : last : self.every])
        if read and not chosen:
            raise DataError(f"{', '.join(self.paths)}: of {len(read)} questions none is left from {self.first} on")
        return chosen + make_questions(table, self.made, level=self.made_level, seed=self.made_seed, taken=taken)


class InterpreterSandboxConfig(SandboxConfig):
    """Where code from the policy runs, call by call in one process."""

    wall_seconds: float = Field(default=10.0, gt=0)
    """Longest wall clock of one call."""
    start_seconds: float = Field(default=60.0, gt=0)
    """Longest wait for an interpreter to come up, in seconds; longer is a failed rollout, never reward 0."""
    cpu_seconds: int = Field(default=60, ge=1)
    """Most CPU time of one interpreter, in all its calls together."""
    output_mebibytes: int = Field(default=16, ge=1)
    """Most that is read of one reply; code that forges a longer one loses its interpreter."""
    processes: int = Field(default=16, ge=4)
    """Most processes and threads at once: by cgroup where one can be made, else by rlimit (no limit for root)."""


@ENVIRONMENTS.register("toolqa")
class ToolQAConfig(BaseModel):
    """ToolQA-Coffee: answer questions about a price table with a Python interpreter; files of ToolQA's format."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    table: str = ""
    """CSV file of the daily prices (docs/toolqa.md says where it is from); required."""
    table_sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$")
    """Digest that the table must have; none reads any file."""
    train: QuestionSet = Field(default_factory=QuestionSet)
    """Questions of the train split."""
    test: QuestionSet = Field(default_factory=QuestionSet)
    """Questions of the test split."""
    output_characters: int = Field(default=2000, ge=1)
    """Characters of a call's output that the policy is shown."""
    concurrency: int = Field(default=2, ge=1)
    """Calls that run at once; others wait. Starting an interpreter keeps one core busy for about a second."""
    sandbox: InterpreterSandboxConfig = Field(default_factory=InterpreterSandboxConfig)
    """Where code runs."""

    @property
    def turn_limits(self) -> Mapping[str, float]:
        """Setting -> seconds after which what a turn runs is ended."""
        return {"sandbox.wall_seconds": self.sandbox.wall_seconds}

    def build(self) -> "ToolQAEnvironment":
        """Return the environment, its interpreter tried.

        Raises:
            ConfigError: no table or no questions are named, or this machine has no working sandbox with pandas in it.
            DataError: a file cannot be used.
        """
        if not self.table:
            raise ConfigError("environment.table must name the CSV file of prices (docs/toolqa.md)")
        sets = {"train": self.train, "test": self.test}
        if not any(questions.paths or questions.made for questions in sets.values()):
            raise ConfigError(
                "environment.train or environment.test must have questions: paths of files, or made (docs/toolqa.md)"
            )
        table = PriceTable.read(Path(self.table), sha256=self.table_sha256)
        read = {split: questions.read(table) for split, questions in sets.items()}
        taken = {question.text for questions in read.values() for question in questions}
        splits: dict[str, list[Question]] = {}
        for split, questions in sets.items():
            splits[split] = questions.chosen(read[split], table, taken=taken)
            taken |= {question.text for question in splits[split]}
        packages = pandas_packages()
        readable = (*self.sandbox.readable, *packages.readable)
        workshop = Workshop(
            sandbox=self.sandbox.model_copy(update={"readable": readable}).build(),
            packages=packages.folders,
            table=table.text,
            output_characters=self.output_characters,
            places=threading.BoundedSemaphore(self.concurrency),
        )
        _try_interpreter(workshop, num_days=len(table.days))
        return ToolQAEnvironment(splits, workshop=workshop, system_prompt=system_prompt(table))


class ToolQAEnvironment:
    """Tasks and episodes of questions that have been read or made.

    Args:
        splits: split -> questions.
        workshop: where code runs.
        system_prompt: what the policy is told of the table.
    """

    name = "toolqa"
    tools = TOOLS
    max_turns = MAX_TURNS
    role_guide = ROLE_GUIDE

    def __init__(self, splits: Mapping[str, Sequence[Question]], *, workshop: Workshop, system_prompt: str) -> None:
        self.system_prompt = system_prompt
        self._workshop = workshop
        self._questions = {
            (split, question.task_id): question for split, questions in splits.items() for question in questions
        }
        self._tasks = {
            split: tuple(question.task(split) for question in questions) for split, questions in splits.items()
        }

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split: those of files in their order, then those that were made.

        Level, kind and whether the table agrees with the reference are in their tags.

        Raises:
            ConfigError: no such split, or no questions for it.
        """
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r} of toolqa; known: {', '.join(sorted(SPLITS))}")
        if not self._tasks.get(split):
            raise ConfigError(f"environment.{split} must have paths or made: split {split!r} is asked for")
        return self._tasks[split]

    def start(self, task: Task, *, seed: int) -> ForkableEpisode:
        """Return a fresh episode, forked by running its calls again; nothing in it is random, so `seed` is not used."""
        begin = partial(TableEpisode, self._questions[task.split, task.task_id], workshop=self._workshop)
        return ReplayingEpisode(begin, episode=begin())


def _try_interpreter(workshop: Workshop, *, num_days: int) -> None:
    interpreter = Interpreter(workshop)
    try:
        shown = interpreter.run("len(df)")
    except EnvironmentFault as error:
        raise ConfigError(f"environment.sandbox: Python with pandas does not run in the sandbox: {error}") from error
    finally:
        interpreter.close()
    if shown.text != str(num_days):
        raise ConfigError(f"environment.sandbox: len(df) gave {shown.text[:200]!r}, expected {num_days}")
