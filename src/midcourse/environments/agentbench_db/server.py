"""MySQL 8 or MariaDB over a connection: one database and one account for each episode.

The account may do what an agent needs on its own database and nothing else: no files, no other database, no settings of
the server. Both are dropped with the episode. The policy's statements go over the account's own connection; what the
episode itself does (making tables, reading them) goes over connections of the administrator.
"""

import logging
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Protocol

import pymysql
from pymysql.connections import Connection

from midcourse.environments.agentbench_db.connection import (
    COLLATION,
    ENDED_CODES,
    GONE_CODES,
    ServerAddress,
    Stream,
    Watch,
    connect,
    error_code,
    quoted,
)
from midcourse.environments.agentbench_db.database import (
    Limits,
    StatementError,
    bounded_rows,
    shown_change,
    shown_rows,
)
from midcourse.environments.agentbench_db.tables import Row, Table
from midcourse.errors import EnvironmentFault

logger = logging.getLogger(__name__)

PRIVILEGES = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE VIEW, SHOW VIEW, CREATE TEMPORARY TABLES"
)
SHOWN_NAME = "midcourse"
"""What the policy reads in place of its database's and account's name, which is another for every episode."""
INSERT_CHARACTERS = 100_000
"""Text of rows from which on they are inserted by another statement: servers take statements of limited length."""
MAX_UNREAD_ROWS = 200
"""Rows behind those that are shown which are read so that the session can go on; with more, a new one is opened."""
_ONLY_READS = re.compile(r"[\s(]*(?:SELECT|WITH|VALUES)\b", re.IGNORECASE)


class DatabaseServer(Protocol):
    """A server that episodes make their databases on."""

    def address(self) -> ServerAddress:
        """Return where its administrator can reach it now. Raises EnvironmentFault where it cannot be started."""
        ...

    def close(self) -> None:
        """End it, where it is ours to end."""
        ...


class RunningServer:
    """A server that somebody else runs."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address

    def address(self) -> ServerAddress:
        """Return where it was said to be."""
        return self._address

    def close(self) -> None:
        """Leave it as it is."""


class ServerDatabase:
    """The tables of one episode on a server.

    Args:
        server: where to make them.
        tables: what they hold at the start.
        limits: of every statement.

    Raises:
        EnvironmentFault: the server does not answer, or refuses to make a database, an account or the tables.
    """

    def __init__(self, server: DatabaseServer, tables: Sequence[Table], limits: Limits) -> None:
        self._address = server.address()
        self._limits = limits
        self._name = f"midcourse{secrets.token_hex(6)}"  # no sign in it is a wildcard of GRANT
        # Some servers ask for every kind of character.
        self._account = replace(self._address, user=self._name, password=f"{secrets.token_hex(16)}!Aa1")
        self._session: Connection | None = None
        self._is_closed = False
        try:
            self._prepare(tables)
            self._session = self._open_session()
        except EnvironmentFault:
            self.close()
            raise

    def run(self, statement: str) -> str:
        """Return what one statement gives. Raises as `Database` says."""
        if self._is_closed:
            raise EnvironmentFault("the database of this episode is closed")
        if self._session is None:
            self._session = self._open_session()
        with Watch(self._session, self._account, seconds=self._limits.statement_seconds) as watch:
            try:
                text, is_read = self._result(self._session, statement, watch)
                error = None
            except (pymysql.MySQLError, UnicodeError) as caught:
                text, is_read, error = "", False, caught
        if watch.has_fired:
            self._renew_session()  # the watch may have come too late, and would end the next statement
            raise StatementError(f"the statement took longer than {self._limits.statement_seconds:g} s and was ended")
        if error is not None:
            raise self._judged(error) from error
        if is_read:
            self._commit(self._session)
        else:
            self._leave_session()
        return text

    def rows(self, table: Table) -> Sequence[Row] | None:
        """Return a table's rows as text. Raises as `Database` says."""
        columns = ", ".join(f"CAST({quoted(column)} AS CHAR)" for column in table.columns)
        query = f"SELECT {columns} FROM {quoted(self._name)}.{quoted(table.name)}"
        with self._administering() as connection, closing(connection.cursor(Stream)) as stream:
            try:
                with Watch(connection, self._address, seconds=self._limits.statement_seconds):
                    stream.execute(query)
                    return bounded_rows(stream)
            except pymysql.MySQLError as error:
                if error_code(error) in GONE_CODES:
                    raise
                return None

    def close(self) -> None:
        """Drop database and account. Where the server does not answer nothing can be dropped, and a warning says so."""
        if self._is_closed:
            return
        self._is_closed = True
        self._leave_session()
        try:
            with self._administering() as connection:
                connection.query(f"DROP DATABASE IF EXISTS {self._name}")
                connection.query(f"DROP USER IF EXISTS '{self._name}'@'%'")
        except EnvironmentFault as error:
            logger.warning("database %s of an episode could not be dropped: %s", self._name, error)

    def _prepare(self, tables: Sequence[Table]) -> None:
        with self._administering() as connection:
            for statement in (
                f"CREATE DATABASE {self._name} CHARACTER SET utf8mb4 COLLATE {COLLATION}",
                f"CREATE USER '{self._name}'@'%' IDENTIFIED BY '{self._account.password}'",
                f"GRANT {PRIVILEGES} ON {self._name}.* TO '{self._name}'@'%'",
            ):
                connection.query(statement)
            for table in tables:
                _make_table(connection, self._name, table)

    def _result(self, session: Connection, statement: str, watch: Watch) -> tuple[str, bool]:
        """Return what the policy reads, and whether all that the server sent was read."""
        with closing(session.cursor(Stream)) as stream:
            stream.execute(statement)
            if stream.description is None:
                return shown_change(stream.rowcount), True
            text = shown_rows(stream, self._limits.result_characters).replace(self._name, SHOWN_NAME)
            # A statement that changes rows and returns them must run to its end; others may be left.
            most = MAX_UNREAD_ROWS if _ONLY_READS.match(statement) else None
            for _ in islice(stream, most):
                if watch.has_fired:
                    return text, False
            return text, most is None or stream.fetchone() is None

    def _judged(self, error: Exception) -> Exception:
        """Return what an error of the driver means: something for the policy to read, or the end of the episode."""
        code = error_code(error)
        if code is None or code in GONE_CODES:
            self._leave_session()
            return EnvironmentFault(f"the database went away: {error}")
        if code in ENDED_CODES:
            self._renew_session()
            return StatementError("the session was ended, and another one was opened")
        message = str(error.args[1]) if len(error.args) > 1 else ""
        return StatementError(f"{code}: {message.replace(self._name, SHOWN_NAME)}")

    def _commit(self, session: Connection) -> None:
        """End a transaction with the call that it was begun or used in."""
        try:
            session.commit()
        except pymysql.MySQLError as error:
            reason = self._judged(error)
            if isinstance(reason, StatementError):
                self._renew_session()
                raise StatementError(f"{reason}; nothing was committed, and another session was opened") from error
            raise reason from error

    def _open_session(self) -> Connection:
        return connect(self._account, statement_seconds=self._limits.statement_seconds, database=self._name)

    def _leave_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _renew_session(self) -> None:
        self._leave_session()
        self._session = self._open_session()

    @contextmanager
    def _administering(self) -> Iterator[Connection]:
        """Give a connection of the administrator. The driver's errors become EnvironmentFault."""
        with closing(connect(self._address, statement_seconds=self._limits.statement_seconds)) as connection:
            try:
                yield connection
            except pymysql.MySQLError as error:
                raise EnvironmentFault(f"the database server refused or went away: {error}") from error


def try_server(server: DatabaseServer, limits: Limits) -> None:
    """Play the smallest episode: make a table, read it, drop it.

    Raises:
        EnvironmentFault: that cannot be done; the message says why.
    """
    with closing(ServerDatabase(server, [Table(name="trial", columns=["a"], rows=[["1"]])], limits)) as database:
        try:
            database.run("SELECT a FROM trial")
        except StatementError as error:
            raise EnvironmentFault(f"an episode's account cannot read its own table: {error}") from error


def _make_table(connection: Connection, database: str, table: Table) -> None:
    name = f"{database}.{quoted(table.name)}"
    connection.query(f"CREATE TABLE {name} ({', '.join(f'{quoted(column)} TEXT' for column in table.columns)})")
    for rows in _batches(connection, table.rows):
        connection.query(f"INSERT INTO {name} VALUES {', '.join(rows)}")


def _batches(connection: Connection, rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield rows as statements hold them, several at a time."""
    batch, length = [], 0
    for row in rows:
        values = ", ".join("NULL" if value is None else connection.escape(value) for value in row)
        batch.append(f"({values})")
        length += len(values)
        if length > INSERT_CHARACTERS:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
