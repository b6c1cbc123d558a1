"""Data files of the environments: listed, and looked for in a folder by name and digest."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.text import Text

from midcourse.commands.datasets import DATASETS, DataFile, Dataset
from midcourse.commands.show import one_line
from midcourse.errors import ConfigError, DataError

MAX_ENTRIES = 100_000
CHUNK_BYTES = 2**20


class Version(StrEnum):
    """What is known of a file that was looked for."""

    TESTED = "tested"  # its digest is that of the version that was tested
    UNKNOWN = "unknown"  # it has the name and another digest, which may well be read
    UNREADABLE = "unreadable"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One known file, and what a folder has of it."""

    dataset: Dataset
    file: DataFile
    version: Version
    path: str = ""  # within the folder, as it is found there
    size: int = 0
    sha256: str = ""


def chosen_datasets(names: Sequence[str]) -> Sequence[Dataset]:
    """Return the datasets of these names, all where there is none.

    Raises:
        ConfigError: there is no such dataset.
    """
    known = {dataset.name: dataset for dataset in DATASETS}
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown dataset {name!r}; known: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)] or DATASETS


def look_into(folder: Path, datasets: Sequence[Dataset]) -> list[Found]:
    """Return what a folder and those below it have of each file: the tested version under any name, else another one.

    Only files of a known name or size are read.

    Raises:
        DataError: the folder cannot be read, or holds too many files to be one of data.
    """
    sizes = {file.size for dataset in datasets for file in dataset.files}
    digests: dict[str, str] = {}
    entries = dict(_entries(folder))
    for path, size in entries.items():
        if size in sizes or any(file.is_named(path) for dataset in datasets for file in dataset.files):
            digests[path] = _digest(folder / path)
    return [_found(dataset, file, entries, digests) for dataset in datasets for file in dataset.files]


def _found(dataset: Dataset, file: DataFile, sizes: Mapping[str, int], digests: Mapping[str, str]) -> Found:
    named = [path for path in digests if file.is_named(path)]
    tested = [path for path, digest in digests.items() if digest == file.sha256]
    # A file of the right content comes first, one that is also called so before one that was renamed.
    for path in sorted(tested, key=lambda path: (path not in named, path)):
        return Found(
            dataset=dataset, file=file, version=Version.TESTED, path=path, size=sizes[path], sha256=digests[path]
        )
    for path in sorted(named):
        version = Version.UNKNOWN if digests[path] else Version.UNREADABLE
        return Found(dataset=dataset, file=file, version=version, path=path, size=sizes[path], sha256=digests[path])
    return Found(dataset=dataset, file=file, version=Version.ABSENT)


def _entries(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield path within the folder, with slashes, and size of every regular file that is not hidden."""

    def refuse(error: OSError) -> None:
        if error.filename is None or Path(error.filename) == folder:
            raise DataError(f"{folder} cannot be read: {error.strerror}") from error

    if not os.path.isdir(folder):
        raise DataError(f"{folder} is no folder")
    count = 0
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            count += 1
            if count > MAX_ENTRIES:
                raise DataError(f"{folder} holds more than {MAX_ENTRIES} files: name the folder of the data files")
            path = Path(place, name)
            if path.is_file() and not name.startswith("."):
                yield path.relative_to(folder).as_posix(), path.stat().st_size


def _digest(path: Path) -> str:
    """Return the sha256 of a file, empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


def listing_lines(datasets: Sequence[Dataset]) -> Iterator[Text]:
    """Yield what to print about datasets: what they are, where they are published, and how a run is told of them."""
    for dataset in datasets:
        yield _title(dataset)
        yield Text(f"  from     {dataset.where}")
        yield Text(f"  licence  {dataset.licence}")
        for file in dataset.files:
            yield Text(f"  file     {file.name}: {file.content}, {file.size} bytes, sha256 {file.sha256}")
        if dataset.note:
            yield Text(f"  note     {dataset.note}")
        for number, line in enumerate("\n".join(dataset.settings).split("\n")):
            yield Text(f"  {'settings' if number == 0 else '':<8} {line}", style="dim")


def found_lines(folder: Path, datasets: Sequence[Dataset], found: Sequence[Found]) -> Iterator[Text]:
    """Yield what to print about a folder: each known file with its version."""
    styles = {Version.TESTED: "green", Version.UNKNOWN: "yellow", Version.UNREADABLE: "red", Version.ABSENT: "dim"}
    for dataset in datasets:
        yield _title(dataset)
        if not dataset.files:
            yield Text(f"  not looked for: {dataset.note}")
        for item in found:
            if item.dataset is not dataset:
                continue
            line = Text("  ").append(f"{item.version:<11}", style=styles[item.version])
            yield line.append(item.file.name if item.version is Version.ABSENT else one_line(item.path))
            if item.version is Version.UNKNOWN:
                yield Text(f"{'':13}{item.size} bytes, sha256 {item.sha256}")
                yield Text(f"{'':13}tested was {item.file.size} bytes, sha256 {item.file.sha256}", style="dim")
    counts = {version: sum(item.version is version for item in found) for version in Version}
    told = ", ".join(f"{count} {version}" for version, count in counts.items())
    yield Text(f"\n{one_line(str(folder))}: {told}")
    if counts[Version.UNKNOWN]:
        yield Text("unknown: another version than the tested one. It is read all the same, if it has the same form.")


def _title(dataset: Dataset) -> Text:
    return Text(f"\n{dataset.title} ", style="bold").append(
        f"({dataset.name}; environment {dataset.environment}, {dataset.docs})", style="not bold"
    )


def listing_json(datasets: Sequence[Dataset]) -> list[dict[str, Any]]:
    """Return datasets as plain values."""
    return [
        {
            "name": dataset.name,
            "title": dataset.title,
            "environment": dataset.environment,
            "where": dataset.where,
            "licence": dataset.licence,
            "note": dataset.note,
            "docs": dataset.docs,
            "settings": "\n".join(dataset.settings),
            "files": [
                {"name": file.name, "content": file.content, "bytes": file.size, "sha256": file.sha256}
                for file in dataset.files
            ],
        }
        for dataset in datasets
    ]


def found_json(folder: Path, found: Sequence[Found]) -> dict[str, Any]:
    """Return what a folder has as plain values; the version is one of tested, unknown, unreadable, absent."""
    return {
        "folder": str(folder),
        "files": [
            {
                "dataset": item.dataset.name,
                "name": item.file.name,
                "version": item.version.value,
                "path": item.path or None,
                "bytes": item.size if item.path else None,
                "sha256": item.sha256 or None,
                "tested_bytes": item.file.size,
                "tested_sha256": item.file.sha256,
            }
            for item in found
        ],
    }


def data_lines(folder: Path | None, datasets: Sequence[Dataset]) -> Iterator[Text]:
    """Yield what `midcourse data` prints: about the datasets, or about what a folder has of them."""
    yield from listing_lines(datasets) if folder is None else found_lines(folder, datasets, look_into(folder, datasets))


def data_json(folder: Path | None, datasets: Sequence[Dataset]) -> Any:
    """Return the same as plain values."""
    return listing_json(datasets) if folder is None else found_json(folder, look_into(folder, datasets))
