"""MariaDB as the project's own: started on a private socket in a temporary folder, gone with the process.

The Debian packages mariadb-server-core and mariadb-client-core are enough; no service and no account of the system is
touched. The server listens on no port. Nothing it holds outlives it, so it writes nothing through to a disk.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import closing
from pathlib import Path
from typing import IO, Self

from midcourse.environments.agentbench_db import mariadb_keeper
from midcourse.environments.agentbench_db.connection import ServerAddress, connect
from midcourse.environments.agentbench_db.settings import MariaDBConfig
from midcourse.errors import ConfigError, EnvironmentFault

PROGRAMS = ("mariadbd", "mariadb-install-db")
FOLDER_PREFIX = "midcourse-mariadb-"
MEMORY_FOLDER = Path("/dev/shm")
MIN_FREE_BYTES = 2**30
MAX_SOCKET_BYTES = 107
FILE_BYTES = 2**27
"""Most that one file of the server may grow to, so that no table fills the disk or the memory that it is in."""
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
STOP_SECONDS = 10.0
ERROR_CHARACTERS = 1000
LOCK_NAME = "keeper.lock"
STORAGE_OPTIONS = (
    "--innodb-log-file-size=8M",
    "--innodb-data-file-path=ibdata1:12M:autoextend",
    "--innodb-file-per-table=ON",
)
SERVER_OPTIONS = (
    "--skip-networking",
    "--skip-name-resolve",
    "--skip-symbolic-links",
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=32M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-temp-data-file-path=ibtmp1:12M:autoextend:max:96M",
    "--enforce-storage-engine=InnoDB",
    "--max-connections=1000",
    "--connect-timeout=60",
    "--max-allowed-packet=256K",  # a table of larger values that runs full brings the server down
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_unicode_ci",
    "--sql-mode=",
)


class MariaDBServer:
    """One server process and its folder. Safe to use from several threads at once.

    A server that died is started anew, with nothing in it, when its address is next asked for.
    """

    def __init__(self, config: MariaDBConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._keeper: _Keeper | None = None

    @classmethod
    def started(cls, config: MariaDBConfig) -> Self:
        """Return a server that answers.

        Raises:
            ConfigError: its programs are not there, or it does not come up.
        """
        missing = [program for program in PROGRAMS if _program(program) is None]
        if missing:
            raise ConfigError(
                f'environment.backend = "mariadb": {" and ".join(missing)} not found; install the packages '
                'mariadb-server-core and mariadb-client-core (Debian, Ubuntu), or use backend "sqlite"'
            )
        server = cls(config)
        try:
            server.address()
        except EnvironmentFault as error:
            raise ConfigError(f'environment.backend = "mariadb": {error}') from error
        return server

    def address(self) -> ServerAddress:
        """Return where it listens. Raises EnvironmentFault where it cannot be started."""
        with self._lock:
            if self._keeper is not None and not self._keeper.is_listening():
                self._keeper.stop()
                self._keeper = None
            if self._keeper is None:
                self._keeper = _Keeper(self._config)
            return _address(self._keeper.socket)

    def close(self) -> None:
        """End the server and remove its folder; it also happens when this object or its process goes."""
        with self._lock:
            if self._keeper is not None:
                self._keeper.stop()
                self._keeper = None


class _Keeper:
    """A keeper's process, with the server that it keeps, which answers by now."""

    def __init__(self, config: MariaDBConfig) -> None:
        folder, lock = _make_folder(_parent_folder(config))
        self.socket = folder / "server.sock"
        with tempfile.TemporaryFile() as log:
            try:
                if len(os.fsencode(self.socket)) > MAX_SOCKET_BYTES:
                    raise EnvironmentFault(
                        f"the path {self.socket} is too long for a socket: set environment.mariadb.folder to a "
                        "shorter one"
                    )
                self._process = self._start(folder, lock=lock, log=log)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            finally:
                os.close(lock)
            self.stop = weakref.finalize(self, _stop, self._process, folder, os.getpid())
            try:
                self._wait(config.start_seconds, log=log)
            except BaseException:
                self.stop()
                raise

    def is_listening(self) -> bool:
        """Return whether the server takes connections: one that died does not, also before its keeper noticed."""
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as trial:
            trial.settimeout(STOP_SECONDS)
            return trial.connect_ex(str(self.socket)) == 0

    def _start(self, folder: Path, *, lock: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        for name in ("temporary", "exchange"):
            (folder / name).mkdir()
        installation = [
            *_command("mariadb-install-db", folder),
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            f"--tmpdir={folder / 'temporary'}",
        ]
        server = [
            *_command("mariadbd", folder),
            f"--socket={self.socket}",
            f"--pid-file={folder / 'server.pid'}",
            f"--tmpdir={folder / 'temporary'}",
            f"--secure-file-priv={folder / 'exchange'}",
            *SERVER_OPTIONS,
        ]
        keeper = [sys.executable, "-I", "-S", mariadb_keeper.__file__, str(folder), str(FILE_BYTES)]
        return subprocess.Popen(
            [*keeper, json.dumps([installation, server])],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C is for this process; the keeper notices its end
        )

    def _wait(self, seconds: float, *, log: IO[bytes]) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                connect(_address(self.socket), statement_seconds=seconds).close()
                return
            except EnvironmentFault as error:
                is_running = self._process.poll() is None  # the keeper ends with its server
                if is_running and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                how = f"did not answer within {seconds:g} s" if is_running else "ended"
                raise EnvironmentFault(f"MariaDB {how}: {_end_of(log)}") from error


def _address(socket_path: Path) -> ServerAddress:
    return ServerAddress(user="root", unix_socket=str(socket_path))


def _stop(process: subprocess.Popen[bytes], folder: Path, owner: int) -> None:
    if os.getpid() != owner:
        return  # a copy of the process that started it: not its server to end
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}")


def _command(program: str, folder: Path) -> list[str]:
    user = ["--user=root"] if os.geteuid() == 0 else []  # the server refuses to run as root unless told to
    return [_program(program) or program, "--no-defaults", f"--datadir={folder / 'data'}", *user, *STORAGE_OPTIONS]


def _parent_folder(config: MariaDBConfig) -> Path:
    if config.folder is not None:
        return Path(config.folder).absolute()
    with contextlib.suppress(OSError):
        if os.access(MEMORY_FOLDER, os.W_OK) and shutil.disk_usage(MEMORY_FOLDER).free >= MIN_FREE_BYTES:
            return MEMORY_FOLDER
    return Path(tempfile.gettempdir())


def _make_folder(parent: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor of a lock on it, which is held for as long as anybody uses the folder.

    Raises:
        EnvironmentFault: it cannot be made.
    """
    try:
        remove_abandoned(parent)
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EnvironmentFault(f"no folder for MariaDB can be made in {parent}: {error}") from error
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def remove_abandoned(parent: Path) -> None:
    """Remove folders that were left behind when a server and its keeper were killed at once: none holds their lock."""
    for path in parent.glob(f"{FOLDER_PREFIX}*/{LOCK_NAME}"):
        try:
            lock = os.open(path, os.O_RDWR)
        except OSError:
            continue  # somebody else's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _end_of(log: IO[bytes]) -> str:
    length = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), ERROR_CHARACTERS, max(length - ERROR_CHARACTERS, 0))
    return text.decode(errors="replace").strip() or "it left no message"
