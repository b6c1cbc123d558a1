"""Requests to a vLLM server: token ids in, token ids and log-probabilities out (`/inference/v1/generate`).

A request says everything that its answer depends on, so that it can be sent again: after a broken connection, a
timeout, a status 429 or 5xx, or an answer that the server broke off. A dead server is revived before that, and nothing
is sent meanwhile. What comes back is read by answers.py.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import httpx

from midcourse.engines.base import SamplingParams
from midcourse.engines.servers import MOST_BYTES, UNCOMPRESSED, ask
from midcourse.engines.vllm.answers import (
    EXCERPT_CHARACTERS,
    Answer,
    excerpt,
    is_broken_off,
    read_answer,
    read_scores,
    versions_of,
)
from midcourse.engines.vllm.config import VllmEngineConfig
from midcourse.engines.vllm.server import SERVED_MODEL, Server
from midcourse.errors import EngineError, EngineTimeoutError, PromptTooLongError

GENERATE = "/inference/v1/generate"
TOP_LOGPROBS = 20
"""Most that a vLLM server gives unless it is started with --max-logprobs."""
LOGPROB_BYTES = 1024
"""Most that an answer has for one log-probability: vLLM takes about 150 for it, its token, rank, text and bytes."""
LONGEST_PAUSE_SECONDS = 10.0
SEED_MASK = (1 << 63) - 1


@dataclass(slots=True)
class Counters:
    """What was asked for and given since the client was built."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0
    repetitions: int = 0
    busy_seconds: float = 0.0  # in which at least one request was in flight


class VllmClient:
    """Many requests in flight to one server, wherever it is at the time. Its model knows `vocabulary_size` tokens."""

    def __init__(
        self, config: VllmEngineConfig, *, server: Server, vocabulary_size: int, model_name: str = SERVED_MODEL
    ) -> None:
        self.config = config
        self.server = server
        self.vocabulary_size = vocabulary_size
        self.model_name = model_name
        self.counters = Counters()
        # Proxies of the environment are for other machines; connections are as many as the slots let through.
        self._http = httpx.AsyncClient(
            timeout=None,
            trust_env=False,
            headers=UNCOMPRESSED,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._in_flight = 0
        self._busy_since = 0.0
        self._revival: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, top_logprobs: int = 0) -> Answer:
        """Draw one continuation.

        Args:
            prompt_ids: [P] at least one token.
            sampling: `report_temperature` has no part in it: log-probabilities are those that the server tells.
            top_logprobs: of so many of the likeliest tokens at each place, too.

        Raises:
            PromptTooLongError: prompt and max_tokens are over the server's context.
            EngineTimeoutError: no answer in time.
            EngineError: the server cannot be reached or brought back, refuses, or its answer cannot be used.
        """
        wanted = sampling_wishes(sampling, top_logprobs=top_logprobs)
        body = await self._ask(prompt_ids, wanted)
        answer = read_answer(body, sampling=sampling, top_logprobs=top_logprobs, vocabulary_size=self.vocabulary_size)
        self.counters.prompt_tokens += len(prompt_ids)
        self.counters.cached_tokens += answer.cached_tokens
        self.counters.generated_tokens += len(answer.token_ids)
        return answer

    async def score(
        self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]
    ) -> tuple[list[float], frozenset[str]]:
        """Return [N] log-probabilities at temperature 1, nats, and the weights' versions. Raises as `generate`.

        The whole text runs through the model: a server that scores prompts takes nothing from its cache.
        """
        wanted = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False, "ignore_eos": True}
        token_ids = [*prompt_ids, *continuation_ids]
        body = await self._ask(token_ids, wanted)
        logprobs = read_scores(body, token_ids, first=len(prompt_ids))
        self.counters.prompt_tokens += len(prompt_ids)
        self.counters.scored_tokens += len(continuation_ids)
        return logprobs, versions_of(body)

    async def get(self, path: str) -> Any:
        """Return the JSON of a page of the server. Raises as `generate`."""
        response = await self._send("GET", path, None)
        return _json(response)

    async def close(self) -> None:
        """Close the connections."""
        if self._revival is not None:
            self._revival.cancel()
        await self._http.aclose()

    async def _ask(self, token_ids: Sequence[int], sampling: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body of an answer that was finished."""
        payload = {"model": self.model_name, "token_ids": list(token_ids), "sampling_params": dict(sampling)}
        num_logprobs = (len(token_ids) + sampling["max_tokens"]) * (1 + sampling.get("logprobs", 0))
        most_bytes = MOST_BYTES + LOGPROB_BYTES * num_logprobs
        async with self._slots:
            self._count_in()
            try:
                for attempt in range(self.config.max_retries + 1):
                    body = _json(await self._send("POST", GENERATE, payload, most_bytes=most_bytes))
                    if not is_broken_off(body):
                        return body
                    self.counters.repetitions += 1
                    await asyncio.sleep(self._pause(attempt))
                raise EngineError(
                    f"{self.server.url}{GENERATE}: broken off by the server, {attempt + 1} attempts: {excerpt(body)}"
                )
            finally:
                self._count_out()

    async def _send(
        self, kind: str, path: str, payload: Mapping[str, Any] | None, *, most_bytes: int = MOST_BYTES
    ) -> httpx.Response:
        """Return the first answer that is not a passing failure."""
        content = None if payload is None else json.dumps(payload).encode()
        seconds = self.config.request_timeout_seconds
        for attempt in range(self.config.max_retries + 1):
            is_last = attempt == self.config.max_retries
            if self._revival is not None:
                await asyncio.shield(self._revival)
            where, restarts = f"{self.server.url}{path}", self.server.restarts
            try:
                # httpx bounds each read; a server that trickles would pass that for ever.
                async with asyncio.timeout(seconds):
                    response = await ask(
                        self._http,
                        kind,
                        where,
                        most_bytes=most_bytes,
                        content=content,
                        headers={"Content-Type": "application/json"},
                    )
            except TimeoutError as error:
                if is_last:
                    raise EngineTimeoutError(f"{where}: no answer in {seconds:g} s, {attempt + 1} attempts") from error
            except httpx.HTTPError as error:
                if is_last:
                    raise EngineError(f"{where}: {error!r}, {attempt + 1} attempts") from error
            else:
                if response.status_code != 429 and response.status_code < 500:
                    _check_status(response, where)
                    return response
                if is_last:
                    raise EngineError(f"{where}: {_said(response)}, {attempt + 1} attempts")
            self.counters.repetitions += 1
            await self._revive(restarts)
            await asyncio.sleep(self._pause(attempt))
        raise AssertionError("the last attempt returns or raises")

    async def _revive(self, restarts: int) -> None:
        """Wait until the server answers again. One revival serves everybody who lost the same server."""
        if self.server.restarts != restarts:
            return
        if self._revival is None:
            self._revival = asyncio.get_running_loop().create_task(self._run_revival())
        await asyncio.shield(self._revival)

    async def _run_revival(self) -> None:
        try:
            await self.server.revive()
        finally:
            self._revival = None

    def _pause(self, attempt: int) -> float:
        return min(self.config.backoff_seconds * 2**attempt, LONGEST_PAUSE_SECONDS)

    def _count_in(self) -> None:
        if self._in_flight == 0:
            self._busy_since = time.monotonic()
        self._in_flight += 1

    def _count_out(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self.counters.busy_seconds += time.monotonic() - self._busy_since


def sampling_wishes(sampling: SamplingParams, *, top_logprobs: int = 0) -> dict[str, Any]:
    """Return how a completion is to be drawn, in vLLM's words; see `VllmClient.generate`."""
    wanted: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        # All of them are said: a checkpoint's generation_config.json may hold others.
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": request_seed(sampling.seed, sampling.first_draw),
        "stop_token_ids": list(sampling.stop_ids),
        # Only our own stop tokens end a completion; a schema's end is the tokenizer's own end.
        "ignore_eos": sampling.json_schema is None,
        "logprobs": top_logprobs,
        "detokenize": False,
    }
    if sampling.json_schema is not None:
        wanted["structured_outputs"] = {"json": dict(sampling.json_schema)}
    return wanted


def request_seed(seed: int, first_draw: int) -> int:
    """Return vLLM's seed of a request, in [0, 2**63).

    vLLM counts a request's draws from its own start. Chunks of one text, whose first draw is not the first of all,
    get seeds of their own: the same distribution as one long request, and other draws.
    """
    if first_draw == 0:
        return seed & SEED_MASK
    digest = blake2b(f"{seed}:{first_draw}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & SEED_MASK


def _check_status(response: httpx.Response, where: str) -> None:
    """Raise unless the server did what it was asked for."""
    if response.is_success:
        return
    said = _said(response)
    if response.status_code == 400 and any(
        words in said for words in ("maximum context length", "max_model_len=", "maximum model length")
    ):
        raise PromptTooLongError(f"{where}: {said}")
    advice = {
        403: "; the server must be started with --enable-scale-out",
        404: "; expected vLLM 0.32 or later, started with --enable-scale-out",
    }.get(response.status_code, "")
    raise EngineError(f"{where}: {said}{advice}")


def _said(response: httpx.Response) -> str:
    # JSON is UTF-8 whatever the header says; some encodings that a header can name raise on decoding.
    return f"status {response.status_code}: {response.content.decode(errors='replace')[:EXCERPT_CHARACTERS]}"


def _json(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{response.request.url}: no JSON in the answer, {_said(response)}") from error
