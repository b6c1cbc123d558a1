"""Program that keeps one server for the process that started it, and ends all of it with that process or on request.

    python keeper.py PARENT STOP_SECONDS '["FOLDER", ...]' COMMAND [ARGUMENT ...]

Standard input is a pipe: when it closes, or process PARENT has ended in whatever way, the server and everything it
started get SIGTERM and, STOP_SECONDS later, SIGKILL. The same happens when the server ends by itself, so that no part
of it outlives another. Shared memory that a killed server leaves behind is removed, and the folders too once PARENT has
ended, which can then no longer do it. The keeper's exit status is the server's.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
SHARED_MEMORY = "/dev/shm/"
POLL_SECONDS = 0.05
LOOK_SECONDS = 2.0


def keep(command: Sequence[str], *, parent: int, stop_seconds: float, folders: Sequence[str]) -> int:
    """Run `command` until it ends, `parent` ends or standard input closes; return its exit status."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_keeper, start_new_session=True)
    shared: set[str] = set()
    try:
        with contextlib.suppress(ProcessLookupError):  # the parent has ended already
            watched = [sys.stdin, os.pidfd_open(parent), os.pidfd_open(server.pid)]
            while not select.select(watched, [], [], LOOK_SECONDS)[0]:
                shared |= _shared_memory(server.pid)
            shared |= _shared_memory(server.pid)
    finally:
        _end(server.pid, stop_seconds)
        for path in shared:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if not os.path.exists(f"/proc/{parent}"):
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
    return server.wait()


def _die_with_keeper() -> None:
    """Ask the kernel to kill the server if the keeper itself is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(session: int, stop_seconds: float) -> None:
    deadline = time.monotonic() + stop_seconds
    _signal(session, signal.SIGTERM)
    while _members(session) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    _signal(session, signal.SIGKILL)


def _signal(session: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(session, number)


def _members(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):  # it ends while it is looked at
                with open(f"/proc/{name}/stat", "rb") as file:
                    # After the name in parentheses, which may hold anything: state, parent, group, session.
                    state, _, _, its_session = file.read().rpartition(b")")[2].split()[:4]
                if int(its_session) == session and state != b"Z":
                    found.append(int(name))
    return found


def _shared_memory(session: int) -> set[str]:
    """Return the files that a session's processes share memory by: those that stand in no folder.

    A folder there is somebody's who keeps files in memory, as weights are.
    """
    paths = set()
    for process in _members(session):
        with contextlib.suppress(OSError), open(f"/proc/{process}/maps") as file:
            paths |= {line[line.index(SHARED_MEMORY) :].rstrip("\n") for line in file if SHARED_MEMORY in line}
    return {path for path in paths if os.path.dirname(path) + "/" == SHARED_MEMORY and not path.endswith(" (deleted)")}


if __name__ == "__main__":
    sys.exit(
        keep(sys.argv[4:], parent=int(sys.argv[1]), stop_seconds=float(sys.argv[2]), folders=json.loads(sys.argv[3]))
    )
