"""Program that sets up and keeps one MariaDB server for the process that started it, and ends it with that process.

    python mariadb_keeper.py FOLDER FILE_BYTES '[["mariadb-install-db", ...], ["mariadbd", ...]]'

Its standard input is a pipe, which closes when its other end does, however that process ended: then what runs is killed
and FOLDER is removed. The same happens when the server ends by itself.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def keep(folder: str, commands: Sequence[Sequence[str]], *, file_bytes: int) -> None:
    """Run commands one after another while they succeed and standard input is open; then remove the folder.

    None of their files may grow beyond `file_bytes`.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    try:
        for command in commands:
            if not _succeeds(command):
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _succeeds(command: Sequence[str]) -> bool:
    # Signals stay as they are in this process, so that a file grown too large is an error of the server, not its end.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_keeper,
        restore_signals=False,
        start_new_session=True,
    )
    try:
        ready, _, _ = select.select([sys.stdin, os.pidfd_open(process.pid)], [], [])
        return sys.stdin not in ready and process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of it ended already
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _die_with_keeper() -> None:
    """Ask the kernel to kill the server if the keeper itself is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    keep(sys.argv[1], json.loads(sys.argv[3]), file_bytes=int(sys.argv[2]))
