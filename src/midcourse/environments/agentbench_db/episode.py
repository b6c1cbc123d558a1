"""One run of one task: statements, an answer, and the reward of what was said or done."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from midcourse.environments.agentbench_db.answers import answer_matches
from midcourse.environments.agentbench_db.database import Database, StatementError
from midcourse.environments.agentbench_db.sqlite import SqliteDatabase
from midcourse.environments.agentbench_db.tables import Table, state_hash
from midcourse.environments.agentbench_db.task_file import Problem
from midcourse.environments.agentbench_db.tools import checked_argument
from midcourse.environments.base import Observation
from midcourse.environments.calls import BadCall, Turns
from midcourse.types import AssistantTurn, ToolCall, ToolResult

MAX_TURNS = 15  # AgentBench's own setting; RAIL names none


class DatabaseEpisode:
    """Runs the calls of a turn in order. `answer_action` ends the episode, and so does a turn without any call.

    A question is scored by its answer, a change by the state of the tables, whether or not an answer was given.

    Args:
        problem: what is asked.
        database: holds the problem's tables; closed with the episode.
        wanted_state: returns what `tables_hash` must be after a change; asked for at scoring, and only then.
    """

    def __init__(self, problem: Problem, *, database: Database, wanted_state: Callable[[], str]) -> None:
        self._problem = problem
        self._database = database
        self._wanted_state = wanted_state
        self._answer: str | Sequence[Any] | None = None
        self._turns = Turns(MAX_TURNS)

    def act(self, turn: AssistantTurn) -> Observation:
        """Run the turn's calls; once done, nothing more is run.

        Raises:
            EnvironmentFault: the database went away.
        """
        return self._turns.run(turn, self._run)

    def score(self) -> float:
        """Return 1.0 for the right answer, or for tables in the state that was asked for, else 0.0.

        Raises:
            EnvironmentFault: the database went away, or what is wanted cannot be told.
        """
        if self._problem.operation == "select":
            given = self._answer
            return float(given is not None and answer_matches(given, self._problem.reference_values))
        return float(tables_hash(self._database, self._problem.tables) == self._wanted_state())

    def close(self) -> None:
        """Free the database."""
        self._database.close()

    def _run(self, call: ToolCall) -> ToolResult:
        try:
            argument = checked_argument(call)
            if call.name == "answer_action":
                self._answer, self._turns.is_done = argument, True
                return ToolResult(name=call.name, content="ok")
            return ToolResult(name=call.name, content=self._database.run(argument))
        except (BadCall, StatementError) as error:
            return ToolResult(name=call.name, content=f"Error: {error}", is_error=True)


class SqliteEpisode(DatabaseEpisode):
    """An episode that forks by copying its database."""

    def __init__(self, problem: Problem, *, database: SqliteDatabase, wanted_state: Callable[[], str]) -> None:
        super().__init__(problem, database=database, wanted_state=wanted_state)
        self._copyable = database

    def fork(self) -> Self:
        """Return an independent episode in the same state."""
        twin = type(self)(self._problem, database=self._copyable.fork(), wanted_state=self._wanted_state)
        twin._answer, twin._turns = self._answer, self._turns.copy()
        return twin


def tables_hash(database: Database, tables: Sequence[Table]) -> str | None:
    """Return AgentBench's hash of several tables: theirs, sorted, joined by underscores. None: a table is gone."""
    states = [database.rows(table) for table in tables]
    if any(rows is None for rows in states):
        return None
    # A table without rows has no hash; AgentBench writes down None.
    return "_".join(sorted(str(state_hash(rows)) for rows in states if rows is not None))
