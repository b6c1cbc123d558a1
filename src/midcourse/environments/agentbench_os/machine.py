"""One running system: a box, and what is asked of the process inside that runs things for it (guest.py)."""

import json
import os
import select
import time
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from midcourse.environments.agentbench_os.systems import SystemSandbox
from midcourse.errors import EnvironmentFault

ANSWER_BYTES = 2**20
COMMAND_BYTES = 16_384  # of a command's output; what the policy is shown is far less
SCRIPT_BYTES = 65_536  # of a script's output, which becomes an argument of the next
GRACE_SECONDS = 15.0  # that the guest has to end what ran too long, and to answer
LOADER = """
import os, sys
size, code = int(sys.argv[1]), b""
while len(code) < size:
    code += os.read(0, size - len(code)) or sys.exit()
exec(code)
"""
"""Takes the guest from the input: on the command line it would fill the output of `ps`."""


class MachineError(EnvironmentFault):
    """A system did not come up, went away, or does not answer as agreed."""


class Ran(BaseModel):
    """What came of a script or a command. Written inside the box: nothing in it is trusted but its types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    status: int | None  # None: it took too long, or could not be run
    output: str
    errors: str = ""  # of a script
    is_cut: bool = False
    too_many_processes: bool = False  # after a command: all were ended
    shell_ended: bool = False  # of a command: the shell went with it, and the next begins in a fresh one


class Machine:
    """A system of its own, from start to close. For one thread at a time.

    Args:
        sandbox: starts its box.
        seed: of its shells' $RANDOM, so that a fork draws the same.

    Raises:
        MachineError: it does not come up.
        SandboxError: neither does the box.
    """

    def __init__(self, sandbox: SystemSandbox, *, seed: int = 0) -> None:
        self._settings = sandbox.machine
        self._writable = list(sandbox.writable)
        limits = {
            "cpu": sandbox.limits.cpu_seconds,
            "memory": sandbox.limits.memory_bytes,
            "processes": sandbox.limits.processes,
            "per_user": not sandbox.has_own_users,
        }
        reader, self._writer = os.pipe()
        self._reader, writer = os.pipe()
        os.set_blocking(self._writer, False)
        source = guest_source()
        try:
            program = ["/usr/bin/python3", "-I", "-S", "-c", LOADER, str(len(source)), json.dumps(limits), str(seed)]
            self._box = sandbox.start(program, stdin=reader, stdout=writer)
        except BaseException:
            os.close(self._writer)
            os.close(self._reader)
            raise
        finally:
            os.close(reader)
            os.close(writer)
        self._is_closed = False
        try:
            self._write(source, time.monotonic() + self._settings.start_seconds)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def command_seconds(self) -> float:
        """Longest time of one command."""
        return self._settings.command_seconds

    def script(self, command: Sequence[str]) -> Ran:
        """Run a program of the task by itself, in root's home.

        Raises:
            MachineError: the system went away.
        """
        seconds = self._settings.script_seconds
        return self._ask({"command": list(command), "seconds": seconds, "bytes": SCRIPT_BYTES}, seconds)

    def command(self, text: str, *, is_raw: bool = False) -> Ran:
        """Run a command in the one shell; what it leaves there (folder, variables) is there for the next.

        Args:
            text: what to run.
            is_raw: have the shell read it as its own input, so that a shell begun by it reads the later commands.

        Raises:
            MachineError: the system went away.
        """
        seconds = self.command_seconds
        return self._ask({"text": text, "is_raw": is_raw, "seconds": seconds, "bytes": COMMAND_BYTES}, seconds)

    def shift_times(self, *, since: int, by: int) -> None:
        """Move the times of all files that were changed since `since` (nanoseconds, of the clock) by `by`.

        Raises:
            MachineError: the system went away.
        """
        self._ask({"folders": self._writable, "since": since, "by": by}, 0.0)

    def close(self) -> None:
        """End it and all that runs in it; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._box.close()
            os.close(self._writer)
            os.close(self._reader)

    def _ask(self, request: dict[str, Any], seconds: float) -> Ran:
        if self._is_closed:
            raise MachineError("this system is closed")
        deadline = time.monotonic() + seconds + GRACE_SECONDS + self._settings.start_seconds
        content = json.dumps(request).encode()
        self._write(len(content).to_bytes(4, "big") + content, deadline)
        length = int.from_bytes(self._read(4, deadline), "big")
        if length > ANSWER_BYTES:
            raise MachineError(f"the system answers with {length} bytes, more than {ANSWER_BYTES}")
        try:
            return Ran.model_validate_json(self._read(length, deadline))
        except ValidationError as error:
            raise MachineError(f"the system answers otherwise than agreed: {error.error_count()} fields") from error

    def _write(self, content: bytes, deadline: float) -> None:
        while content:
            _, ready, _ = select.select([], [self._writer], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise MachineError("the system does not read what it is asked")
            try:
                content = content[os.write(self._writer, content) :]
            except BrokenPipeError:
                raise MachineError(self._why_gone()) from None

    def _read(self, count: int, deadline: float) -> bytes:
        content = b""
        while len(content) < count:
            ready, _, _ = select.select([self._reader], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise MachineError("the system does not answer")
            chunk = os.read(self._reader, count - len(content))
            if not chunk:
                raise MachineError(self._why_gone())
            content += chunk
        return content

    def _why_gone(self) -> str:
        if self._box.ran_out_of_memory():
            return "the system ran out of memory and was ended"
        return f"the system ended: {self._box.error_text() or 'it said nothing'}"


@cache
def guest_source() -> bytes:
    """Return the program that runs inside."""
    return files("midcourse.environments.agentbench_os").joinpath("guest.py").read_bytes()
