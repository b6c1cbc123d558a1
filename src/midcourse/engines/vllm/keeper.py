"""Program that keeps one server for the process that started it, and ends all of it with that process or on request.

    python keeper.py PARENT STOP_SECONDS '["FOLDER", ...]' COMMAND [ARGUMENT ...]

It leads a session of which the server and all that it starts are members. Standard input is a pipe: when it closes, or
process PARENT has ended in whatever way, the members get SIGTERM and, STOP_SECONDS later, SIGKILL. The same happens
when the server ends by itself, so that no part of it outlives another. The folders are removed once PARENT has ended,
which can then no longer do it. The exit status is the server's.
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
KEEPER_VARIABLE = "MIDCOURSE_KEEPER"
"""Tells the server's parts the keeper's process, without which they are to end."""
SHARED_MEMORY = "/dev/shm"
POLL_SECONDS = 0.05
LOOK_SECONDS = 2.0
KILL_SECONDS = 5.0


def keep(command: Sequence[str], *, parent: int, stop_seconds: float, folders: Sequence[str]) -> int:
    """Run `command` until it ends, `parent` ends or standard input closes; return its exit status.

    Raises:
        ProcessLookupError: `parent` has ended already; nothing was started.
    """
    session, owner = os.getpid(), os.pidfd_open(parent)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env={**os.environ, KEEPER_VARIABLE: str(session)},
        preexec_fn=_die_with_keeper,
    )
    memory: set[str] = set()
    try:
        watched = [sys.stdin, owner, os.pidfd_open(server.pid)]
        while not select.select(watched, [], [], LOOK_SECONDS)[0]:
            memory |= shared_memory(session)
    finally:
        end_members(session, stop_seconds=stop_seconds, memory=memory)
        if select.select([owner], [], [], 0)[0]:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
    return server.wait()


def end_members(session: int, *, stop_seconds: float, memory: set[str]) -> None:
    """End a session's processes but its leader, and remove what they share memory by, `memory` included.

    A server that is killed leaves it behind.
    """
    memory = memory | shared_memory(session)
    deadline = time.monotonic() + stop_seconds
    _signal(session, signal.SIGTERM)
    while _members(session) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS  # a process that a driver holds cannot be waited for
    while _members(session) and time.monotonic() < deadline:  # one may have started another meanwhile
        _signal(session, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    for path in memory:
        with contextlib.suppress(OSError):
            os.unlink(path)


def shared_memory(session: int) -> set[str]:
    """Return the files that a session's processes share memory by: those that stand in no folder.

    A folder there is somebody's who keeps files in memory, as weights are.
    """
    paths = set()
    for process in _members(session):
        with contextlib.suppress(OSError), open(f"/proc/{process}/maps") as file:
            for line in file:
                path = line.rstrip("\n").partition("/")
                paths.add(path[1] + path[2])
    return {path for path in paths if os.path.dirname(path) == SHARED_MEMORY and not path.endswith(" (deleted)")}


def _die_with_keeper() -> None:
    """Ask the kernel to kill the server if the keeper itself is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal(session: int, number: signal.Signals) -> None:
    for process in _members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _members(session: int) -> list[int]:
    """Return the living processes of a session, its leader left out."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != session:
            with contextlib.suppress(OSError, ValueError):  # it ends while it is looked at
                with open(f"/proc/{name}/stat", "rb") as file:
                    # After the name in parentheses, which may hold anything: state, parent, group, session.
                    state, _, _, its_session = file.read().rpartition(b")")[2].split()[:4]
                if int(its_session) == session and state not in (b"Z", b"X"):
                    found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(
        keep(sys.argv[4:], parent=int(sys.argv[1]), stop_seconds=float(sys.argv[2]), folders=json.loads(sys.argv[3]))
    )
