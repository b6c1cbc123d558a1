"""Problems that reasoning-gym generates, graded by the scorers that come with them."""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from midcourse.environments.mathematics.grading import AnswerNotGraded, GraderPool, GradingConfig
from midcourse.errors import ConfigError, EnvironmentFault

logger = logging.getLogger(__name__)
MAX_TASKS = 100_000
"""Most problems of a split: all are generated and kept before the first rollout."""


class ReasoningGymConfig(BaseModel):
    """Which generated problems."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    dataset: str | None = None
    """A dataset's name, such as `chain_sum`."""
    seed: int = Field(default=0, ge=0)
    """Which problems are drawn."""
    train_size: int = Field(default=1000, ge=1, le=MAX_TASKS)
    """Problems of the train split."""
    test_size: int = Field(default=100, ge=1, le=MAX_TASKS)
    """Problems drawn for the test split; those that the train split has too are left out."""
    partial_credit: bool = False
    """Whether a score below 1 is the reward as it is. Off, it is 0: some scorers pay a little for any answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """One generated problem. `answer` is empty where the dataset gives none."""

    index: int
    question: str
    answer: str


def generate_puzzles(config: ReasoningGymConfig) -> Mapping[str, tuple[Puzzle, ...]]:
    """Return split -> problems.

    Raises:
        ConfigError: reasoning-gym is not installed, the name is missing or unknown, the dataset cannot be made that
            large, or no test problem is left.
    """
    if config.dataset is None:
        raise ConfigError('environment.source = "reasoning_gym" needs environment.reasoning_gym.dataset')
    if find_spec("reasoning_gym") is None:
        raise ConfigError("this source needs reasoning-gym: pip install -e '.[reasoning-gym]' in the clone")
    import reasoning_gym  # pyright: ignore[reportMissingImports] (optional)
    from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports] (optional)

    if config.dataset not in DATASETS:
        near = difflib.get_close_matches(config.dataset, DATASETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"environment.reasoning_gym.dataset = {config.dataset!r}: no dataset of that name{hint}")
    try:
        dataset = reasoning_gym.create_dataset(config.dataset, **dataset_arguments(config))
        entries = [dataset[index] for index in range(config.train_size + config.test_size)]
    except (AssertionError, ValueError, IndexError) as error:
        raise ConfigError(f"environment.reasoning_gym: {config.dataset} cannot be generated: {error}") from error
    puzzles = [
        Puzzle(index=index, question=entry["question"], answer=str(entry["answer"] or ""))
        for index, entry in enumerate(entries)
    ]
    train = tuple(puzzles[: config.train_size])
    seen = {puzzle.question for puzzle in train}
    test = tuple(puzzle for puzzle in puzzles[config.train_size :] if puzzle.question not in seen)
    if not test:
        raise ConfigError(
            f"environment.reasoning_gym: every test problem of {config.dataset} is among the "
            f"{config.train_size} of the train split; ask for fewer"
        )
    return {"train": train, "test": test}


def dataset_arguments(config: ReasoningGymConfig) -> Mapping[str, Any]:
    """Return what the dataset is made with. One dataset serves both splits, so that one grader does."""
    return {"seed": config.seed, "size": config.train_size + config.test_size}


class PuzzleGrader:
    """Scores answers by a dataset's own scorer.

    Some of these scorers run an answer as an expression of Python. They do so in a process of their own, under its
    limits and without the keys of this process: that bounds accidents, it is no sandbox.
    """

    def __init__(self, config: ReasoningGymConfig, grading: GradingConfig) -> None:
        self._config = config
        self._grading = grading
        settings = {"dataset": config.dataset, "arguments": dict(dataset_arguments(config))}
        self.pool = GraderPool("reasoning_gym", settings=settings, config=grading)

    def score(self, answer: str | None, *, index: int, question: str) -> float:
        """Return the reward of an answer, in [0, 1].

        Raises:
            EnvironmentFault: no grader answers, or the grader's dataset is another.
        """
        if answer is None or len(answer) > self._grading.max_answer_characters:
            return 0.0
        try:
            score = self.pool.ask({"index": index, "question": question, "answer": answer})
        except AnswerNotGraded as error:
            logger.warning("an answer of %d characters was not graded: %s", len(answer), error.verdict.value)
            return 0.0
        if score is None:
            raise EnvironmentFault(f"{self._config.dataset} generates another problem {index} in another process")
        return score if self._config.partial_credit or score >= 1.0 else 0.0
