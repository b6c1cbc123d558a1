"""When a batch may start: when every coroutine that will ask has asked.

Environments answer from threads, at times that differ from run to run. Were a batch started with whoever happens to
have asked, its shape, and with it the last bits of every matrix product, would differ too. So coroutines that will
ask again are counted, and a batch waits until each of them has a request pending and the event loop is quiet.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

QUIET_PASSES = 16  # passes of the loop without news: enough for a few gathers and callbacks to resolve one another


class Participant:
    """One coroutine (with the tasks it starts) that will ask. It is not waited for while one it holds is active."""

    def __init__(self, parent: "Participant | None") -> None:
        self.parent = parent
        self.num_children = 0
        self.is_late = False


_current: ContextVar[Participant | None] = ContextVar("midcourse_participant", default=None)


class Barrier:
    """Counts participants and waits for them."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._active: dict[Participant, None] = {}
        self._num_changes = 0
        self._changed: asyncio.Event | None = None

    def current(self) -> Participant | None:
        """Return the participant that the running coroutine belongs to here, if any; it is late no more."""
        participant = _current.get()
        if participant not in self._active:
            return None
        participant.is_late = False
        return participant

    @contextmanager
    def participant(self) -> Iterator[None]:
        """Count the running coroutine until the block ends."""
        parent = self.current()
        participant = Participant(parent)
        if parent is not None:
            parent.num_children += 1
        self._active[participant] = None
        token = _current.set(participant)
        self.notify()
        try:
            yield
        finally:
            _current.reset(token)
            del self._active[participant]
            if parent is not None:
                parent.num_children -= 1
            self.notify()

    def step_aside(self) -> None:
        """Wait for the running coroutine no more until it asks again; nothing happens where it is no participant."""
        participant = self.current()
        if participant is not None:
            participant.is_late = True
            self.notify()

    def notify(self) -> None:
        """Say that someone asked, came or left."""
        self._num_changes += 1
        if self._changed is not None:
            self._changed.set()

    def missing(self, asked: Collection[Participant | None]) -> list[Participant]:
        """Return who is still waited for."""
        return [
            participant
            for participant in self._active
            if participant not in asked and not participant.num_children and not participant.is_late
        ]

    async def wait(self, pending: list) -> None:
        """Return when the loop is quiet and every participant is among `pending` (items with `participant`).

        After the timeout those still missing are late: this batch and later ones do not wait for them until they ask.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_seconds
        self._changed = asyncio.Event()
        try:
            while True:
                await self._quiet()
                missing = self.missing({request.participant for request in pending})
                if not missing:
                    return
                try:
                    async with asyncio.timeout_at(deadline):
                        self._changed.clear()
                        await self._changed.wait()
                except TimeoutError:
                    for participant in missing:
                        participant.is_late = True
        finally:
            self._changed = None

    async def _quiet(self) -> None:
        passes = 0
        while passes < QUIET_PASSES:
            seen = self._num_changes
            await asyncio.sleep(0)
            passes = passes + 1 if seen == self._num_changes else 0
