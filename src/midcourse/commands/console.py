"""Two consoles: figures go to standard output, everything about how it goes to standard error."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

import midcourse
from midcourse.commands.show import printable
from midcourse.errors import OutputError
from midcourse.recording.serialization import plain_values

output = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


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
