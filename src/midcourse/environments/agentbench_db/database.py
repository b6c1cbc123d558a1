"""What an episode asks of a database, and how its answers read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from midcourse.environments.agentbench_db.tables import Row, Table

TRUNCATED = "[TRUNCATED]"
MAX_STATE_CHARACTERS = 2**26
"""Text from which on a table is in no state that a task asks for; it is not read any further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one statement may take."""

    statement_seconds: float
    result_characters: int


class StatementError(Exception):
    """A statement could not be run. The policy is told why: it says nothing about the database."""


class Database(Protocol):
    """The tables of one episode. Methods raise EnvironmentFault where the database itself does not answer."""

    def run(self, statement: str) -> str:
        """Return what one statement gives, as the policy reads it. What it changed is committed.

        Raises:
            StatementError: the statement is wrong, not allowed, or took too long.
        """
        ...

    def rows(self, table: Table) -> Sequence[Row] | None:
        """Return a table's rows as they are now, None where it is gone, lacks a column or is far too large."""
        ...

    def close(self) -> None:
        """Free the tables; safe to call twice."""
        ...


class BoundedText:
    """Text that takes pieces up to a number of characters."""

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._pieces: list[str] = []
        self._length = 0

    @property
    def is_full(self) -> bool:
        """Whether something had to be left out."""
        return self._length > self._max_characters

    def add(self, piece: str) -> None:
        """Add a piece; once full, nothing more is kept."""
        if not self.is_full:
            self._pieces.append(piece)
            self._length += len(piece)

    def __str__(self) -> str:
        text = "".join(self._pieces)
        return text[: self._max_characters] + TRUNCATED if self.is_full else text


def bounded_rows(rows: Iterable[Row]) -> list[Row] | None:
    """Return the rows of a table, None where they are more than any task asks for."""
    taken, size = [], 0
    for row in rows:
        size += sum(1 if value is None else 1 + len(value) for value in row)
        if size > MAX_STATE_CHARACTERS:
            return None
        taken.append(row)
    return taken


def shown_rows(rows: Iterable[Sequence[Any]], max_characters: int) -> str:
    """Return rows as AgentBench shows them: a Python list of tuples, cut at `max_characters`.

    Rows are taken one by one, and no more of them than are shown.
    """
    text = BoundedText(max_characters)
    text.add("[")
    for number, row in enumerate(rows):
        text.add(", " if number else "")
        text.add(f"({', '.join(map(_shown, row))}{',' if len(row) == 1 else ''})")
        if text.is_full:
            return str(text)
    text.add("]")
    return str(text)


def shown_change(num_rows: int) -> str:
    """Return what the policy is told of a statement without rows."""
    return "ok" if num_rows < 0 else f"ok, {num_rows} row{'' if num_rows == 1 else 's'} affected"


def _shown(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        value = value.decode("utf-8", "replace")
    if value is None or isinstance(value, str):
        return repr(value)
    return str(value)
