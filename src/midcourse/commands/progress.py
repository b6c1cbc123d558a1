"""How far a command is, on standard error: a bar on a terminal, elsewhere (a file, a pipe) a plain line now and then.

Stages that take long before anything can be counted, a policy that is loaded or a server that starts, are told by what
the package logs at level INFO; its warnings are shown too.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from midcourse.commands.console import errors
from midcourse.commands.show import one_line, printable

SECONDS_BETWEEN_LINES = 30.0
"""Where there is no terminal: what is counted is told at most so often, a new stage at once."""


class Advance(Protocol):
    """Moves a bar."""

    def __call__(self, done: int, note: str = "", total: int | None = None) -> None:
        """Show how many are done, a short text that says how it goes, and of how many where that was not known."""
        ...


class _Shown(Protocol):
    """A bar, or lines in its place."""

    advance: Advance

    def begin(self, stage: str) -> None:
        """Tell a stage that begins."""
        ...


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Advance]:
    """Show how far it is, what begins, and warnings; yields the function that is told.

    A total of None is one that is told later, with the first advance.
    """
    shown: AbstractContextManager[_Shown] = (_bar if errors.is_terminal else _lines)(title, total)
    with shown as progress, _logged(progress.begin):
        yield progress.advance


class _RateColumn(ProgressColumn):
    """Finished items a second, or seconds an item where they are slow."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each", style="dim")


class _Bar:
    """A bar with rate and remaining time. From the beginning of a stage until something is counted it has its name."""

    def __init__(self, progress: Progress, title: str, total: int | None) -> None:
        self._progress, self._title = progress, title
        self._task = progress.add_task(title, total=total, note="")

    def begin(self, stage: str) -> None:
        errors.print(Text(stage, style="dim"), soft_wrap=True)  # stays, above the bar: a log's path is looked up later
        self._progress.update(self._task, description=re.split(r" \(|: ", stage)[0], note="")

    def advance(self, done: int, note: str = "", total: int | None = None) -> None:
        self._progress.update(self._task, description=self._title, completed=done, note=one_line(note), total=total)


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[_Bar]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
    )
    with Progress(*columns, console=errors) as progress:
        yield _Bar(progress, title, total)


class _Lines:
    """Lines with the seconds since the start. What is counted last is told in any case."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total = title, total
        self._started, self._told = time.monotonic(), -float("inf")
        self._untold = ""

    def begin(self, stage: str) -> None:
        self.flush()
        self._tell(stage)

    def advance(self, done: int, note: str = "", total: int | None = None) -> None:
        self._total = self._total if total is None else total
        parts = [f"{self._title} {done}" + ("" if self._total is None else f"/{self._total}"), one_line(note)]
        self._untold = ", ".join(filter(None, parts))
        if time.monotonic() - self._told >= SECONDS_BETWEEN_LINES:
            self.flush()

    def flush(self) -> None:
        if self._untold:
            self._tell(self._untold)
            self._untold = ""

    def _tell(self, text: str) -> None:
        self._told = time.monotonic()
        errors.print(f"[{self._told - self._started:6.0f} s] {text}", markup=False, soft_wrap=True)


@contextmanager
def _lines(title: str, total: int | None) -> Iterator[_Lines]:
    lines = _Lines(title, total)
    try:
        yield lines
    finally:
        lines.flush()


class _Teller(logging.Handler):
    """Tells what is logged: stages as they begin, warnings in yellow."""

    def __init__(self, begin: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._begin = begin

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            errors.print(Text(f"warning: {printable(record.getMessage())}", style="yellow"), soft_wrap=True)
        else:
            self._begin(one_line(record.getMessage()))


@contextmanager
def _logged(begin: Callable[[str], None]) -> Iterator[None]:
    ours, teller = logging.getLogger("midcourse"), _Teller(begin)
    before = ours.level
    ours.addHandler(teller)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.setLevel(before)
        ours.removeHandler(teller)
