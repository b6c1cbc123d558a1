"""What code in a box may have left behind."""

import os
from pathlib import Path


def processes_with(mark: str) -> list[str]:
    """Return the command lines of this machine's other processes that hold the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in command:
                found.append(command.decode(errors="replace"))
    return found
