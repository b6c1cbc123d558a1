"""The generated table world: settings and splits; episodes, tools and scores are AgentBench-DB's on SQLite."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.environments.agentbench_db.database import Limits
from midcourse.environments.agentbench_db.environment import AgentBenchDBEnvironment
from midcourse.environments.agentbench_db.guide import ROLE_GUIDE
from midcourse.environments.agentbench_db.sqlite import SqliteDatabase
from midcourse.environments.agentbench_db.task_file import Problem
from midcourse.environments.agentbench_db.tools import TOOLS
from midcourse.environments.base import ENVIRONMENTS, ForkableEpisode, Task
from midcourse.environments.table_world.requests import MAX_TRAPS, draw_request
from midcourse.errors import ConfigError

SPLITS = ("train", "test", "easy", "hard", "ood")
MAX_TASKS = 20_000
"""Most tasks of a split: all are drawn and kept before the first rollout."""
MAX_TURNS = 9
"""The longest that is needed is seven: three words looked up, columns, a value, a change, the answer."""
LIMITS = Limits(statement_seconds=5.0, result_characters=800)
open_database = partial(SqliteDatabase.with_tables, limits=LIMITS)

SYSTEM_PROMPT = (
    "You answer requests about small database tables, or change them, with SQL (SQLite). Every column holds text. "
    "Where a request calls a table or column by another word, the table guide has what it stands for: SELECT means "
    "FROM guide WHERE word = 'the word'. Run one statement a turn with sql_query. At the end call answer_action once: "
    f"with the value that was asked for, or with any text after a change. You have {MAX_TURNS} turns."
)


@ENVIRONMENTS.register("table_world")
class TableWorldConfig(BaseModel):
    """Table world: generated databases and requests in AgentBench-DB's form, for the built-in policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int = 0
    """Which databases and requests are drawn."""
    train_tasks: int = Field(default=2000, ge=1, le=MAX_TASKS)
    """Requests of the train split."""
    test_tasks: int = Field(default=200, ge=1, le=MAX_TASKS)
    """Requests of the test split and of the ood split, whose tables have columns that they have nowhere else."""
    hard_fraction: float = Field(default=0.5, ge=0, le=1)
    """Share of requests that call tables or columns by words of the guide. In [0, 1]."""
    min_traps: int = Field(default=1, ge=1, le=MAX_TRAPS)
    """Fewest such words of a hard request."""
    max_traps: int = Field(default=3, ge=1, le=MAX_TRAPS)
    """Most such words of a hard request; three stand for the table and both columns."""

    @model_validator(mode="after")
    def _traps_fit(self) -> Self:
        if self.max_traps < self.min_traps:
            raise ValueError(f"max_traps = {self.max_traps}: expected at least min_traps = {self.min_traps}")
        return self

    def build(self) -> "TableWorldEnvironment":
        """Return the environment."""
        return TableWorldEnvironment(self)


class TableWorldEnvironment:
    """Tasks and episodes of one config. Splits are drawn on first use and are the same on every platform."""

    name = "table_world"
    system_prompt = SYSTEM_PROMPT
    tools = TOOLS
    max_turns = MAX_TURNS
    role_guide = ROLE_GUIDE

    def __init__(self, config: TableWorldConfig) -> None:
        self.config = config
        self._splits: dict[str, tuple[Task, ...]] = {}
        self._player: AgentBenchDBEnvironment | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split; difficulty, kind and number of traps are in their tags.

        Splits "easy" and "hard" are those of the test split with that tag; otherwise no task is in two splits.

        Raises:
            ConfigError: no such split.
        """
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r} of table_world; known: {', '.join(SPLITS)}")
        self._drawn()
        return self._splits[split]

    def start(self, task: Task, *, seed: int) -> ForkableEpisode:
        """Return a fresh episode, which forks by copying its database; nothing in it is random.

        Raises:
            EnvironmentFault: no database can be made.
        """
        return self._drawn().start(task, seed=seed)

    def _drawn(self) -> AgentBenchDBEnvironment:
        if self._player is None:
            config = self.config
            taken: set[str] = set()
            problems = {
                split: self._draw(split, size, taken)
                for split, size in (
                    ("train", config.train_tasks),
                    ("test", config.test_tasks),
                    ("ood", config.test_tasks),
                )
            }
            for tag in ("easy", "hard"):
                problems[tag] = [problem for problem in problems["test"] if tag in problem.tags]
            self._splits = {split: tuple(problem.task(split) for problem in problems[split]) for split in SPLITS}
            self._player = AgentBenchDBEnvironment(problems, open_database=open_database, reference="executed")
        return self._player

    def _draw(self, split: str, size: int, taken: set[str]) -> list[Problem]:
        config = self.config
        rng = random.Random(f"table world/{config.seed}/{split}")
        problems: list[Problem] = []
        while len(problems) < size:
            is_hard = rng.random() < config.hard_fraction
            num_traps = rng.randint(config.min_traps, config.max_traps) if is_hard else 0
            request = draw_request(rng, num_traps=num_traps, unseen=split == "ood")
            problem = request.problem(tags=("hard" if is_hard else "easy",))
            if problem.task_id not in taken:
                taken.add(problem.task_id)
                problems.append(problem)
        return problems
