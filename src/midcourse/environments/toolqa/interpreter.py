"""A Python interpreter in a box that lives as long as its episode, and what the policy is told where it does not.

It starts with the first call. What a call does to names stays, what it does to the table does not. A call that ends the
interpreter, or that has to be ended, loses the names: the policy is told, and the next call has a new interpreter.
Nothing depends on when or how often: two episodes that make the same calls are told the same.
"""

import contextlib
import json
import os
import re
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from midcourse.environments.sandbox import Box, Sandbox, SandboxError
from midcourse.environments.sandbox.command import python_command
from midcourse.errors import EnvironmentFault

OPEN_FILES = 256
EXIT_SECONDS = 2.0
QUEUE_SECONDS = 600.0
CHUNK_BYTES = 2**16
ERROR_CHARACTERS = 600
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What interpreters of one environment have in common. Used by the threads of many episodes at once."""

    sandbox: Sandbox
    packages: Sequence[str]  # folders that code imports from
    table: str = field(repr=False)  # text of a CSV file
    output_characters: int
    places: threading.BoundedSemaphore  # calls that may run at once


@dataclass(frozen=True, slots=True)
class Shown:
    """What the policy is shown of a call."""

    text: str
    is_error: bool


class Interpreter:
    """Runs code, call by call, with `df`, `pd` and `np` and all names of earlier calls."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._session: _Session | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # a call that nobody waits for any more may still run when its episode is closed

    def run(self, code: str) -> Shown:
        """Return what the code wrote, cut, and the error that it ended with.

        Raises:
            EnvironmentFault: the interpreter does not start, there is no place for it, or it is closed.
        """
        with self._lock, self._place():
            if self._is_closed:
                raise EnvironmentFault("this interpreter is closed")
            if self._session is None:
                self._session = _Session(self._workshop)
            try:
                return self._shown(self._session.ask(code))
            except _SessionLost as lost:
                self._end_session()
                return Shown(
                    f"Error: {lost}. The next call has a new interpreter: names defined so far are gone.", True
                )

    def close(self) -> None:
        """End the process and everything it started; safe to call twice."""
        with self._lock:
            self._is_closed = True
            self._end_session()

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if not self._workshop.places.acquire(timeout=QUEUE_SECONDS):
            raise EnvironmentFault(f"no place was free to run code in within {QUEUE_SECONDS:g} s")
        try:
            yield
        finally:
            self._workshop.places.release()

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _shown(self, reply: "_Reply") -> Shown:
        text = reply.text[: self._workshop.output_characters]
        missing = reply.num_written - len(text)
        text = _clean(text).rstrip("\n")
        if missing > 0:
            text += f"\n... ({missing} more characters)"
        if reply.error is None:
            return Shown(text or "(no output: print what you want to see)", False)
        return Shown(f"{text}\nError: {_clean(reply.error[:ERROR_CHARACTERS])}".lstrip("\n"), True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """What came back of a call: the beginning of what it wrote, how many characters that were, its error."""

    text: str
    num_written: int
    error: str | None


class _SessionLost(Exception):
    """The interpreter's process cannot be used any more; the text says why."""


class _Session:
    """One process in its box."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._num_calls = 0
        config = workshop.sandbox.config
        settings = {
            "limits": _limits(workshop.sandbox),
            "packages": list(workshop.packages),
            "characters": workshop.output_characters,
            "is_alone": config.kind == "bubblewrap",  # the box's processes are then all that it can see
        }
        program = python_command(_guest_source(), [json.dumps(settings)])
        (unread, self._requests), (self._replies, written) = os.pipe(), os.pipe()
        self._box: Box | None = None
        try:
            self._box = workshop.sandbox.start(program, stdin=unread, stdout=written)
            os.close(unread)
            os.close(written)
            unread = written = -1
            try:
                heard = self._converse({"table": workshop.table}, config.start_seconds)
            except _SessionLost as lost:
                raise SandboxError(f"the interpreter did not start: {lost}; {self._box.error_text()[-500:]}") from lost
            if heard != b'{"ready": true}\n':
                raise SandboxError(f"the interpreter did not start: it said {heard[:100]!r}")
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in (unread, written):
                if descriptor >= 0:
                    os.close(descriptor)

    def ask(self, code: str) -> _Reply:
        """Return the reply to a call.

        Raises:
            _SessionLost: there is none, or none that can be used.
        """
        line = self._converse({"code": code}, self._workshop.sandbox.config.wall_seconds)
        reply = _read_reply(line, number=self._num_calls)
        if reply is None:
            raise _SessionLost("the interpreter's reply cannot be read; it was ended")
        self._num_calls += 1
        return reply

    def close(self) -> None:
        """Kill the box; safe to call twice."""
        if self._box is not None:
            self._box.close()
            self._box = None
        for descriptor in (self._requests, self._replies):
            if descriptor >= 0:
                os.close(descriptor)
        self._requests = self._replies = -1

    def _why_gone(self) -> str:
        assert self._box is not None
        status = self._box.wait(EXIT_SECONDS)
        if self._box.ran_out_of_memory():
            return "the code used more memory than it may, and the interpreter was ended"
        cpu_seconds = self._workshop.sandbox.limits.cpu_seconds
        return f"the interpreter ended with status {status}; it may use {cpu_seconds} s of CPU time in all its calls"

    def _converse(self, message: Mapping[str, Any], seconds: float) -> bytes:
        """Send a line, and return what came back up to the end of a line or more.

        Raises:
            _SessionLost: nothing came in time, too much, or the process ended.
        """
        pending = memoryview(json.dumps(message).encode() + b"\n")
        heard = bytearray()
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        poller.register(self._requests, select.POLLOUT)
        deadline = time.monotonic() + seconds
        while b"\n" not in heard[-CHUNK_BYTES:]:
            remaining = deadline - time.monotonic()
            events = dict(poller.poll(remaining * 1000)) if remaining > 0 else {}
            if not events:
                raise _SessionLost(f"it was not done within {seconds:g} s and was ended")
            if self._requests in events:
                try:
                    # A pipe that is ready takes this much without blocking.
                    pending = pending[os.write(self._requests, pending[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    pending = memoryview(b"")
                if not pending:
                    poller.unregister(self._requests)
            if self._replies in events:
                chunk = os.read(self._replies, CHUNK_BYTES)
                if not chunk:
                    raise _SessionLost(self._why_gone())
                heard += chunk
                if len(heard) > self._workshop.sandbox.config.output_bytes:
                    raise _SessionLost("the interpreter's reply is too long; it was ended")
        return bytes(heard)


def _read_reply(line: bytes, *, number: int) -> _Reply | None:
    """Return a reply that is in order, else None: code can write anything to any descriptor that it finds."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(reply, dict) or reply.get("number") != number:
        return None
    text, written, error = (reply.get(name) for name in ("text", "written", "error"))
    if not isinstance(text, str) or not isinstance(error, str | None):
        return None
    if not isinstance(written, int) or not 0 <= written < 2**63:
        return None
    return _Reply(text=text, num_written=written, error=error)


def _clean(text: str) -> str:
    """Return text that every tokenizer takes, without addresses, which differ from run to run."""
    return _ADDRESS.sub("at 0x...", text.encode("utf-8", "replace").decode())


def _limits(sandbox: Sandbox) -> Mapping[str, int]:
    limits = sandbox.limits
    return {
        "memory": limits.memory_bytes,
        "file": limits.file_bytes,
        "cpu": limits.cpu_seconds,
        "processes": limits.processes,
        "files": OPEN_FILES,
    }


@cache
def _guest_source() -> str:
    text = files("midcourse.environments.toolqa").joinpath("guest.py").read_text(encoding="utf-8")
    return f"{text}\n\nmain()\n"
