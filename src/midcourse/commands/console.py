"""Two consoles and a progress bar: figures go to standard output, everything about how it goes to standard error."""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

import midcourse
from midcourse.commands.show import one_line, printable
from midcourse.errors import OutputError
from midcourse.recording.serialization import plain_values

output = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


class Advance(Protocol):
    """Moves a bar."""

    def __call__(self, done: int, note: str = "", total: int | None = None) -> None:
        """Show how many are done, a short text that says how it goes, and of how many where that was not known."""
        ...


class _RateColumn(ProgressColumn):
    """Finished items a second, or seconds an item where they are slow."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each", style="dim")


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Advance]:
    """Show a bar with rate and remaining time on standard error; yields the function that moves it.

    A total of None is one that is told later, with the first advance.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
    )
    with Progress(*columns, console=errors) as progress:
        task = progress.add_task(title, total=total, note="")

        def advance(done: int, note: str = "", total: int | None = None) -> None:
            progress.update(task, completed=done, note=one_line(note), total=total)

        yield advance


def print_json(value: Any) -> None:
    """Write one line of strict JSON to standard output; infinities and not-a-number become text."""
    readable = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(plain_values(value), ensure_ascii=not readable, allow_nan=False)
    # Half a surrogate pair has no bytes in UTF-8, and is spelled in JSON as backslashreplace spells it.
    print(text.encode("utf-8", "backslashreplace").decode(), flush=True)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of ours as one yellow line; those of libraries keep the place that they come from."""
    if Path(filename).is_relative_to(Path(midcourse.__file__).parent):
        errors.print(Text(f"warning: {printable(str(message))}", style="yellow"), soft_wrap=True)
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet. Raises OutputError where it is, or cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError as error:
        raise OutputError(f"{file} exists and is not overwritten") from error
    except OSError as error:
        raise OutputError(f"{file} cannot be written: {error.strerror}") from error
