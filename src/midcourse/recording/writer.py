"""The run folder, written as the run goes: what is there after a crash is whole up to the last update.

config.toml                        the resolved settings, written once
metrics.jsonl                      one line an update
evaluations.jsonl                  one line an evaluation
trajectories/update_NNNNNN.parquet one row a rollout, the writer of every token included; how rollouts were branched
tensorboard/                       the same metrics for TensorBoard
"""

import contextlib
import fcntl
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from midcourse.errors import ConfigError, OccupiedError, OutputError, RunFolderError
from midcourse.recording.serialization import SCHEMA_VERSION, branch_to_dict, encode_float, turn_to_dict
from midcourse.types import Group, Trajectory

CONFIG_NAME = "config.toml"
METRICS_NAME = "metrics.jsonl"
EVALUATIONS_NAME = "evaluations.jsonl"
TRAJECTORIES_NAME = "trajectories"
TRAJECTORY_FILE = re.compile(r"update_(\d{6,})\.parquet")
SCHEMA_KEY = b"midcourse.schema_version"
GROUPS_KEY = b"midcourse.groups"


class RecordingConfig(BaseModel):
    """What of a run is kept, and who else is told."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    trajectories: bool = True
    """Keep every rollout, token by token. Needed by the viewer, the report's examples and re-analysis."""
    tensorboard: bool = True
    """Write metrics and evaluations as TensorBoard events too, where the tensorboard package is installed."""
    wandb_project: str | None = None
    """Send metrics to this Weights & Biases project; needs the wandb package. None: nothing leaves the machine."""
    trackio_project: str | None = None
    """Send metrics to this trackio project; needs the trackio package."""


class RunWriter:
    """Writes one run folder. A context manager: leaving it closes what it opened.

    Args:
        folder: where to write; made where missing.
        config: what to keep.
        resolved_config: the whole run's settings as TOML text.
        resume: go on in a folder that holds a run. Its config.toml stays as it was; settings that differ now are
            written beside it as config.resumed_N.toml.

    Raises:
        OccupiedError: the folder holds a run and `resume` is off, or another process writes it.
        ConfigError: a tracker is asked for whose package is missing.
        OutputError: the folder cannot be written.
    """

    def __init__(
        self, folder: Path | str, config: RecordingConfig, *, resolved_config: str, resume: bool = False
    ) -> None:
        self.folder = Path(folder)
        self._config = config
        self._sinks: list[_Sink] = []
        with _writing(self.folder):
            (self.folder / TRAJECTORIES_NAME).mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            self._open_folder(resolved_config, resume)
            if config.tensorboard:
                self._sinks.append(_TensorBoard(self.folder / "tensorboard"))
            for package, project in (("wandb", config.wandb_project), ("trackio", config.trackio_project)):
                if project is not None:
                    self._sinks.append(_Tracker(package, project=project, name=self.folder.name))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_folder(self, resolved_config: str, resume: bool) -> None:
        config_path = self.folder / CONFIG_NAME
        known = _known_settings(self.folder, resolved_config, resume=resume)
        with _writing(self.folder):
            if known is None:
                _replace(config_path, resolved_config.encode())
            elif known != resolved_config:
                number = 1 + len(list(self.folder.glob("config.resumed_*.toml")))
                _replace(self.folder / f"config.resumed_{number}.toml", resolved_config.encode())
            for name in (METRICS_NAME, EVALUATIONS_NAME):
                _drop_torn_line(self.folder / name)

    def write_metrics(self, update: int, metrics: Mapping[str, float]) -> None:
        """Append one update's line and flush it to disk. "update" leads the line and cannot be a metric's name."""
        values = {name: encode_float(value) for name, value in metrics.items() if name != "update"}
        self._append(METRICS_NAME, {"update": update, **values})
        for sink in self._sinks:
            sink.write(update, {name: float(value) for name, value in values.items()})

    def write_evaluation(self, update: int, evaluation: Mapping[str, Any]) -> None:
        """Append one evaluation, the plain values of `EvaluationResult.to_dict`."""
        self._append(EVALUATIONS_NAME, {**evaluation, "update": update})
        numbers = dict(_flat_numbers("evaluation", evaluation.get("splits", {})))
        for sink in self._sinks:
            sink.write(update, numbers)

    def write_groups(self, update: int, groups: Sequence[Group]) -> None:
        """Write one update's groups, whole or not at all; again for the same update replaces them."""
        if not self._config.trajectories:
            return
        path = trajectory_path(self.folder, update)
        with _writing(path):
            _write_parquet(path, update, groups)

    def truncate_after(self, update: int) -> None:
        """Forget everything after `update`: a resumed run writes it again. Each file changes whole or not at all."""
        for name in (METRICS_NAME, EVALUATIONS_NAME):
            path = self.folder / name
            if path.exists():
                with _writing(path):
                    lines = path.read_bytes().splitlines(keepends=True)
                    _replace(path, b"".join(line for line in lines if _update_of(path, line) <= update))
        for path in (self.folder / TRAJECTORIES_NAME).iterdir():
            found = TRAJECTORY_FILE.fullmatch(path.name)
            if found and int(found[1]) > update:
                with _writing(path):
                    path.unlink()
        for sink in self._sinks:
            sink.truncate_after(update)

    def close(self) -> None:
        """Close what was opened; safe to call twice."""
        while self._sinks:
            self._sinks.pop().close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _append(self, name: str, values: Mapping[str, Any]) -> None:
        path = self.folder / name
        line = json.dumps(values, allow_nan=False, ensure_ascii=False) + "\n"
        with _writing(path), path.open("ab") as file:
            file.write(line.encode("utf-8", "backslashreplace"))  # as JSON spells half a surrogate pair
            file.flush()
            os.fsync(file.fileno())


def check_folder(folder: Path, *, resolved_config: str, resume: bool) -> None:
    """Raise OccupiedError where `RunWriter` would, and change nothing: for the time before anything is loaded."""
    if folder.is_dir():
        if (lock := _lock(folder)) is not None:
            os.close(lock)
        _known_settings(folder, resolved_config, resume=resume)


def _known_settings(folder: Path, resolved_config: str, *, resume: bool) -> str | None:
    """Return what stands in a folder's config.toml; None: there is none.

    Raises:
        OccupiedError: the folder holds a run and `resume` is off.
    """
    config_path = folder / CONFIG_NAME
    with _writing(folder):
        known = config_path.read_text(encoding="utf-8") if config_path.exists() else None
        files = (folder / METRICS_NAME, folder / EVALUATIONS_NAME)
        started = any(path.exists() and path.stat().st_size > 0 for path in files)
    if not resume and (started or known not in (None, resolved_config)):
        raise OccupiedError(f"{folder} already holds a run: resume it, or choose another output folder")
    return known


def trajectory_path(folder: Path, update: int) -> Path:
    """Return where one update's rollouts are kept."""
    return folder / TRAJECTORIES_NAME / f"update_{update:06d}.parquet"


def _lock(folder: Path) -> int | None:
    """Return an open descriptor that holds the folder for this process until it is closed; the system frees it, too.

    None where the file system has no such lock.

    Raises:
        OccupiedError: another process holds it.
    """
    with _writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise OccupiedError(f"{folder}: another process is training there; wait, or choose another folder") from error
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _drop_torn_line(path: Path) -> None:
    """Cut a last line without its end: the process died in it, and the next line must not be glued to it."""
    if path.exists():
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            _replace(path, content[: content.rfind(b"\n") + 1])


def _update_of(path: Path, line: bytes) -> int:
    try:
        return int(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RunFolderError(f"{path} holds a line without an update: {line[:80]!r}") from error


def _flat_numbers(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat_numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}/{name}", float(value)


def _write_parquet(path: Path, update: int, groups: Sequence[Group]) -> None:
    # pyarrow is loaded here: reading a config or a metrics line must not pay for it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row for group in groups for row in _group_rows(group)]
    schema = pa.schema(
        [
            ("group_id", pa.string()),
            ("task_id", pa.string()),
            ("place", pa.string()),
            ("member", pa.int32()),
            ("origin", pa.string()),
            ("reward", pa.float64()),
            ("failure", pa.string()),
            ("failure_message", pa.string()),
            ("stop_reason", pa.string()),
            ("temperature", pa.float64()),
            ("token_ids", pa.list_(pa.int64())),
            ("sources", pa.list_(pa.string())),
            ("behavior_logprobs", pa.list_(pa.float64())),
            ("policy_versions", pa.list_(pa.int64())),
            ("weights", pa.list_(pa.float64())),
            ("calibration_logprobs", pa.list_(pa.float64())),
            ("teacher_logprobs", pa.list_(pa.float64())),
            ("turns", pa.string()),
        ],
        metadata={
            SCHEMA_KEY: str(SCHEMA_VERSION),
            b"midcourse.update": str(update),
            GROUPS_KEY: json.dumps([_group_header(group) for group in groups]),
        },
    )
    partial = path.with_name(path.name + ".partial")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial, compression="zstd")
    os.replace(partial, path)


def _group_header(group: Group) -> dict[str, Any]:
    """Return what is stored of a group beside its rollouts. What a controller was shown is left out: it is large."""
    cost = group.cost
    return {
        "group_id": group.group_id,
        "task_id": group.task_id,
        "phase": group.phase,
        "cost": {
            "generated_tokens": dict(cost.generated_tokens),
            "scored_tokens": dict(cost.scored_tokens),
            "prompt_tokens": dict(cost.prompt_tokens),
            "seconds": {role: encode_float(seconds) for role, seconds in cost.seconds.items()},
        },
        "branches": [branch_to_dict(record) for record in group.branches],
        "decisions": group.decisions,
    }


def _group_rows(group: Group) -> Iterator[dict[str, Any]]:
    for index, member in enumerate(group.members):
        place = {"group_id": group.group_id, "member": index, "origin": member.origin.value}
        yield {**place, "place": "member", **_trajectory_row(member.trajectory)}
        if member.replaced is not None:
            yield {**place, "place": "replaced", **_trajectory_row(member.replaced)}
    for index, trajectory in enumerate(group.extra):
        yield {"group_id": group.group_id, "member": index, "place": "extra", **_trajectory_row(trajectory)}


def _trajectory_row(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "task_id": trajectory.task_id,
        "reward": trajectory.reward,
        "failure": None if trajectory.failure is None else trajectory.failure.value,
        "failure_message": _encodable(trajectory.failure_message),
        "stop_reason": trajectory.stop_reason.value,
        "temperature": trajectory.temperature,
        "token_ids": list(trajectory.token_ids),
        "sources": [source.value for source in trajectory.sources],
        "behavior_logprobs": list(trajectory.behavior_logprobs),
        "policy_versions": list(trajectory.policy_versions),
        "weights": list(trajectory.weights),
        "calibration_logprobs": list(trajectory.calibration_logprobs),
        "teacher_logprobs": None if trajectory.teacher_logprobs is None else list(trajectory.teacher_logprobs),
        "turns": _encodable(json.dumps([turn_to_dict(turn) for turn in trajectory.turns], ensure_ascii=False)),
    }


def _encodable(text: str) -> str:
    """Return `text` with half surrogate pairs spelled out: a server can send them, UTF-8 has none. JSON reads them."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Sink(ABC):
    """Who else is told of the metrics."""

    @abstractmethod
    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of an update."""

    @abstractmethod
    def truncate_after(self, update: int) -> None:
        """Forget what came after `update`, where that can be done; later writes stand beside it otherwise."""

    @abstractmethod
    def close(self) -> None:
        """Send what waits."""


class _TensorBoard(_Sink):
    """TensorBoard events by the tensorboard package alone. Without the package nothing is written: it is a copy."""

    def __init__(self, folder: Path) -> None:
        self._writer: Any = None
        try:
            # protobuf makes these classes at import time, where no type checker sees them.
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
            from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            return
        self._event, self._session_log, self._summary = Event, SessionLog, Summary
        with _writing(folder):
            self._writer = EventFileWriter(str(folder))

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            return
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=update, summary=self._summary(value=values)))
        self._writer.flush()

    def truncate_after(self, update: int) -> None:
        if self._writer is not None:
            # A session start makes TensorBoard drop the events of this step and later ones.
            start = self._session_log(status=self._session_log.START)
            self._writer.add_event(self._event(wall_time=time.time(), step=update + 1, session_log=start))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Tracker(_Sink):
    """wandb or trackio: both offer init, log and finish of the same form."""

    def __init__(self, package: str, *, project: str, name: str) -> None:
        self._module = _TRACKER_IMPORTS[package]()
        self._module.init(project=project, name=name)

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        self._module.log(dict(metrics), step=update)

    def truncate_after(self, update: int) -> None:
        """Change nothing: a tracker takes nothing back."""

    def close(self) -> None:
        self._module.finish()


def _import_wandb() -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports] (optional)
    except ImportError as error:
        raise ConfigError("recording.wandb_project needs the wandb package: pip install wandb") from error
    return wandb


def _import_trackio() -> Any:
    try:
        import trackio  # pyright: ignore[reportMissingImports] (optional)
    except ImportError as error:
        raise ConfigError("recording.trackio_project needs the trackio package: pip install trackio") from error
    return trackio


_TRACKER_IMPORTS: Mapping[str, Callable[[], Any]] = {"wandb": _import_wandb, "trackio": _import_trackio}
