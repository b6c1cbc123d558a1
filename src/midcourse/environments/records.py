"""Task files of JSON objects: JSON lines, one JSON list or one object, gzipped or not, checked by digest."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from midcourse.errors import DataError


def read_records(path: Path, *, sha256: str | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each JSON object of a file stands, and the object. JSON lines, a list or one object; .gz is unpacked.

    Raises:
        DataError: the file cannot be read, has another digest than `sha256`, or holds something else.
    """
    try:
        content = path.read_bytes()
        if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256.lower():
            raise DataError(f"{path} has sha256 {found}, expected {sha256}")
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    for where, record in _parsed(path, text):
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected a JSON object, got {type(record).__name__}")
        yield where, record


def _parsed(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    where = str(path)
    try:
        if text.lstrip().startswith("["):
            yield from ((f"{path}, entry {number}", record) for number, record in enumerate(json.loads(text)))
            return
        if text.split("\n", 1)[0].strip() == "{":  # no JSON line, so one object over several
            yield where, json.loads(text)
            return
        for number, line in enumerate(text.split("\n"), start=1):  # JSON text may hold other line separators
            where = f"{path}, line {number}"
            if line.strip():
                yield where, json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON: {error}") from error
