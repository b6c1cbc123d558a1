"""Calls into an environment, in a thread that cannot keep the process alive.

The standard executor joins its threads at interpreter exit, so one hung tool would hang the whole run. Here every
episode has one daemon thread of its own: calls of an episode stay in one thread (a database connection may not
travel between threads), and a thread whose call timed out is left behind and dies with the process.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any = None
    error: BaseException | None = None


class CallFailed(Exception):
    """The called code raised; `error` is what it raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


class CallTimedOut(Exception):
    """The called code did not return in time."""


class DaemonWorker:
    """Runs calls one after another in a daemon thread that starts with the first call."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] | None = None

    async def call(
        self,
        function: Callable[[], Value],
        *,
        timeout_seconds: float,
        if_late: Callable[[Value], None] | None = None,
    ) -> Value:
        """Return what `function` returns.

        Whatever the function raises, `SystemExit` and `TimeoutError` included, arrives as CallFailed: an exception
        of the world must not look like one of the loop. After a timeout the thread is left behind and the next call
        starts another. `if_late` gets the value of a call that returned after nobody waited for it any more.

        Raises:
            CallFailed: the function raised.
            CallTimedOut: it took longer than `timeout_seconds`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Outcome] = loop.create_future()

        def deliver(outcome: _Outcome) -> None:
            if not future.done():
                future.set_result(outcome)
            elif if_late is not None and outcome.error is None:
                threading.Thread(target=_run, args=(partial(if_late, outcome.value),), daemon=True).start()

        def job() -> None:
            outcome = _run(function)
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, outcome)

        self._submit(job)
        limit = asyncio.timeout(timeout_seconds)
        try:
            async with limit:
                outcome = await future
        except TimeoutError:
            self.leave()
            raise CallTimedOut(f"no answer within {timeout_seconds:g} s") from None
        except asyncio.CancelledError:
            self.leave()
            raise
        if outcome.error is not None:
            raise CallFailed(outcome.error) from outcome.error
        return outcome.value

    def post(self, function: Callable[[], Any]) -> None:
        """Run `function` after the calls before it. Nobody waits for it, and what it raises is lost."""
        self._submit(lambda: _run(function))

    def _submit(self, job: Callable[[], object]) -> None:
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._jobs,), name="midcourse-environment", daemon=True).start()
        self._jobs.put(job)

    def leave(self) -> None:
        """Let the thread end after its last job; a later call starts another."""
        if self._jobs is not None:
            self._jobs.put(None)
            self._jobs = None


def _serve(jobs: "queue.SimpleQueue[Callable[[], object] | None]") -> None:
    while (job := jobs.get()) is not None:
        job()


def _run(function: Callable[[], Any]) -> _Outcome:
    # The only broad catch of the rollout: it carries the exception out of the thread and judges nothing.
    try:
        return _Outcome(value=function())
    except BaseException as error:
        return _Outcome(error=error)
