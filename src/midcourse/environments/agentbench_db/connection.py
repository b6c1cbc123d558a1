"""Connections to MySQL or MariaDB over PyMySQL: how they are opened, left in the middle, and ended from outside."""

import contextlib
import socket
import threading
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT
from pymysql.cursors import SSCursor

from midcourse.errors import EnvironmentFault

CONNECT_SECONDS = 10.0
GRACE_SECONDS = 15.0
"""How long after its time a statement may take to end before the database counts as gone."""
COLLATION = "utf8mb4_unicode_ci"
GONE_CODES = frozenset({1053, 2002, 2003, 2006, 2013, 2014, 2055, 4031})
"""Error codes that speak of the connection or the server and not of a statement."""
ENDED_CODES = frozenset({1317, 1927, 1969, 3024})
"""Error codes of a statement or session that was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server listens, and who asks."""

    user: str
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    host: str = "localhost"
    port: int = 3306


def connect(address: ServerAddress, *, statement_seconds: float, database: str | None = None) -> Connection:
    """Return an open connection on which every statement is committed by itself.

    Raises:
        EnvironmentFault: the server does not answer, or refuses the account.
    """
    seconds = statement_seconds + GRACE_SECONDS
    try:
        # The driver leaves a socket open that could not be connected; this one is closed here.
        opened = _open_socket(address)
        try:
            connection = pymysql.connect(
                user=address.user,
                password=address.password,
                host=address.host,
                database=database,
                charset="utf8mb4",
                collation=COLLATION,
                autocommit=True,
                # What AgentBench's references were made with: text that is no number is 0, and nothing is an error.
                init_command="SET SESSION sql_mode = '', lock_wait_timeout = 5",
                client_flag=CLIENT.FOUND_ROWS,  # an UPDATE counts the rows that it found, as in SQLite
                read_timeout=seconds,
                write_timeout=seconds,
                local_infile=False,
                # Encryption is settled by the driver where there is a network; to prepare it costs 40 ms a connection.
                ssl_disabled=address.unix_socket is not None,
                defer_connect=True,
            )
            connection.connect(opened)
        except BaseException:
            opened.close()
            raise
    except (pymysql.MySQLError, OSError, RuntimeError) as error:  # RuntimeError: a package for its login is missing
        raise EnvironmentFault(f"the database server does not answer: {error}") from error
    return connection


def _open_socket(address: ServerAddress) -> socket.socket:
    if address.unix_socket is None:
        opened = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(CONNECT_SECONDS)
        opened.connect(address.unix_socket)
    except BaseException:
        opened.close()
        raise
    return opened


def error_code(error: Exception) -> int | None:
    """Return the number of a driver's error, None where it has none: then the connection is in no known state."""
    return error.args[0] if error.args and isinstance(error.args[0], int) and error.args[0] > 0 else None


def quoted(name: str) -> str:
    """Return the name of a table or column as a statement holds it."""
    return "`" + name.replace("`", "``") + "`"


class Stream(SSCursor):
    """Rows one by one, that may be left before the last; the connection is then of no more use."""

    _result: Any  # of the driver, with no name in its public part

    def close(self) -> None:
        """Read no further."""
        if self._result is not None:
            self._result.unbuffered_active = False
        self.connection = None  # pyright: ignore[reportAttributeAccessIssue] (as the driver's own does)

    __del__ = close


class Watch:
    """Ends what a connection runs if the block takes too long. Leaving the block waits for an ending under way.

    Args:
        connection: whose statement it is.
        address: the server, and the account that the connection belongs to.
        seconds: how long the block may take.
    """

    def __init__(self, connection: Connection, address: ServerAddress, *, seconds: float) -> None:
        self.has_fired = False
        self._session = connection.thread_id()
        self._address = address
        self._seconds = seconds
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True

    def __enter__(self) -> "Watch":
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        if self.has_fired:
            self._timer.join(CONNECT_SECONDS + GRACE_SECONDS)

    def _fire(self) -> None:
        self.has_fired = True
        # Where the statement cannot be ended, the wait for its answer runs out, and the database counts as gone.
        with (
            contextlib.suppress(EnvironmentFault, pymysql.MySQLError),
            closing(connect(self._address, statement_seconds=self._seconds)) as other,
        ):
            other.query(f"KILL QUERY {self._session}")
