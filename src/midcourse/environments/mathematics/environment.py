"""Mathematics problems, one turn each: settings, splits, episodes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from midcourse.environments.base import ENVIRONMENTS, Evidence, Task, Tool
from midcourse.environments.mathematics.answers import AnswerPolicy, find_answer
from midcourse.environments.mathematics.episode import MAX_TURNS, AnswerEpisode
from midcourse.environments.mathematics.grading import GraderPool, GradingConfig, MathVerifyGrader, Verdict
from midcourse.environments.mathematics.guide import ROLE_GUIDE, SYSTEM_PROMPTS
from midcourse.environments.mathematics.puzzles import PuzzleGrader, ReasoningGymConfig, generate_puzzles
from midcourse.environments.mathematics.task_file import FieldNames, Problem, read_problems
from midcourse.errors import ConfigError

FILE_FIELDS = ("files", "problem_field", "answer_field", "solution_field")
"""Settings of problems from files; generated ones have none of them."""


@ENVIRONMENTS.register("mathematics")
class MathematicsConfig(BaseModel):
    """Mathematics: one turn, no tools, a final answer that is compared with a reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    profile: Literal["full"] = "full"
    """Problems are free text, which the built-in policy cannot read: there is no nano profile (see arithmetic)."""
    source: Literal["files", "reasoning_gym"] = "files"
    """Problems from files, graded by math-verify, or generated and graded by reasoning-gym."""
    files: tuple[str, ...] = ()
    """Splits of source files, each `split=path`: `train=train.jsonl`, `aime25=aime25.parquet` (docs/mathematics.md)."""
    problem_field: str = "problem"
    """Name of the field that holds the problem."""
    answer_field: str = "answer"
    """Name of the field that holds the reference answer."""
    solution_field: str = "solution"
    """Name of the field that may hold a reference solution, for roles alone."""
    answer_policy: AnswerPolicy = "boxed"
    """Where a response states its answer. A box that is empty or not closed is no answer under any policy."""
    system_prompt: str | None = None
    """Replaces the system prompt that goes with the answer policy; empty text is none at all."""
    private_answer: bool = True
    """Whether the leak check counts the answer as private. RTI needs false: its corrections finish the solution."""
    reasoning_gym: ReasoningGymConfig = Field(default_factory=ReasoningGymConfig)
    """What reasoning-gym generates."""
    grading: GradingConfig = Field(default_factory=GradingConfig)
    """Limits of grading."""

    @field_validator("files")
    @classmethod
    def _name_splits(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        splits = [file.partition("=") for file in files]
        for file, (split, _, path) in zip(files, splits, strict=True):
            if not split.strip() or not path.strip():
                raise ValueError(f'{file!r}: expected "split=path"')
        names = [split.strip() for split, _, _ in splits]
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise ValueError(f"split {repeated[0]!r} is named twice")
        return files

    @model_validator(mode="after")
    def _has_what_its_source_needs_and_no_more(self) -> Self:
        if self.source == "files":
            unused = ("reasoning_gym",)
            if not self.files:
                raise ValueError('source "files" needs environment.files, for example ["train=problems.jsonl"]')
        else:
            unused = FILE_FIELDS
            if self.reasoning_gym.dataset is None:
                raise ValueError('source "reasoning_gym" needs environment.reasoning_gym.dataset')
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f'environment.{name} is not used with source "{self.source}"')
        return self

    def build(self) -> "MathematicsEnvironment":
        """Return the environment, its files read.

        Raises:
            DataError: a file cannot be used.
            ConfigError: a package that the settings need is not installed, or reasoning-gym refuses its settings.
        """
        if self.source == "reasoning_gym":
            return _puzzle_environment(self)
        return _file_environment(self)


class MathematicsEnvironment:
    """Tasks and episodes of one config.

    Args:
        config: settings.
        splits: split -> tasks.
        scorer: task -> what scores a response to it.
        pool: grading processes that the scorers ask.
    """

    name = "mathematics"
    tools: Sequence[Tool] = ()
    max_turns = MAX_TURNS
    role_guide = ROLE_GUIDE

    def __init__(
        self,
        config: MathematicsConfig,
        *,
        splits: Mapping[str, Sequence[Task]],
        scorer: Callable[[Task], Callable[[str], float]],
        pool: GraderPool,
    ) -> None:
        self.config = config
        self.system_prompt = SYSTEM_PROMPTS[config.answer_policy]
        if config.system_prompt is not None:
            self.system_prompt = config.system_prompt
        self._splits = splits
        self._scorer = scorer
        self._pool = pool

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, in the order of its file.

        Raises:
            ConfigError: no such split.
        """
        if split not in self._splits:
            raise ConfigError(f"unknown split {split!r} of mathematics; known: {', '.join(sorted(self._splits))}")
        return self._splits[split]

    def start(self, task: Task, *, seed: int) -> AnswerEpisode:
        """Return a fresh episode; nothing in it is random, so `seed` changes nothing."""
        self._pool.prepare()
        return AnswerEpisode(self._scorer(task))

    def close(self) -> None:
        """End the grading processes; they end with the environment too."""
        self._pool.close()


def make_evidence(answer: str, solution: str, *, private: bool, index: int | None = None) -> Evidence:
    """Return what roles are told of a problem; facts have "answer", "solution", and "index" where it was generated."""
    text = f"Reference answer: {answer}" + (f"\nReference solution:\n{solution}" if solution else "")
    facts = {"answer": answer, "solution": solution}
    return Evidence(
        text=text,
        private_values=(answer,) if private and answer else (),
        facts=facts if index is None else {**facts, "index": index},
    )


def _file_environment(config: MathematicsConfig) -> MathematicsEnvironment:
    grader = MathVerifyGrader(config.grading)
    fields = FieldNames(problem=config.problem_field, answer=config.answer_field, solution=config.solution_field)
    splits: dict[str, Sequence[Task]] = {}
    for file in config.files:
        split, path = (part.strip() for part in file.split("=", 1))
        problems = read_problems(Path(path), fields=fields, max_answer_characters=config.grading.max_answer_characters)
        splits[split] = tuple(_file_task(problem, split=split, private=config.private_answer) for problem in problems)

    def score(response: str, *, reference: str) -> float:
        answer = find_answer(response, config.answer_policy)
        return float(grader.grade(answer, reference=reference) is Verdict.CORRECT)

    return MathematicsEnvironment(
        config,
        splits=splits,
        scorer=lambda task: partial(score, reference=task.evidence.facts["answer"]),
        pool=grader.pool,
    )


def _file_task(problem: Problem, *, split: str, private: bool) -> Task:
    digest = blake2b(problem.problem.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return Task(
        task_id=f"mathematics-{split}-{digest}",
        split=split,
        query=problem.problem,
        evidence=make_evidence(problem.answer, problem.solution, private=private),
    )


def _puzzle_environment(config: MathematicsConfig) -> MathematicsEnvironment:
    chosen = config.reasoning_gym
    puzzles = generate_puzzles(chosen)
    grader = PuzzleGrader(chosen, config.grading)

    def score(response: str, *, task: Task) -> float:
        answer = find_answer(response, config.answer_policy)
        return grader.score(answer, index=task.evidence.facts["index"], question=task.query)

    splits = {
        split: tuple(
            Task(
                task_id=f"mathematics-{chosen.dataset}-{chosen.seed}-{puzzle.index}",
                split=split,
                query=puzzle.question,
                tags=(f"dataset:{chosen.dataset}",),
                evidence=make_evidence(puzzle.answer, "", private=config.private_answer, index=puzzle.index),
            )
            for puzzle in found
        )
        for split, found in puzzles.items()
    }
    return MathematicsEnvironment(
        config, splits=splits, scorer=lambda task: partial(score, task=task), pool=grader.pool
    )
