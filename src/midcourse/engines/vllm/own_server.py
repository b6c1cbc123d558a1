"""A vLLM server that midcourse starts, keeps and restarts.

The server's Python may be another one than this process's: vLLM is never imported here. A keeper process (keeper.py)
stands between, so that a server and all its parts end with the process that started it, however that ends.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field, field_validator

from midcourse.engines.vllm import keeper
from midcourse.engines.vllm.own_server_place import (
    HOST,
    checkpoint,
    checkpoint_dtype,
    free_port,
    interpreter,
    make_folder,
    remove_folders,
    vllm_device,
    weights_place,
)
from midcourse.engines.vllm.server import HEALTH_POLL_SECONDS, SERVED_MODEL, Prepare, ServerGoneError, is_healthy
from midcourse.engines.vllm.server_arguments import OUR_VARIABLES, check_arguments, check_variables
from midcourse.engines.vllm.server_log import errors_and_log, text_of
from midcourse.errors import EngineError, EngineTimeoutError
from midcourse.training.launch import without_torchrun

EXTENSION_FOLDER = Path(__file__).parent / "worker"
EXTENSION_CLASS = "midcourse_extension.Extension"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Every largest rank that vLLM can be started with; adapters of lesser rank load too."""
PORT_ATTEMPTS = 5
POLL_SECONDS = 0.1
STOP_MARGIN_SECONDS = keeper.KILL_SECONDS + 5.0
IN_USE = "address already in use"

logger = logging.getLogger(__name__)


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
    max_lora_rank: int = Field(default=0, ge=0, le=LORA_RANKS[-1])
    """Largest rank of an adapter that it can load, rounded up to one that vLLM knows; 0: it takes none."""
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

    @field_validator("arguments")
    @classmethod
    def _leaves_our_arguments(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        check_arguments(arguments)
        return arguments

    @field_validator("environment")
    @classmethod
    def _leaves_our_variables(cls, environment: dict[str, str]) -> dict[str, str]:
        check_variables(environment)
        return environment


class OwnServer:
    """A vLLM server of ours. Nothing runs before `ready`.

    Args:
        config: how to run it.
        model: checkpoint, a folder or a hub name; `serve_from` replaces it.
        write_tokenizer: writes one into the folder that it is given; none: the server takes and gives token ids alone.
        log_folder: where vllm.log is written, one start after another; none: a temporary folder that `stop` removes,
            unless the server failed.
        model_bytes: size of the weights, to choose where they pass through.

    Raises:
        ConfigError: no such interpreter, checkpoint or folder for weights.
        EngineError: no folder can be made.
    """

    loads_at_start = True

    def __init__(
        self,
        config: OwnServerConfig,
        *,
        model: str | Path | None = None,
        write_tokenizer: Callable[[Path], object] | None = None,
        log_folder: Path | None = None,
        model_bytes: int = 0,
    ) -> None:
        self.config = config
        self.prepare: Prepare | None = None
        self.restarts = 0
        self._python = interpreter(config.python)
        self._model = None if model is None else checkpoint(model)
        self._port = 0
        self._is_started = False
        self._is_on_cpu = False
        self._process: subprocess.Popen[bytes] | None = None
        self._memory: set[str] = set()  # shared memory of the server that runs
        self._restarted_at: deque[float] = deque()
        self._changing = asyncio.Lock()
        self._scratch = make_folder(None)  # its sockets need a short path, its caches a disk
        self._temporary = [self._scratch]
        self._remove = weakref.finalize(self, remove_folders, self._temporary, os.getpid())
        self.folder: Path = weights_place(config.weights_folder, model_bytes=model_bytes)
        self._temporary.append(self.folder)
        if log_folder is None:
            log_folder = make_folder(None)
            self._temporary.append(log_folder)
        self.log: Path = log_folder / "vllm.log"
        self._tokenizer: Path | None = None
        if write_tokenizer is not None:
            self._tokenizer = self._scratch / "tokenizer"
            write_tokenizer(self._tokenizer)

    @property
    def url(self) -> str:
        """Address without a path. Another one after a restart."""
        return f"http://{HOST}:{self._port}"

    @property
    def is_started(self) -> bool:
        """Whether `ready` has been reached and `stop` has not been called."""
        return self._is_started

    def serve_from(self, folder: Path) -> None:
        """Start from this folder from now on; its version is the caller's to set again in `prepare`."""
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
            logger.info("the vLLM server does not answer")
            is_back, attempts = False, 0
            while not is_back:
                self._count_restart()
                await self._end()
                self._is_started = False
                attempts += 1
                try:
                    await self._start()
                    is_back = True
                except ServerGoneError:
                    # Killed again before it was ready, or its predecessor's memory was not free yet. Starts that take
                    # long would never be too many within the window.
                    if attempts >= self.config.max_restarts:
                        raise
            self.restarts += 1
            return True

    async def stop(self) -> None:
        """End the server, all its processes, and remove its folder."""
        async with self._changing:
            self._is_started = False
            await self._end()
            self._remove()

    async def _start(self) -> None:
        self._is_on_cpu = await asyncio.to_thread(self._runs_on_cpu)
        logger.info("starting the vLLM server (log: %s; at most %g s)", self.log, self.config.start_seconds)
        for attempt in range(PORT_ATTEMPTS):
            self._port = free_port(self.config.port)
            start_of_log = self.log.stat().st_size if self.log.exists() else 0
            self._process = self._launch()
            try:
                await self._wait(start_of_log)
                break
            except BaseException as error:
                await self._end()
                # Somebody took the port between its choice and the server's binding.
                lost_port = isinstance(error, EngineError) and IN_USE in text_of(self.log, start_of_log).lower()
                if not lost_port or self.config.port is not None or attempt == PORT_ATTEMPTS - 1:
                    self._keep_log(error)
                    raise
        assert self._process is not None
        self._memory = keeper.shared_memory(self._process.pid)
        try:
            if self.prepare is not None:
                await self.prepare()
        except BaseException as error:
            await self._end()
            self._keep_log(error)
            raise
        self._is_started = True
        logger.info("the vLLM server answers")

    def _runs_on_cpu(self) -> bool:
        return vllm_device(self._python, environment=self._environment(), folder=self._scratch) == "cpu"

    def _keep_log(self, error: BaseException) -> None:
        """Leave the log where it is after an error that names it."""
        if isinstance(error, EngineError) and self.log.parent in self._temporary:
            self._temporary.remove(self.log.parent)

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [self._python, "-m", "vllm.entrypoints.openai.api_server", *self._arguments()]
        keeping = [sys.executable, "-I", "-S", keeper.__file__]
        settings = [str(os.getpid()), str(self.config.stop_seconds), json.dumps(list(map(str, self._temporary)))]
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
        arguments += ["--dtype", checkpoint_dtype(self._model) if config.dtype == "auto" else config.dtype]
        arguments += ["--skip-tokenizer-init"] if tokens_alone else ["--tokenizer", str(self._tokenizer)]
        arguments += ["--host", HOST, "--port", str(self._port), "--enable-scale-out"]
        arguments += ["--disable-uvicorn-access-log"]  # a line for every request of a long run
        # A checkpoint's own sampling settings would change what is drawn.
        arguments += ["--generation-config", "vllm", "--worker-extension-cls", EXTENSION_CLASS]
        if config.context_length is not None:
            arguments += ["--max-model-len", str(config.context_length)]
        if config.max_lora_rank:
            arguments += ["--enable-lora", "--max-lora-rank", str(_lora_rank(config.max_lora_rank))]
        if self._is_on_cpu:
            # A prompt that is computed in two steps, of a request with a seed, kills vLLM 0.32 on a CPU.
            arguments += ["--no-enable-chunked-prefill"]
        if config.nccl:
            arguments += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
        return [*arguments, *config.arguments]

    def _environment(self) -> dict[str, str]:
        return server_environment(self.config, self._python, folder=self._scratch)

    async def _wait(self, start_of_log: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.config.start_seconds
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            while not await is_healthy(client, min(self.config.health_seconds, deadline - time.monotonic())):
                if self._process.poll() is not None:
                    raise ServerGoneError(
                        f"the vLLM server ended with status {self._process.returncode} before it answered"
                        f"{errors_and_log(self.log, start_of_log)}"
                    )
                if time.monotonic() > deadline:
                    raise EngineTimeoutError(
                        f"the vLLM server did not answer within start_seconds = {self.config.start_seconds:g}"
                        f"{errors_and_log(self.log, start_of_log)}"
                    )
                await asyncio.sleep(HEALTH_POLL_SECONDS)

    async def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            return await is_healthy(client, self.config.health_seconds)

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

    def _count_restart(self) -> None:
        now, window = time.monotonic(), 60 * self.config.restart_minutes
        while self._restarted_at and self._restarted_at[0] < now - window:
            self._restarted_at.popleft()
        if len(self._restarted_at) >= self.config.max_restarts:
            error = EngineError(
                f"the vLLM server died again after max_restarts = {self.config.max_restarts} restarts within "
                f"{self.config.restart_minutes:g} minutes{errors_and_log(self.log)}"
            )
            self._keep_log(error)
            raise error
        self._restarted_at.append(now)


def check_vllm(config: OwnServerConfig) -> Literal["cpu", "gpu"]:
    """Check that the interpreter is there and has vLLM, as a start will find it; return what that computes on.

    Raises:
        ConfigError: it is not, or has none.
    """
    python = interpreter(config.python)
    return vllm_device(python, environment=server_environment(config, python))


def server_environment(config: OwnServerConfig, python: str, *, folder: Path | None = None) -> dict[str, str]:
    """Return the environment variables of a server that `python` runs; `folder` is for its temporary files."""
    inherited = without_torchrun(os.environ)
    environment = {
        # A key of the user's for servers elsewhere would be asked of us too.
        **{name: value for name, value in inherited.items() if name not in OUR_VARIABLES},
        "VLLM_SERVER_DEV_MODE": "1",  # the routes for pausing and for new weights
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if config.max_lora_rank else "0",
        "VLLM_NO_USAGE_STATS": "1",
        **({} if folder is None else {"TMPDIR": str(folder)}),
        **config.environment,
    }
    # What this process imports from is for its own interpreter.
    own_paths = environment.get("PYTHONPATH") if python == sys.executable else None
    paths = [str(EXTENSION_FOLDER), config.environment.get("PYTHONPATH", own_paths)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _lora_rank(rank: int) -> int:
    return next(known for known in LORA_RANKS if known >= rank)
