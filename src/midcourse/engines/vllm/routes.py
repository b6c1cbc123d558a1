"""The control routes of a vLLM server in development mode: pausing, weights, versions, caches. Requests: client.py."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx

from midcourse.engines.servers import UNCOMPRESSED, ask
from midcourse.engines.vllm.server import Server, ServerGoneError
from midcourse.errors import EngineError, EngineTimeoutError

EXCERPT_CHARACTERS = 500
Told = TypeVar("Told", bool, int, str)


class Routes:
    """Calls one server, wherever it is at the time of the call.

    Every call raises ServerGoneError where the connection breaks (the server may have died), EngineTimeoutError where
    it takes longer than `seconds`, and EngineError where it refuses or does not end its answer.
    """

    def __init__(self, server: Server, *, seconds: float) -> None:
        self._server = server
        self._seconds = seconds
        # A client costs more than a call. No connection is kept: one that ended unseen would look like a dead server.
        self._http = httpx.AsyncClient(
            timeout=None,
            trust_env=False,
            headers=UNCOMPRESSED,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def post(self, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        """Return the reply's JSON; none where it has none."""
        return await self._call("POST", path, body, query)

    async def get(self, path: str) -> Any:
        """Return the reply's JSON."""
        return await self._call("GET", path, None, {})

    async def workers(self, method: str, *arguments: str, key: str, kind: type[Told]) -> list[Told]:
        """Call a method of the worker extension; return what each worker's answer says under `key`."""
        answer = await self.post("/collective_rpc", {"method": method, "args": list(arguments)})
        results = answer.get("results") if isinstance(answer, dict) else None
        listed = results if isinstance(results, list) else []
        told = [result[key] for result in listed if isinstance(result, dict) and type(result.get(key)) is kind]
        if not told or len(told) < len(listed):
            raise EngineError(
                f"{self._server.url}/collective_rpc {method}: expected every worker to tell {key} ({kind.__name__}): "
                f"got {json.dumps(answer)[:EXCERPT_CHARACTERS]}"
            )
        return told

    async def close(self) -> None:
        """Ask no more."""
        await self._http.aclose()

    async def _call(self, kind: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str]) -> Any:
        where = f"{self._server.url}{path}"
        try:
            # httpx bounds each read; a server that trickles would pass that for ever.
            async with asyncio.timeout(self._seconds):
                reply = await ask(self._http, kind, where, json=body, params=dict(query))
        except TimeoutError as error:
            raise EngineTimeoutError(f"{where}: no answer within {self._seconds:g} s") from error
        except httpx.HTTPError as error:
            raise ServerGoneError(f"{where}: {error!r}") from error
        if not reply.is_success:
            said = reply.content.decode(errors="replace")[:EXCERPT_CHARACTERS]
            raise EngineError(f"{where}: status {reply.status_code}: {said}")
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):  # some routes answer in words, or not at all
            return None
