"""The control routes of a vLLM server in development mode: pausing, weights, versions, caches. Requests: client.py."""

from collections.abc import Mapping
from typing import Any

import httpx

from midcourse.engines.vllm.server import Server
from midcourse.errors import EngineError, EngineTimeoutError

EXCERPT_CHARACTERS = 500


class Routes:
    """Calls one server, wherever it is at the time of the call.

    Every call raises httpx.TransportError where the server does not answer at all (it may have died),
    EngineTimeoutError where it takes longer than `seconds`, and EngineError where it refuses.
    """

    def __init__(self, server: Server, *, seconds: float) -> None:
        self._server = server
        self._seconds = seconds

    async def post(self, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        """Return the reply's JSON; none where it has none."""
        return await self._call("POST", path, body, query)

    async def get(self, path: str) -> Any:
        """Return the reply's JSON."""
        return await self._call("GET", path, None, {})

    async def workers(self, method: str, *arguments: str) -> list[dict[str, Any]]:
        """Call a method of the worker extension; return each worker's answer."""
        answer = await self.post("/collective_rpc", {"method": method, "args": list(arguments)})
        results = answer.get("results") if isinstance(answer, dict) else None
        if not results or not all(isinstance(result, dict) for result in results):
            raise EngineError(f"{self._server.url}/collective_rpc {method}: no answers of workers in {answer!r}")
        return results

    async def _call(self, kind: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str]) -> Any:
        where = f"{self._server.url}{path}"
        async with httpx.AsyncClient(base_url=self._server.url, timeout=self._seconds, trust_env=False) as client:
            try:
                reply = await client.request(kind, path, json=body, params=dict(query))
            except httpx.ReadTimeout as error:
                raise EngineTimeoutError(f"{where}: no answer within {self._seconds:g} s") from error
        if not reply.is_success:
            raise EngineError(f"{where}: status {reply.status_code}: {reply.text[:EXCERPT_CHARACTERS]}")
        try:
            return reply.json() if reply.content else None
        except ValueError:  # some routes answer in words
            return None
