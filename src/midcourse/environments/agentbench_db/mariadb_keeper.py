"""Program that keeps one MariaDB server for the process that started it, and ends it when that process is gone.

    python mariadb_keeper.py FOLDER FILE_BYTES PROGRAM ARGUMENT...

Its standard input is a pipe, which closes when its other end does, however that process ended: then the server is
killed and FOLDER is removed. The same happens when the server ends by itself.
"""

import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def keep(folder: str, command: Sequence[str], *, file_bytes: int) -> None:
    """Run `command` until it ends or standard input closes; none of its files may grow beyond `file_bytes`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    # As in this process, a file that is too large is then an error of the server and not its end.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_keeper, restore_signals=False)
    try:
        select.select([sys.stdin, os.pidfd_open(server.pid)], [], [])
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _die_with_keeper() -> None:
    """Ask the kernel to kill the server if the keeper itself is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    keep(sys.argv[1], sys.argv[3:], file_bytes=int(sys.argv[2]))
