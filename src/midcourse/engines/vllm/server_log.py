"""What a server's log says of its end."""

import os
import re
from pathlib import Path

ERROR_LINES = 12
LOG_BYTES = 200_000
_ERROR_LINE = re.compile(r"\b\w*(Error|Exception|Exit)\b: .+")


def text_of(log: Path, start: int = 0) -> str:
    """Return what stands from `start` on, no more than the last LOG_BYTES; nothing where there is no log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_errors(log: Path, start: int = 0) -> str:
    """Return the log's last different lines that name an error, each on a line of its own, or its last lines."""
    lines = text_of(log, start).splitlines()
    found = [match.group() for line in lines if " WARNING " not in line and (match := _ERROR_LINE.search(line))]
    return "".join(f"\n  {line}" for line in list(dict.fromkeys(found or lines))[-ERROR_LINES:])


def errors_and_log(log: Path, start: int = 0) -> str:
    """Return the end of an error message: where the log is and what it says last."""
    return f"; log: {log}{last_errors(log, start) or ' (empty)'}"
