"""Multi-step arithmetic with worked steps (no paper): settings, splits, episodes."""

import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.environments.base import ENVIRONMENTS, Evidence, Task, Tool
from midcourse.environments.mathematics.arithmetic.guide import ROLE_GUIDE, SYSTEM_PROMPT
from midcourse.environments.mathematics.arithmetic.problems import Chain, Difficulty, draw_chain, read_chain
from midcourse.environments.mathematics.arithmetic.steps import reference_solution, shortest_response, states_answer
from midcourse.environments.mathematics.environment import make_evidence
from midcourse.environments.mathematics.episode import MAX_TURNS, AnswerEpisode
from midcourse.errors import ConfigError

if TYPE_CHECKING:
    from midcourse.environments.mathematics.arithmetic.judge import ArithmeticJudge
    from midcourse.environments.mathematics.arithmetic.roles import ArithmeticRoles

MIN_RESPONSE_CHARACTERS = 160
"""Shorter responses make a correction of 2 to 4 tokens more than a few per cent of the whole."""
MAX_TASKS = 100_000
"""Most tasks of a split: all are drawn and kept before the first rollout."""
OOD_EXTRA_STEPS = (1, 3)
"""How many steps chains of the ood split have beyond `max_steps`, at least and at most."""
SPLITS = ("train", "test", "ood")


@ENVIRONMENTS.register("arithmetic")
class ArithmeticConfig(BaseModel):
    """Arithmetic: chains of operations with worked steps, small enough for the built-in policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int = 0
    """Which chains are drawn."""
    train_tasks: int = Field(default=2000, ge=1, le=MAX_TASKS)
    """Chains of the train split."""
    test_tasks: int = Field(default=200, ge=1, le=MAX_TASKS)
    """Chains of the test split (as in training) and of the ood split (more steps than in training)."""
    num_digits: int = Field(default=3, ge=2, le=6)
    """Digits of every number."""
    min_steps: int = Field(default=6, ge=1)
    """Fewest operations of a chain; so many that responses have at least 160 characters, one token each."""
    max_steps: int = Field(default=8, ge=1, le=64)
    """Most operations of a chain of train and test."""
    hard_fraction: float = Field(default=0.5, ge=0, le=1)
    """Share of chains that multiply by 6 to 9 somewhere; the others have multipliers from 2 to 5. In [0, 1]."""
    hard_steps: int = Field(default=2, ge=1, le=4)
    """How many steps of a hard chain multiply by 6 to 9."""
    private_answer: bool = True
    """Whether the leak check counts the answer as private. RTI needs false: its corrections finish the solution."""

    @model_validator(mode="after")
    def _steps_fit(self) -> Self:
        if self.max_steps < self.min_steps:
            raise ValueError(f"max_steps = {self.max_steps}: expected at least min_steps = {self.min_steps}")
        if self.hard_steps > self.min_steps:
            raise ValueError(f"hard_steps = {self.hard_steps}: expected at most min_steps = {self.min_steps}")
        shortest = shortest_response(num_digits=self.num_digits, num_steps=self.min_steps)
        if shortest < MIN_RESPONSE_CHARACTERS:
            raise ValueError(
                f"min_steps = {self.min_steps} with num_digits = {self.num_digits}: responses may have as few as "
                f"{shortest} characters, expected at least {MIN_RESPONSE_CHARACTERS}"
            )
        return self

    def build(self) -> "ArithmeticEnvironment":
        """Return the environment."""
        return ArithmeticEnvironment(self)


class ArithmeticEnvironment:
    """Tasks and episodes of one config. Splits are drawn on first use and are the same on every platform."""

    name = "arithmetic"
    system_prompt = SYSTEM_PROMPT
    tools: Sequence[Tool] = ()
    max_turns = MAX_TURNS
    role_guide = ROLE_GUIDE

    def __init__(self, config: ArithmeticConfig) -> None:
        self.config = config
        self._splits: dict[str, tuple[Task, ...]] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split; difficulty and number of steps are in their tags. No chain is in two splits.

        Raises:
            ConfigError: no such split.
        """
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r} of arithmetic; known: {', '.join(SPLITS)}")
        if not self._splits:
            config = self.config
            sizes = {"train": config.train_tasks, "test": config.test_tasks, "ood": config.test_tasks}
            taken: set[str] = set()
            self._splits = {name: self._draw(name, size, taken) for name, size in sizes.items()}
        return self._splits[split]

    def start(self, task: Task, *, seed: int) -> AnswerEpisode:
        """Return a fresh episode; nothing in it is random, so `seed` changes nothing."""
        return AnswerEpisode(partial(_score, read_chain(task.query)))

    def scripted_roles(self) -> "ArithmeticRoles":
        """Return RTI's validator, corrector and verifier without a model."""
        from midcourse.environments.mathematics.arithmetic.roles import ArithmeticRoles

        return ArithmeticRoles()

    def judge_script(self) -> "ArithmeticJudge":
        """Return MInTRL's judge without a model."""
        from midcourse.environments.mathematics.arithmetic.judge import ArithmeticJudge

        return ArithmeticJudge()

    def _draw(self, split: str, size: int, taken: set[str]) -> tuple[Task, ...]:
        config = self.config
        rng = random.Random(f"arithmetic/{config.seed}/{split}")
        steps = (config.min_steps, config.max_steps)
        if split == "ood":
            steps = (config.max_steps + OOD_EXTRA_STEPS[0], config.max_steps + OOD_EXTRA_STEPS[1])
        tasks: list[Task] = []
        while len(tasks) < size:
            difficulty: Difficulty = "hard" if rng.random() < config.hard_fraction else "easy"
            chain = draw_chain(
                rng,
                num_digits=config.num_digits,
                num_steps=rng.randint(*steps),
                difficulty=difficulty,
                num_hard_steps=config.hard_steps,
            )
            if chain.query not in taken:
                taken.add(chain.query)
                tasks.append(make_task(chain, split=split, difficulty=difficulty, private=config.private_answer))
        return tuple(tasks)


def make_task(chain: Chain, *, split: str, difficulty: Difficulty, private: bool = True) -> Task:
    """Return the task that asks for a chain, with the reference solution as evidence."""
    return Task(
        task_id=f"arithmetic-{chain.query}",
        split=split,
        query=chain.query,
        tags=(difficulty, f"steps:{len(chain.operations)}"),
        evidence=_evidence(chain, private=private),
    )


def _evidence(chain: Chain, *, private: bool) -> Evidence:
    return make_evidence(chain.answer, reference_solution(chain), private=private)


def _score(chain: Chain, response: str) -> float:
    return float(states_answer(chain, response))
