"""Talking to a box: feed it, read what it writes, never more than asked for and never longer."""

import contextlib
import os
import select
import time
from dataclasses import dataclass
from enum import StrEnum

CHUNK_BYTES = 2**16


class Ending(StrEnum):
    """Why reading stopped."""

    CLOSED = "closed"  # every writer has gone
    NOT_STARTED = "not_started"  # nothing was written in the time it may take to come up, or at all
    TIMEOUT = "timeout"
    TOO_MUCH = "too_much"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was read, and why reading stopped."""

    output: bytes
    ending: Ending


def exchange(
    writer: int, reader: int, message: bytes, *, start_seconds: float, wall_seconds: float, output_bytes: int
) -> Exchange:
    """Write `message`, close `writer`, and return what comes out of `reader`.

    The first byte that comes out says that the box is up; from then on `wall_seconds` count.

    Args:
        writer: descriptor that the message goes to; closed here, sooner if nobody reads it.
        reader: descriptor that is read; stays open.
        message: bytes to write.
        start_seconds: longest wait for the first byte.
        wall_seconds: longest wait from the first byte to the end.
        output_bytes: most bytes that are read.
    """
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    poller.register(writer, select.POLLOUT)
    pending: memoryview | None = memoryview(message)
    output = bytearray()  # one buffer: a list of one-byte reads would take far more than it holds
    deadline = time.monotonic() + start_seconds
    try:
        while True:
            if pending is not None and not pending:
                poller.unregister(writer)
                os.close(writer)
                pending = None
            remaining = deadline - time.monotonic()
            events = dict(poller.poll(remaining * 1000)) if remaining > 0 else {}
            if not events:
                return Exchange(bytes(output), Ending.TIMEOUT if output else Ending.NOT_STARTED)
            if writer in events and pending is not None:
                # A pipe that is ready takes this much without blocking. Making it non-blocking instead would make it so
                # for everybody who shares this end.
                try:
                    pending = pending[os.write(writer, pending[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    pending = memoryview(b"")
            if reader in events:
                chunk = os.read(reader, CHUNK_BYTES)
                if not chunk:
                    return Exchange(bytes(output), Ending.CLOSED if output else Ending.NOT_STARTED)
                if not output:
                    deadline = time.monotonic() + wall_seconds
                output += chunk
                if len(output) > output_bytes:
                    return Exchange(bytes(output), Ending.TOO_MUCH)
    finally:
        if pending is not None:
            with contextlib.suppress(OSError):
                os.close(writer)
