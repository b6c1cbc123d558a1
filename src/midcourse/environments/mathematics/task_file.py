"""Mathematics problems from a file: JSONL, Parquet, or a Hugging Face dataset as `save_to_disk` wrote it."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midcourse.environments.mathematics.answers import has_box, last_boxed
from midcourse.errors import ConfigError, DataError

DEFAULT_SOLUTION_FIELD = "solution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem. `solution` is empty where the file has none."""

    problem: str
    answer: str  # LaTeX or plain text, without dollar signs or box
    solution: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """Under which names a file keeps what a problem consists of."""

    problem: str = "problem"
    answer: str = "answer"
    solution: str = DEFAULT_SOLUTION_FIELD


def read_problems(path: Path, *, fields: FieldNames, max_answer_characters: int) -> list[Problem]:
    """Return the problems of a file, in its order.

    A problem is text, an answer text or a finite number, a solution text or null. White space around them, dollar
    signs around an answer and a box around it are taken off.

    Args:
        path: `.jsonl` (one object a line, empty lines skipped), `.parquet`, or a folder that `save_to_disk` wrote.
        fields: what the columns are called. A solution column may be missing, except under a name of one's own.
        max_answer_characters: longest answer that will be graded.

    Raises:
        DataError: the file cannot be read or is of another kind, holds no problem, a row lacks a field or holds a
            value of another kind, or two rows have the same problem. The message names file, line and field.
        ConfigError: a dataset folder, and `datasets` is not installed.
    """
    problems: list[Problem] = []
    places: dict[str, str] = {}
    has_solutions = False
    for place, row in _rows(path):
        problem = _problem(row, place, fields)
        if len(problem.answer) > max_answer_characters:
            raise DataError(
                f"{place}, field {fields.answer!r}: {len(problem.answer)} characters, expected at most "
                f"environment.grading.max_answer_characters = {max_answer_characters}"
            )
        if problem.problem in places:
            raise DataError(f"{place}, field {fields.problem!r}: the same problem as in {places[problem.problem]}")
        places[problem.problem] = place
        has_solutions |= fields.solution in row
        problems.append(problem)
    if not problems:
        raise DataError(f"{path} holds no problem")
    if not has_solutions and fields.solution != DEFAULT_SOLUTION_FIELD:
        raise DataError(f"{path}: no row has the field {fields.solution!r}")
    return problems


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place for messages, row)."""
    if os.path.isdir(path):  # unlike Path.is_dir it does not raise for a name that is too long
        rows = _dataset_rows(path)
    elif path.suffix == ".parquet":
        rows = _parquet_rows(path)
    elif path.suffix in (".jsonl", ".ndjson"):
        yield from _json_lines(path)
        return
    else:
        raise DataError(
            f"{path}: expected a .jsonl file, a .parquet file or a folder that datasets' save_to_disk wrote"
        )
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", row


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON text may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: no JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{place}: expected an object, got {type(row).__name__}")
        yield place, row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _dataset_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets  # pyright: ignore[reportMissingImports] (optional)
    except ImportError as error:
        raise ConfigError(
            f"{path} is a folder: reading it needs datasets: pip install -e '.[datasets]' in the clone"
        ) from error
    try:
        loaded: Any = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a Hugging Face dataset: {error}") from error
    if isinstance(loaded, datasets.DatasetDict):
        raise DataError(f"{path} holds several splits: name one of its folders: {', '.join(sorted(map(str, loaded)))}")
    yield from loaded.with_format(None)


def _problem(row: Mapping[str, Any], place: str, fields: FieldNames) -> Problem:
    problem = _required(row, fields.problem, place)
    if not isinstance(problem, str) or not problem.strip():
        raise DataError(f"{place}, field {fields.problem!r}: expected text, got {_excerpt(problem)}")
    answer = _required(row, fields.answer, place)
    is_whole = isinstance(answer, int) and not isinstance(answer, bool)  # of any length: some are over every float
    is_number = is_whole or (isinstance(answer, float) and math.isfinite(answer))
    if not isinstance(answer, str) and not is_number:
        raise DataError(f"{place}, field {fields.answer!r}: expected text or a finite number, got {_excerpt(answer)}")
    bare_answer = _bare(str(answer))
    if not bare_answer:
        raise DataError(f"{place}, field {fields.answer!r}: expected an answer, got {_excerpt(answer)}")
    solution = row.get(fields.solution)
    if solution is not None and not isinstance(solution, str):
        raise DataError(f"{place}, field {fields.solution!r}: expected text or null, got {_excerpt(solution)}")
    return Problem(problem=problem.strip(), answer=bare_answer, solution=(solution or "").strip())


def _required(row: Mapping[str, Any], field: str, place: str) -> Any:
    if field not in row:
        raise DataError(f"{place}: no field {field!r}; it has {', '.join(map(repr, row)) or 'none'}")
    return row[field]


def _bare(answer: str) -> str:
    """Return an answer without the box or the dollar signs around it; empty where nothing else is there."""
    bare = (last_boxed(answer) or "").strip() if has_box(answer) else answer.strip()
    if not bare.strip("$ "):
        return ""
    for mark in ("$$", "$"):
        if bare.startswith(mark) and bare.endswith(mark):
            inside = bare[len(mark) : -len(mark)]
            if "$" not in inside:
                return inside.strip()
    return bare


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
