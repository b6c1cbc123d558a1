"""Read a run folder, also one that is still written or whose process died in the middle of a line."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from midcourse.errors import RunFolderError
from midcourse.recording.scores import check_evaluation
from midcourse.recording.serialization import SCHEMA_VERSION, branch_from_dict, group_from_dict
from midcourse.recording.writer import (
    CONFIG_NAME,
    EVALUATIONS_NAME,
    GROUPS_KEY,
    METRICS_NAME,
    SCHEMA_KEY,
    TRAJECTORIES_NAME,
    TRAJECTORY_FILE,
    trajectory_path,
)
from midcourse.types import BranchRecord, Group

NON_FINITE = ("inf", "-inf", "nan")
"""Numbers that JSON lacks are written as these strings."""
MAX_UPDATE = 2**53
"""Updates beyond this are no counts, and no plot could tell them apart."""
TRAJECTORY_COLUMNS = (
    "task_id",
    "token_ids",
    "behavior_logprobs",
    "policy_versions",
    "weights",
    "calibration_logprobs",
    "reward",
    "failure",
    "failure_message",
    "stop_reason",
    "temperature",
)
LATER_COLUMNS = ("teacher_logprobs",)
"""Columns that files of the same schema version may lack: what they hold may be absent."""


class RunReader:
    """One run folder.

    Raises:
        RunFolderError: there is no such folder, or it is no run: a run has a config.toml.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not os.path.isdir(self.folder):  # unlike Path.is_dir it does not raise for a name that is too long
            raise RunFolderError(f"{self.folder} is no folder that can be read")
        if not os.path.isfile(self.folder / CONFIG_NAME):
            raise RunFolderError(f"{self.folder} is no run folder: it has no {CONFIG_NAME}")

    @property
    def config_text(self) -> str:
        """The resolved settings as they were written. Raises RunFolderError where the file cannot be read."""
        path = self.folder / CONFIG_NAME
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings. Raises RunFolderError where the file is no TOML."""
        try:
            return tomllib.loads(self.config_text)
        except tomllib.TOMLDecodeError as error:
            raise RunFolderError(f"{self.folder / CONFIG_NAME} cannot be read: {error}") from error

    def metrics(self) -> list[dict[str, float]]:
        """Return one mapping an update, in the order written; "update" is one of the keys, and an integer.

        Raises:
            RunFolderError: a line other than the last cannot be read, or holds something else than numbers.
        """
        path = self.folder / METRICS_NAME
        return [_numbers(values, f"{path}, line {number}") for number, values in _read_lines(path)]

    def evaluations(self) -> list[dict[str, Any]]:
        """Return the evaluations in the order written, each with its "update".

        Raises:
            RunFolderError: a line other than the last cannot be read, or lacks scores that every evaluation has.
        """
        path = self.folder / EVALUATIONS_NAME
        return [check_evaluation(values, f"{path}, line {number}") for number, values in _read_lines(path)]

    def trajectory_updates(self) -> list[int]:
        """Return the updates whose rollouts were kept, in order."""
        folder = self.folder / TRAJECTORIES_NAME
        if not folder.is_dir():
            return []
        found = (TRAJECTORY_FILE.fullmatch(path.name) for path in folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def trajectories(self, update: int) -> list[Group]:
        """Return one update's groups as they were trained on, with replaced members and extras.

        Raises:
            RunFolderError: the update's rollouts were not kept, or the file is damaged or of another schema version.
        """
        return _read_parquet(self._kept(update))

    def branches(self, update: int) -> list[BranchRecord]:
        """Return how one update's rollouts were branched, task after task, without reading the rollouts.

        Raises:
            RunFolderError: as `trajectories`.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._kept(update)
        try:
            headers = _headers(path, pq.read_schema(path).metadata)
            return [branch_from_dict(values) for header in headers for values in header.get("branches", ())]
        except (pa.ArrowException, OSError, AttributeError, TypeError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error

    def _kept(self, update: int) -> Path:
        path = trajectory_path(self.folder, update)
        if not path.is_file():
            raise RunFolderError(
                f"{self.folder} keeps no rollouts of update {update}: it has {self.trajectory_updates()}"
            )
        return path


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each whole line and its object, which has an update."""
    if not path.exists():
        return
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    for number, line in enumerate(lines, start=1):
        # What follows the last line end is a line that was never finished.
        if number == len(lines) or not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RunFolderError(f"{path}, line {number}: no JSON: {error}") from error
        if not isinstance(values, dict) or not _is_update(values.get("update")):
            raise RunFolderError(f"{path}, line {number}: an object with an update must stand here: got {line[:80]!r}")
        yield number, values


def _is_update(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_UPDATE


def _numbers(values: Mapping[str, Any], place: str) -> dict[str, float]:
    """Return a metrics line with the numbers that JSON lacks in place of their words."""
    numbers: dict[str, float] = {"update": values["update"]}
    for name, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number and not (isinstance(value, str) and value in NON_FINITE):
            raise RunFolderError(f"{place}, {name!r}: expected a number, got {value!r:.80}")
        if name != "update":
            try:
                numbers[name] = float(value)
            except OverflowError as error:
                raise RunFolderError(
                    f"{place}, {name!r}: expected a number of 64 bits, got one that is larger"
                ) from error
    return numbers


def _read_parquet(path: Path) -> list[Group]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    headers = _headers(path, table.schema.metadata)
    try:
        return _groups_of(headers, table.to_pylist())
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error


def _headers(path: Path, metadata: Mapping[bytes, bytes] | None) -> list[dict[str, Any]]:
    """Return what is stored of every group beside its rollouts."""
    known = metadata or {}
    version = known.get(SCHEMA_KEY, b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise RunFolderError(f"{path} must have schema version {SCHEMA_VERSION}: got {version}")
    try:
        return json.loads(known[GROUPS_KEY])
    except (KeyError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error


def _groups_of(headers: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[Group]:
    stored = {header["group_id"]: {**header, "members": [], "extra": []} for header in headers}
    for row in rows:
        group, trajectory = stored[row["group_id"]], _trajectory_values(row)
        if row["place"] == "member":
            group["members"].append({"trajectory": trajectory, "origin": row["origin"]})
        elif row["place"] == "replaced":
            group["members"][row["member"]]["replaced"] = trajectory
        else:
            group["extra"].append(trajectory)
    return [group_from_dict({"schema_version": SCHEMA_VERSION, **values}) for values in stored.values()]


def _trajectory_values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in TRAJECTORY_COLUMNS},
        **{name: row[name] for name in LATER_COLUMNS if name in row},
        "sources": [[source, 1] for source in row["sources"]],
        "turns": json.loads(row["turns"]),
    }
