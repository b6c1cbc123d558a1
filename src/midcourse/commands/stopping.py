"""Ctrl-C and SIGTERM: what runs ends as a cancelled task ends, and one line says how to go on."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from midcourse.commands.console import errors

SIGNAL_STATUS = 128
"""A shell's status of a command that a signal ended is this plus the signal's number: 130, 143."""


@contextmanager
def unstoppable() -> Iterator[None]:
    """Leave Ctrl-C to the main process of several, which gets it too and tells the others what follows."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def stoppable(advice: str) -> Iterator[None]:
    """End the block on Ctrl-C or SIGTERM, with `advice` on standard error and the shell's status of that signal.

    In an event loop either cancels the main task, which closes what it opened; elsewhere, and when it comes twice,
    it ends what is under way at once.

    Raises:
        typer.Exit: a signal came.
    """
    received = signal.SIGINT

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = signal.SIGTERM
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # a shell ignores Ctrl-C for what it runs in the background
            raise KeyboardInterrupt
        interrupt(number, frame)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        errors.print(advice, markup=False, soft_wrap=True)
        raise typer.Exit(SIGNAL_STATUS + received) from None
    finally:
        signal.signal(signal.SIGTERM, before)
