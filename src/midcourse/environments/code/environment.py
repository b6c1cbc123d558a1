"""Programming tasks from files, one turn each, graded in a sandbox: config, splits, episodes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from midcourse.environments.base import ENVIRONMENTS, Evidence, Observation, Task
from midcourse.environments.code.answer import AnswerPolicy, answer_source
from midcourse.environments.code.grading import Grade, Grader, Verdict
from midcourse.environments.code.guide import ROLE_GUIDE, SYSTEM_PROMPT
from midcourse.environments.code.humaneval import humaneval_plus_problem, humaneval_problem
from midcourse.environments.code.livecodebench import livecodebench_problem
from midcourse.environments.code.mbpp import mbpp_plus_problem, mbpp_problem
from midcourse.environments.code.problem import Problem
from midcourse.environments.records import read_records
from midcourse.environments.sandbox import SandboxConfig, SandboxError
from midcourse.errors import ConfigError, DataError
from midcourse.types import AssistantTurn, ToolResult

READERS: Mapping[str, Callable[[Mapping[str, Any]], Problem]] = {
    "humaneval": humaneval_problem,
    "humaneval_plus": humaneval_plus_problem,
    "mbpp": mbpp_problem,
    "mbpp_plus": mbpp_plus_problem,
    "livecodebench": livecodebench_problem,
}
SPLITS = ("train", "test")
UNFIT = (ValueError, TypeError, AttributeError, IndexError, SyntaxError, RecursionError, OverflowError)
"""What a reader raises where a field is there and holds something else than it should."""


class ProblemFile(BaseModel):
    """The file that a split comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str | None = None
    """JSON lines or one JSON list, also gzipped; none: the split is not there. See docs/code.md for where files are."""
    format: Literal["humaneval", "humaneval_plus", "mbpp", "mbpp_plus", "livecodebench"] = "humaneval_plus"
    """Whose file it is. "mbpp" reads the full and the sanitized file."""
    sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$")
    """Digest that the file must have; none reads any file."""
    first: int = Field(default=0, ge=0)
    """Position of the first problem that is taken, from 0."""
    count: int | None = Field(default=None, ge=1)
    """How many are taken; none takes all from the first on."""

    def read(self) -> list[Problem]:
        """Return the problems of the file, none where there is no file.

        Raises:
            DataError: the file cannot be used, or holds no problem at the positions asked for.
        """
        if self.path is None:
            return []
        path = Path(self.path)
        problems: dict[str, Problem] = {}
        for where, record in read_records(path, sha256=self.sha256):
            try:
                problem = READERS[self.format](record)
            except KeyError as error:
                raise DataError(f'{where}: a record of format "{self.format}" must have {error.args[0]!r}') from error
            except UNFIT as error:
                raise DataError(f'{where}: {error} (read as format "{self.format}")') from error
            if not isinstance(problem.task_id, str) or not problem.task_id:
                raise DataError(f"{where}, field 'task_id': expected text, got {problem.task_id!r}")
            if problem.task_id in problems:
                raise DataError(f"{where}: an earlier record has the same task, {problem.task_id}")
            problems[problem.task_id] = problem
        end = None if self.count is None else self.first + self.count
        taken = list(problems.values())[self.first : end]
        if not taken:
            raise DataError(f"{path} holds {len(problems)} problems: none is left from position {self.first} on")
        return taken


@ENVIRONMENTS.register("code")
class CodeConfig(BaseModel):
    """Code: write Python that passes unseen tests; files of HumanEval(+), MBPP(+) or LiveCodeBench format."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    train: ProblemFile = Field(default_factory=ProblemFile)
    """Problems of the train split."""
    test: ProblemFile = Field(default_factory=ProblemFile)
    """Problems of the test split."""
    answer: AnswerPolicy = "block_or_text"
    """The code: the last fenced block (none: no reward), that or else the whole text, or always the whole text."""
    concurrency: int = Field(default=2, ge=1)
    """Answers that are graded at once; each keeps up to two processes busy."""
    packages: tuple[str, ...] = ()
    """Folders that answers may import from, besides the standard library. Read-only in the sandbox."""
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    """Where answers run."""

    @property
    def turn_limits(self) -> Mapping[str, float]:
        """Setting -> seconds after which what a turn runs is ended."""
        return {"sandbox.wall_seconds": self.sandbox.wall_seconds}

    def build(self) -> "CodeEnvironment":
        """Return the environment.

        Raises:
            ConfigError: no file is named, or this machine has no sandbox of the kind asked for.
            DataError: a file cannot be used.
        """
        splits = {split: file.read() for split, file in (("train", self.train), ("test", self.test)) if file.path}
        if not splits:
            raise ConfigError("environment.train.path or environment.test.path must name a file (docs/code.md)")
        readable = (*self.sandbox.readable, *self.packages)
        sandbox = self.sandbox.model_copy(update={"readable": readable}).build()
        return CodeEnvironment(
            splits,
            grader=Grader(sandbox, concurrency=self.concurrency, packages=self.packages),
            answer_policy=self.answer,
        )


class CodeEnvironment:
    """Tasks and episodes of problems that have been read."""

    name = "code"
    system_prompt = SYSTEM_PROMPT
    tools = ()
    max_turns = 1
    role_guide = ROLE_GUIDE

    def __init__(
        self, splits: Mapping[str, Sequence[Problem]], *, grader: Grader, answer_policy: AnswerPolicy = "block_or_text"
    ) -> None:
        self._grader = grader
        self._answer_policy: AnswerPolicy = answer_policy
        self._problems = {
            (split, problem.task_id): problem for split, problems in splits.items() for problem in problems
        }
        self._tasks = {
            split: tuple(_task(problem, split) for problem in problems) for split, problems in splits.items()
        }

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, in the file's order.

        Raises:
            ConfigError: no such split, or no file for it.
        """
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r} of code; known: {', '.join(sorted(SPLITS))}")
        if split not in self._tasks:
            raise ConfigError(f"environment.{split}.path must name a file: split {split!r} is asked for")
        return self._tasks[split]

    def start(self, task: Task, *, seed: int) -> "CodeEpisode":
        """Return a fresh episode; nothing in it is random, so `seed` changes nothing."""
        return CodeEpisode(
            self._problems[task.split, task.task_id], grader=self._grader, answer_policy=self._answer_policy
        )


class CodeEpisode:
    """One answer to one problem. The verdict is given with the turn, so that a rollout's record holds it."""

    def __init__(self, problem: Problem, *, grader: Grader, answer_policy: AnswerPolicy) -> None:
        self._problem = problem
        self._grader = grader
        self._answer_policy: AnswerPolicy = answer_policy
        self._grade: Grade | None = None

    def act(self, turn: AssistantTurn) -> Observation:
        """Grade the turn; a second one changes nothing.

        Raises:
            SandboxError: the tests could not be run, which says nothing about the answer.
        """
        if self._grade is None:
            source = answer_source(turn.content, self._answer_policy)
            if source is None:
                grade = Grade(Verdict.FAILED, "no code block")
            else:
                grade = self._grader.grade(source, self._problem.tests)
            if grade.verdict is Verdict.SANDBOX_ERROR:
                raise SandboxError(grade.reason)
            self._grade = grade
        text = f"{self._grade.verdict}: {self._grade.reason}".removesuffix(": ")
        return Observation(results=(ToolResult(name="tests", content=text),), done=True)

    def score(self) -> float:
        """Return 1.0 for an answer that passed every test, else 0.0."""
        return float(self._grade is not None and self._grade.verdict is Verdict.PASSED)

    def fork(self) -> Self:
        """Return an independent episode in the same state."""
        twin = type(self)(self._problem, grader=self._grader, answer_policy=self._answer_policy)
        twin._grade = self._grade
        return twin

    def close(self) -> None:
        """Free nothing: every box was closed with its verdict."""


def _task(problem: Problem, split: str) -> Task:
    reference = problem.reference
    text = (
        "No solution is known."
        if reference is None
        else f"A solution that passes:\n```python\n{reference.rstrip()}\n```"
    )
    return Task(
        task_id=problem.task_id,
        split=split,
        query=problem.query,
        tags=problem.tags,
        evidence=Evidence(text=text, private_values=(), facts={"reference": reference}),
    )
