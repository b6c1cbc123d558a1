"""AgentBench's DB tasks (arXiv:2308.03688; RAIL, App. B.1) on SQLite, MariaDB or MySQL: config, splits, episodes."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.environments.agentbench_db.database import Database, Limits, StatementError
from midcourse.environments.agentbench_db.episode import MAX_TURNS, DatabaseEpisode, SqliteEpisode, tables_hash
from midcourse.environments.agentbench_db.guide import ROLE_GUIDE, Dialect, system_prompt
from midcourse.environments.agentbench_db.settings import MariaDBConfig, ServerConfig
from midcourse.environments.agentbench_db.sqlite import SqliteDatabase
from midcourse.environments.agentbench_db.tables import Table
from midcourse.environments.agentbench_db.task_file import Problem, read_problems
from midcourse.environments.agentbench_db.tools import TOOLS
from midcourse.environments.base import ENVIRONMENTS, ForkableEpisode, Task
from midcourse.environments.replay import ReplayingEpisode
from midcourse.errors import ConfigError, DataError, EnvironmentFault

SPLITS = ("train", "test")
Reference = Literal["recorded", "executed"]


class TaskFile(BaseModel):
    """The file that a split comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str | None = None
    """JSON lines or one JSON list, also gzipped; none: the split is not there. See docs/agentbench_db.md for files."""
    sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$")
    """Digest that the file must have; none reads any file."""
    first: int = Field(default=0, ge=0)
    """Position of the first task that is taken, from 0."""
    count: int | None = Field(default=None, ge=1)
    """How many are taken; none takes all from the first on."""

    def read(self) -> list[Problem]:
        """Return the problems of the file, none where there is no file.

        Raises:
            DataError: the file cannot be used, or holds no task at the positions asked for.
        """
        if self.path is None:
            return []
        problems = read_problems(Path(self.path), sha256=self.sha256)
        taken = problems[self.first : None if self.count is None else self.first + self.count]
        if not taken:
            raise DataError(f"{self.path} holds {len(problems)} tasks: none is left from position {self.first} on")
        return taken


@ENVIRONMENTS.register("agentbench_db")
class AgentBenchDBConfig(BaseModel):
    """AgentBench-DB: answer questions about tables, or change them, with SQL; files of AgentBench's format."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    train: TaskFile = Field(default_factory=TaskFile)
    """Tasks of the train split."""
    test: TaskFile = Field(default_factory=TaskFile)
    """Tasks of the test split."""
    backend: Literal["sqlite", "mariadb", "server"] = "sqlite"
    """Who runs the SQL: SQLite within the process, a MariaDB that midcourse starts, or a MySQL or MariaDB by URL."""
    reference: Reference = "recorded"
    """State that a change must lead to: the file's hash where it has one, or what the reference statement does here."""
    statement_seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Longest time of one statement; it is then ended, and the policy is told."""
    result_characters: int = Field(default=800, ge=1)
    """Characters of a result that the policy is shown. AgentBench shows 800."""
    mariadb: MariaDBConfig = Field(default_factory=MariaDBConfig)
    """The server of backend mariadb."""
    server: ServerConfig = Field(default_factory=ServerConfig)
    """The server of backend server."""

    @model_validator(mode="after")
    def _has_what_its_backend_needs_and_no_more(self) -> Self:
        for name, settings_class in (("mariadb", MariaDBConfig), ("server", ServerConfig)):
            if name != self.backend and getattr(self, name) != settings_class():
                raise ValueError(f'environment.{name} is not used with backend "{self.backend}"')
        if self.backend == "server" and self.server.url is None:
            raise ValueError('backend "server" needs environment.server.url')
        return self

    @property
    def turn_limits(self) -> Mapping[str, float]:
        """Setting -> seconds after which what a turn runs is ended."""
        return {"statement_seconds": self.statement_seconds}

    def build(self) -> "AgentBenchDBEnvironment":
        """Return the environment, its server tried.

        Raises:
            ConfigError: no file is named, or the database cannot be used.
            DataError: a file cannot be used.
        """
        splits = {split: file.read() for split, file in (("train", self.train), ("test", self.test)) if file.path}
        if not splits:
            raise ConfigError(
                "environment.train.path or environment.test.path must name a file (docs/agentbench_db.md)"
            )
        limits = Limits(statement_seconds=self.statement_seconds, result_characters=self.result_characters)
        if self.backend == "sqlite":
            return AgentBenchDBEnvironment(
                splits, open_database=partial(SqliteDatabase.with_tables, limits=limits), reference=self.reference
            )
        server = self.mariadb.build() if self.backend == "mariadb" else self.server.build()
        from midcourse.environments.agentbench_db.server import ServerDatabase, try_server

        try:
            try_server(server, limits)
        except EnvironmentFault as error:
            raise ConfigError(f'environment.backend = "{self.backend}": {error}') from error
        return AgentBenchDBEnvironment(
            splits,
            open_database=partial(ServerDatabase, server, limits=limits),
            reference=self.reference,
            dialect="mysql",
            on_close=server.close,
        )


class AgentBenchDBEnvironment:
    """Tasks and episodes of problems that have been read.

    Args:
        splits: split -> problems.
        open_database: tables -> a database that holds them and nothing else.
        reference: where the state that a change must lead to comes from.
        dialect: what the policy is told of the database.
        on_close: ends what was started for the environment.
    """

    name = "agentbench_db"
    tools = TOOLS
    max_turns = MAX_TURNS
    role_guide = ROLE_GUIDE

    def __init__(
        self,
        splits: Mapping[str, Sequence[Problem]],
        *,
        open_database: Callable[[Sequence[Table]], Database],
        reference: Reference = "recorded",
        dialect: Dialect = "sqlite",
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.system_prompt = system_prompt(dialect)
        self._open_database = open_database
        self._reference = reference
        self._on_close = on_close
        self._problems = {
            (split, problem.task_id): problem for split, problems in splits.items() for problem in problems
        }
        self._tasks = {split: tuple(problem.task(split) for problem in problems) for split, problems in splits.items()}
        self._executed: dict[str, str] = {}
        self._lock = threading.Lock()

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, in the file's order; the operation is in their tags, a question's kind too.

        Raises:
            ConfigError: no such split, or no file for it.
        """
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r} of agentbench_db; known: {', '.join(sorted(SPLITS))}")
        if split not in self._tasks:
            raise ConfigError(f"environment.{split}.path must name a file: split {split!r} is asked for")
        return self._tasks[split]

    def start(self, task: Task, *, seed: int) -> ForkableEpisode:
        """Return a fresh episode; nothing in it is random, so `seed` changes nothing.

        One on SQLite forks by copying its database, any other by running its statements again.

        Raises:
            EnvironmentFault: no database can be made.
        """
        begin = partial(self._begin, self._problems[task.split, task.task_id])
        episode = begin()
        return episode if isinstance(episode, ForkableEpisode) else ReplayingEpisode(begin, episode=episode)

    def close(self) -> None:
        """End a server that was started for this environment; it ends with the process too."""
        self._on_close()

    def _begin(self, problem: Problem) -> DatabaseEpisode:
        database = self._open_database(problem.tables)
        wanted_state = partial(self._wanted_state, problem)
        if isinstance(database, SqliteDatabase):
            return SqliteEpisode(problem, database=database, wanted_state=wanted_state)
        return DatabaseEpisode(problem, database=database, wanted_state=wanted_state)

    def _wanted_state(self, problem: Problem) -> str:
        if self._reference == "recorded" and problem.recorded_state is not None:
            return problem.recorded_state
        with self._lock:
            if problem.task_id not in self._executed:
                with closing(self._open_database(problem.tables)) as database:
                    self._executed[problem.task_id] = executed_state(problem, database)
            return self._executed[problem.task_id]


def executed_state(problem: Problem, database: Database) -> str:
    """Return the hash of the tables after the reference statement of a problem.

    Raises:
        EnvironmentFault: the statement cannot be run on this database, or changes nothing: a policy that does nothing
            would be right.
    """
    before = tables_hash(database, problem.tables)
    try:
        database.run(problem.reference_statement or "")
    except StatementError as error:
        raise EnvironmentFault(f"{problem.task_id}: the reference statement cannot be run: {error}") from error
    after = tables_hash(database, problem.tables)
    if after is None or after == before:
        raise EnvironmentFault(f"{problem.task_id}: the reference statement changes nothing on this database")
    return after
