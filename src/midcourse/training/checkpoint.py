"""Checkpoints that are whole or not there: written beside their place, synced, renamed, checked when read.

checkpoints/step_U/: model/ (a Hugging Face folder with tokenizer and card; of a policy with an adapter the adapter
alone, as peft takes it), optimizer.safetensors (moments, float32 copies of 16-bit weights, generator states),
method.safetensors (what a method learned beside the policy, if it does), state.json (scalars), manifest.json
(SHA-256 of every file, written last).
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from midcourse.errors import CheckpointError
from midcourse.recording.journal import sync_folder
from midcourse.training.export import save_weights
from midcourse.training.lora import ADAPTER_CONFIG, base_of, has_adapter, read_adapter_weights
from midcourse.training.model_card import CARD, CardFacts, model_card
from midcourse.training.policy import Policy
from midcourse.training.update import UpdateCounters, Updater

_STEP = re.compile(r"step_(\d+)")
_MANIFEST = "manifest.json"
_METHOD = "method.safetensors"
_OPTIMIZER = "optimizer/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Where a run stands. `data` describes the order of tasks: a resumed run must have the same, and `settings`."""

    update: int  # updates done
    data: Mapping[str, int]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])  # key -> value, as TOML writes it
    method: Mapping[str, Any] = field(default_factory=dict[str, Any])  # see ScheduledMethod.state
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])  # of a LearningMethod


def save_checkpoint(
    folder: Path,
    *,
    policy: Policy,
    updater: Updater,
    state: TrainingState,
    keep: int,
    evaluation: Mapping[str, Any] | None = None,
) -> Path:
    """Write folder/step_U, drop all but the newest `keep`, and return the path.

    `evaluation` has the scores of these very weights, if they are known: they stand in the model's card.

    Raises:
        CheckpointError: the disk is full or does not take the files. What was there before stays as it was.
    """
    path = folder / f"step_{state.update}"
    partial = folder / f".step_{state.update}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        partial.mkdir()
        _write_parts(partial, policy, updater, state)
        facts = CardFacts(
            base=base_of(policy.model) or policy.config.path,
            is_adapter=has_adapter(policy.model),
            update=state.update,
            settings=state.settings,
            evaluation=evaluation,
        )
        (partial / "model" / CARD).write_text(model_card(facts), encoding="utf-8")
        _write_synced(partial / _MANIFEST, {"files": _checksums(partial)})
        for place in (partial / "model", partial):
            sync_folder(place)
        if path.exists():  # damaged, or the run would have gone on from it
            path.rename(folder / f".{path.name}.replaced")
        partial.rename(path)
        sync_folder(folder)
        _remove_leftovers(folder)
        for old in _steps(folder)[keep:]:
            shutil.rmtree(old)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"checkpoint {path} cannot be written: {error}; earlier ones are untouched") from error
    return path


def load_checkpoint(path: Path, *, policy: Policy, updater: Updater) -> TrainingState:
    """Put the weights, moments and generator states of a checkpoint in place and return its state.

    Raises:
        CheckpointError: a file is missing, damaged, or belongs to another model; the message names it.
    """
    check_manifest(path)
    try:
        scalars = json.loads((path / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(path / "optimizer.safetensors")
        _restore_weights(policy.model, path / "model")
        moments = {
            name.removeprefix(_OPTIMIZER): value for name, value in tensors.items() if name.startswith(_OPTIMIZER)
        }
        updater.restore(UpdateCounters(**scalars["counters"]), moments)
        arrays = load_arrays(path / _METHOD) if (path / _METHOD).exists() else {}
        state = replace(TrainingState(**scalars["state"]), arrays=arrays)
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} does not fit this run: {error}") from error
    torch.set_rng_state(tensors["generator/cpu"])
    if policy.device.type == "cuda" and "generator/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["generator/cuda"], policy.device)
    return state


def load_latest(folder: Path, *, policy: Policy, updater: Updater) -> TrainingState | None:
    """Load the newest checkpoint that is whole, and return its state; None if the run has none yet.

    Raises:
        CheckpointError: as `newest_whole`, or the newest whole one is not of this model.
    """
    path = newest_whole(folder)
    return None if path is None else load_checkpoint(path, policy=policy, updater=updater)


def newest_whole(folder: Path) -> Path | None:
    """Return the newest checkpoint in `folder` that is whole; None if there is none yet.

    A damaged one is named in a warning, and the one before it is taken.

    Raises:
        CheckpointError: there are checkpoints and none is whole, or `folder` is a file.
    """
    candidates = _steps(folder)
    for path in candidates:
        try:
            check_manifest(path)
        except CheckpointError as error:
            warnings.warn(f"{error}; falling back to the checkpoint before it", stacklevel=2)
            continue
        return path
    if candidates:
        raise CheckpointError(f"no checkpoint in {folder} is whole: {', '.join(path.name for path in candidates)}")
    return None


def check_manifest(path: Path) -> None:
    """Raise CheckpointError, naming the file, unless every file of the checkpoint is as it was written."""
    manifest = path / _MANIFEST
    try:
        expected = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        if not isinstance(expected, dict):
            raise ValueError(f"files must map names to checksums: got {expected!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint file {manifest} cannot be read: {error}") from error
    for name, checksum in expected.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint file {file} is missing")
        if _checksum(file) != checksum:
            raise CheckpointError(f"checkpoint file {file} is damaged: its SHA-256 is not the manifest's")


def has_checkpoints(folder: Path) -> bool:
    """Whether a run has left checkpoints here, whole or not."""
    return bool(_steps(folder))


def _write_parts(partial: Path, policy: Policy, updater: Updater, state: TrainingState) -> None:
    save_weights(policy.model, partial / "model")
    if policy.tokenizer is not None:
        policy.tokenizer.save_pretrained(partial / "model")
    save_file(_state_tensors(policy, updater), partial / "optimizer.safetensors")
    if state.arrays:
        save_arrays(dict(state.arrays), partial / _METHOD)
    scalars = {"state": asdict(replace(state, arrays={})), "counters": asdict(updater.counters)}
    _write_synced(partial / "state.json", scalars)


def _state_tensors(policy: Policy, updater: Updater) -> dict[str, torch.Tensor]:
    tensors = {"generator/cpu": torch.get_rng_state()}
    if policy.device.type == "cuda":
        tensors["generator/cuda"] = torch.cuda.get_rng_state(policy.device)
    return tensors | {_OPTIMIZER + name: value for name, value in updater.moments().items()}


def _restore_weights(model: Any, folder: Path) -> None:
    """Take the weights of a checkpoint's model folder. Raises ValueError where only one of the two is an adapter."""
    is_adapter = (folder / ADAPTER_CONFIG).is_file()
    if is_adapter != has_adapter(model):
        kinds = ("all weights", "an adapter")
        raise ValueError(f"it holds {kinds[is_adapter]}, and the policy trains {kinds[not is_adapter]}")
    if is_adapter:
        read_adapter_weights(model, folder)
    else:
        stored = type(model).from_pretrained(folder, dtype=model.dtype)
        model.load_state_dict(stored.state_dict())


def _write_synced(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    _sync_file(path)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _checksums(folder: Path) -> dict[str, str]:
    """Return SHA-256 by relative path of every file below; each is on disk afterwards."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        _sync_file(path)
    return {path.relative_to(folder).as_posix(): _checksum(path) for path in files}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _steps(folder: Path) -> list[Path]:
    """Return the checkpoints' paths, newest first."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise CheckpointError(f"{folder} must be a folder, and is a file")
    found = [
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := _STEP.fullmatch(path.name)) is not None and path.is_dir()
    ]
    return [path for _, path in sorted(found, reverse=True)]


def _remove_leftovers(folder: Path) -> None:
    for pattern in (".step_*.partial", ".step_*.replaced"):
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
