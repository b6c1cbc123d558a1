"""The vLLM server that an engine talks to, and one that somebody else runs. One of our own: own_server.py."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import httpx
from pydantic import BaseModel, ConfigDict, Field, field_validator

from midcourse.engines.servers import address_parts
from midcourse.errors import EngineError, EngineTimeoutError

SERVED_MODEL = "policy"
"""The name by which requests to a server of ours ask for its model."""
HEALTH_POLL_SECONDS = 0.5

Prepare = Callable[[], Awaitable[None]]


class ServerGoneError(EngineError):
    """The server ended, or broke the connection off."""


class Server(Protocol):
    """A server that answers, or says why not."""

    loads_at_start: bool
    """Whether a start loads the folder of `serve_from`; else whoever prepares the server has to load it."""
    prepare: Prepare | None
    """Awaited after every start, before anyone is told that the server is ready."""
    restarts: int
    """How often it came back."""

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

    def serve_from(self, folder: Path) -> None:
        """Say which weights a restart must bring back."""
        ...


class GivenServerConfig(BaseModel):
    """A vLLM server that somebody else runs, with VLLM_SERVER_DEV_MODE=1 and midcourse's worker extension."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str = Field(examples=["http://10.0.0.5:8000"])
    """Address without a path, as in "http://10.0.0.5:8000"."""
    weights_folder: str | None = None
    """A folder that this machine and the server's both have under this name; none: weights cannot pass through files,
    unless the server runs on this machine."""
    wait_seconds: float = Field(default=600.0, gt=0)
    """Longest wait for it, at first and after it went away."""
    health_seconds: float = Field(default=30.0, gt=0)
    """Longest wait for its answer to a health check."""

    @field_validator("url")
    @classmethod
    def _is_a_servers_address(cls, url: str) -> str:
        parts = address_parts(url)
        # A password would stand in every error; a path as "/v1" in front of every route.
        if parts is None or parts.path not in ("", "/") or parts.username or parts.query or parts.fragment:
            raise ValueError('expected an address without path and password, as in "http://10.0.0.5:8000"')
        return url


class GivenServer:
    """A server at an address. It is waited for, never started or stopped."""

    loads_at_start = False
    log = None

    def __init__(self, config: GivenServerConfig) -> None:
        self.config = config
        self.folder = None if config.weights_folder is None else Path(config.weights_folder).expanduser()
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

    def serve_from(self, folder: Path) -> None:
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
                if await is_healthy(client, self.config.health_seconds):
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
            while not await is_healthy(client, min(self.config.health_seconds, deadline - time.monotonic())):
                if time.monotonic() > deadline:
                    raise EngineTimeoutError(
                        f"the vLLM server at {self.url} did not answer within wait_seconds = "
                        f"{self.config.wait_seconds:g}"
                    )
                await asyncio.sleep(HEALTH_POLL_SECONDS)
        if self.prepare is not None:
            await self.prepare()
        self._is_started = True


async def is_healthy(client: httpx.AsyncClient, seconds: float) -> bool:
    """Return whether a server says within `seconds` that it can answer. What else it says is not read."""
    try:
        async with asyncio.timeout(seconds), client.stream("GET", "/health", timeout=None) as response:
            return response.status_code == 200
    except (TimeoutError, httpx.HTTPError):
        return False
