"""The embedded database: SQLite in memory, one for each episode, that the policy's statements cannot leave.

Statements run in the training process. What keeps them there: an authorizer that knows only what works on the
episode's own tables (no ATTACH, VACUUM INTO, PRAGMA, extensions, virtual or temporary tables), a time limit that the
virtual machine asks about, and limits on the size of values, of the database and of SQLite's memory as a whole.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Self

from midcourse.environments.agentbench_db.database import (
    Limits,
    StatementError,
    bounded_rows,
    shown_change,
    shown_rows,
)
from midcourse.environments.agentbench_db.dialect import COLLATION, compare_text, to_sqlite
from midcourse.environments.agentbench_db.tables import Row, Table
from midcourse.errors import EnvironmentFault

PAGE_BYTES = 4096
MAX_PAGES = 4096  # 16 MiB
HEAP_BYTES = 2**29
"""Most memory of all SQLite databases of the process together; SQLite lets it be lowered and never raised."""
STEPS_BETWEEN_CHECKS = 100
"""Steps of the virtual machine after which the time is looked at: one step may work through a value of full size."""
ENGINE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 50_000,  # bytes of one value: some functions take its square in time
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
ALLOWED_ACTIONS = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_VIEW,
        sqlite3.SQLITE_DROP_TRIGGER,
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_REINDEX,
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_SAVEPOINT,
    }
)
ALLOWED_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info"})
REFUSED_FUNCTIONS = frozenset({"load_extension", "last_insert_rowid", "changes", "total_changes"})
"""The last three tell of the connection, not of the tables: a fork would answer otherwise."""
FORMATTING_FUNCTIONS = frozenset({"printf", "format"})
"""They fill any width in one step, which nothing can interrupt."""


class SqliteDatabase:
    """Tables of one episode in memory; `with_tables` makes one.

    Args:
        connection: not used by anything else.
        limits: of every statement.
    """

    def __init__(self, connection: sqlite3.Connection, limits: Limits) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._limits = limits
        self._guard = _Guard()
        connection.set_authorizer(self._guard)

    @classmethod
    def with_tables(cls, tables: Sequence[Table], limits: Limits) -> Self:
        """Return a database that holds `tables`.

        Raises:
            EnvironmentFault: SQLite cannot hold them: two columns have the same name, for example.
        """
        connection = _connect()
        try:
            for table in tables:
                columns = ", ".join(f"{_quoted(column)} TEXT COLLATE {COLLATION}" for column in table.columns)
                connection.execute(f"CREATE TABLE {_quoted(table.name)} ({columns})")
                places = ", ".join("?" * len(table.columns))
                connection.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({places})", table.rows)
        except sqlite3.Error as error:
            connection.close()
            raise EnvironmentFault(f"the tables cannot be made: {error}") from error
        return cls(_limited(connection), limits)

    def run(self, statement: str) -> str:
        """Return what one statement gives. Raises as `Database` says."""
        connection = self._open()
        try:
            with self._in_time(connection), closing(connection.execute(to_sqlite(statement))) as cursor:
                if cursor.description is None:
                    return shown_change(cursor.rowcount)
                return shown_rows(cursor, self._limits.result_characters)
        except MemoryError as error:
            raise StatementError("the statement needed too much memory and was ended") from error
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise StatementError(self._reason(error)) from error
        finally:
            # Transactions end with their call, so that a score or a fork never sees half of one.
            if self._connection is not None and connection.in_transaction:
                connection.commit()

    def rows(self, table: Table) -> Sequence[Row] | None:
        """Return a table's rows as text. Raises as `Database` says."""
        connection = self._open()
        columns = ", ".join(f"CAST({_quoted(column)} AS TEXT)" for column in table.columns)
        query = f"SELECT {columns} FROM main.{_quoted(table.name)}"
        try:
            with self._in_time(connection), closing(connection.execute(query)) as cursor:
                return bounded_rows(cursor)
        except (sqlite3.Error, MemoryError):
            return None

    def fork(self) -> Self:
        """Return a copy that shares nothing with this one."""
        original, connection = self._open(), _connect()
        original.backup(connection)
        return type(self)(_limited(connection), self._limits)

    def close(self) -> None:
        """Free the memory; a statement that another thread still runs is ended."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.interrupt()
            connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise EnvironmentFault("the database of this episode is closed")
        return self._connection

    @contextmanager
    def _in_time(self, connection: sqlite3.Connection) -> Iterator[None]:
        self._guard.is_altering = False
        deadline = time.monotonic() + self._limits.statement_seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_CHECKS)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, sqlite3.OperationalError) and str(error) == "interrupted":
            return f"the statement took longer than {self._limits.statement_seconds:g} s and was ended"
        return str(error)


def _connect() -> sqlite3.Connection:
    # An episode may be forked in one thread and played in another; it is never in two at once.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    connection.create_collation(COLLATION, compare_text)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    return connection


def _limited(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Return the connection with the limits of what a policy may use; what is in it already stays."""
    for pragma in (f"max_page_count = {MAX_PAGES}", f"hard_heap_limit = {HEAP_BYTES}", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    for limit, value in ENGINE_LIMITS.items():
        connection.setlimit(limit, value)
    return connection


class _Guard:
    """Says what a statement may do, piece by piece, while SQLite prepares it."""

    def __init__(self) -> None:
        self.is_altering = False  # ALTER TABLE formats texts of its own

    def __call__(self, action: int, first: str | None, second: str | None, database: str | None, by: str | None) -> int:
        if action == sqlite3.SQLITE_FUNCTION:
            name = (second or "").lower()
            allowed = name not in REFUSED_FUNCTIONS and (self.is_altering or name not in FORMATTING_FUNCTIONS)
        elif action == sqlite3.SQLITE_PRAGMA:
            allowed = (first or "").lower() in ALLOWED_PRAGMAS
        else:
            self.is_altering = self.is_altering or action == sqlite3.SQLITE_ALTER_TABLE
            allowed = action in ALLOWED_ACTIONS
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _quoted(name: str) -> str:
    # Not in double quotes, between which SQLite reads a name that does not exist as text.
    return "`" + name.replace("`", "``") + "`"
