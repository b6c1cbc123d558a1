"""Which database answers, and where it is found."""

import os
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from midcourse.errors import ConfigError

if TYPE_CHECKING:
    from midcourse.environments.agentbench_db.mariadb import MariaDBServer
    from midcourse.environments.agentbench_db.server import DatabaseServer

SCHEMES = ("mysql", "mariadb")


class MariaDBConfig(BaseModel):
    """A MariaDB server of midcourse's own."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folder: str | None = None
    """Where its temporary folder is made; none: in memory where there is 1 GiB free, else where temporary files go."""
    start_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Longest wait until it is set up and answers."""

    def build(self) -> "MariaDBServer":
        """Return the server, started.

        Raises:
            ConfigError: the driver or the server's programs are not there, or it does not come up.
        """
        require_driver()
        from midcourse.environments.agentbench_db.mariadb import MariaDBServer

        return MariaDBServer.started(self)


class ServerConfig(BaseModel):
    """A server that runs already."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str | None = None
    """mysql://USER@HOST:PORT or mysql://USER@localhost?unix_socket=PATH, of an account that may make accounts."""
    password_variable: str = "MIDCOURSE_DATABASE_PASSWORD"
    """Name of the environment variable that holds the account's password; not set: it has none."""

    @field_validator("url")
    @classmethod
    def _is_complete(cls, url: str | None) -> str | None:
        if url is not None:
            _parts(url)
        return url

    def build(self) -> "DatabaseServer":
        """Return where the server is.

        Raises:
            ConfigError: no URL is set, or the driver is not there.
        """
        require_driver()
        from midcourse.environments.agentbench_db.connection import ServerAddress
        from midcourse.environments.agentbench_db.server import RunningServer

        if self.url is None:
            raise ConfigError('environment.backend = "server" needs environment.server.url')
        parts = _parts(self.url)
        return RunningServer(
            ServerAddress(
                user=unquote(parts.username or ""),
                password=os.environ.get(self.password_variable, ""),
                unix_socket=parse_qs(parts.query).get("unix_socket", [None])[0],
                host=parts.hostname or "localhost",
                port=parts.port or 3306,
            )
        )


def require_driver() -> None:
    """Check that MySQL's driver is there.

    Raises:
        ConfigError: it is not.
    """
    try:
        import pymysql  # noqa: F401
    except ImportError as error:
        raise ConfigError("MariaDB and MySQL need a driver: pip install -e '.[mysql]' in the clone") from error


def _parts(url: str) -> SplitResult:
    expected = "expected mysql://USER@HOST:PORT or mysql://USER@localhost?unix_socket=PATH"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{expected}: {error}") from error
    if parts.password is not None:
        raise ValueError("a password would be saved with the settings: leave it out, and set password_variable")
    known = parse_qs(parts.query, keep_blank_values=True).keys() <= {"unix_socket"}
    if parts.scheme not in SCHEMES or not parts.username or not parts.hostname or parts.path.strip("/") or not known:
        raise ValueError(expected)
    return parts
