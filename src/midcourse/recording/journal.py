"""Finished waves of the updates since the last checkpoint, so that a killed run does not roll them out again.

One file a wave, journal/update_U/wave_W.jsonl: a first line with what the wave was asked for and a checksum, then one
group a line. A file appears under its name whole and synced, or not at all; one that is damaged all the same is
treated as not there.
"""

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from midcourse.errors import OutputError, RunFolderError
from midcourse.recording.serialization import group_from_dict, group_to_dict
from midcourse.recording.settings import check_same_settings
from midcourse.types import Group

_UPDATE_FOLDER = re.compile(r"update_(\d+)")


class Journal:
    """The waves of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(
        self, groups: Sequence[Group], *, update: int, wave: int, request: Any, settings: Mapping[str, str]
    ) -> None:
        """Store a finished wave; it is on disk when this returns.

        Args:
            groups: in the order of the wave's tasks.
            update: the update they are for.
            wave: 0-based, within the update.
            request: plain values that say what was asked for; `read` returns a wave for the same request only.
            settings: that the wave was rolled out under, key -> value; `read` returns it under the same ones only.

        Raises:
            OutputError: the disk is full or does not take the file.
        """
        lines = [json.dumps(group_to_dict(group), allow_nan=False) for group in groups]
        body = "".join(line + "\n" for line in lines).encode()
        head = {"request": request, "settings": dict(settings), "groups": len(lines), "crc32": zlib.crc32(body)}
        path = self._path(update, wave)
        partial = path.with_suffix(".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + body)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error

    def read(self, *, update: int, wave: int, request: Any, settings: Mapping[str, str]) -> list[Group] | None:
        """Return the groups of a stored wave, or None if there is none that is whole.

        Raises:
            OccupiedError: the stored wave was rolled out under other settings; the message names them.
            RunFolderError: it was made for another request: the run's tasks changed since.
        """
        path = self._path(update, wave)
        if not path.is_file():
            return None
        head_line, _, body = path.read_bytes().partition(b"\n")
        try:
            head = json.loads(head_line)
        except ValueError:
            return None
        if not isinstance(head, dict) or head.get("crc32") != zlib.crc32(body):
            return None
        check_same_settings(head.get("settings", {}), settings, place=path)
        if head["request"] != json.loads(json.dumps(request)):
            raise RunFolderError(
                f"{path} was rolled out for {head['request']}, now {request} is asked for: the run was started with "
                "other tasks; use them, or remove the journal folder"
            )
        return [group_from_dict(json.loads(line)) for line in body.splitlines()]

    def drop_up_to(self, update: int) -> None:
        """Remove the waves of `update` and of all before it: a checkpoint holds what came of them.

        Raises:
            OutputError: they cannot be removed.
        """
        with _removing(self.folder):
            for path in self.folder.iterdir() if self.folder.exists() else ():
                found = _UPDATE_FOLDER.fullmatch(path.name)
                if found and int(found[1]) <= update:
                    shutil.rmtree(path)

    def clear(self) -> None:
        """Remove all waves. Raises as `drop_up_to`."""
        with _removing(self.folder):
            if self.folder.exists():
                shutil.rmtree(self.folder)

    def _path(self, update: int, wave: int) -> Path:
        return self.folder / f"update_{update}" / f"wave_{wave}.jsonl"


@contextlib.contextmanager
def _removing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{error.filename or folder} cannot be removed: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
