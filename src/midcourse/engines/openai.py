"""Roles and simulators on a server that speaks the OpenAI chat completions protocol."""

import asyncio
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field, field_validator

from midcourse.engines.base import ENGINES
from midcourse.engines.servers import UNCOMPRESSED, address_parts, ask
from midcourse.errors import ConfigError, EngineError, EngineTimeoutError

RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
EXCERPT_CHARACTERS = 300
MOST_DOUBLINGS = 64
"""Of the wait before a retry: beyond them the factor would no longer fit a float."""
_HEADER_WORD = re.compile("[!-~]+")


@ENGINES.register("openai")
class OpenAIEngineConfig(BaseModel):
    """A model on an OpenAI-compatible server, asked for text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    base_url: str
    """Address up to and with the version, as in "http://127.0.0.1:8000/v1"."""
    model: str
    """Name of the model as the server knows it."""
    api_key_variable: str | None = None
    """Environment variable that holds the key; none sends no key. The key itself never enters a config."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Longest wait for one attempt."""
    max_retries: int = Field(default=4, ge=0)
    """Attempts after the first, on connection errors, timeouts and statuses 408, 409, 429, 5xx."""
    backoff_seconds: float = Field(default=0.5, ge=0)
    """Wait before the first retry; doubles each time, with a random factor in [0.5, 1]."""
    max_backoff_seconds: float = Field(default=30.0, ge=0)
    """Longest wait between attempts, also where the server's Retry-After asks for more."""
    max_concurrency: int = Field(default=32, ge=1)
    """Most requests in flight."""
    structured_output: Literal["auto", "json_schema", "off"] = "auto"
    """Whether a schema is sent as response_format; "auto" stops doing so once the server has refused it."""

    @field_validator("base_url")
    @classmethod
    def _is_a_web_address(cls, base_url: str) -> str:
        if address_parts(base_url) is None:
            raise ValueError('expected an address as in "http://127.0.0.1:8000/v1"')
        return base_url

    def build(self) -> "OpenAIEngine":
        """Return the engine. Raises ConfigError when the key's variable is not set."""
        return OpenAIEngine(config=self)


class OpenAIEngine:
    """TextEngine over HTTP."""

    def __init__(self, *, config: OpenAIEngineConfig) -> None:
        self.config = config
        headers = dict(UNCOMPRESSED)
        if config.api_key_variable is not None:
            key = os.environ.get(config.api_key_variable)
            if not key:
                raise ConfigError(f"api_key_variable: the environment variable {config.api_key_variable} is not set")
            if not _HEADER_WORD.fullmatch(key):  # the client would refuse it with a message that shows it
                raise ConfigError(
                    f"api_key_variable: the environment variable {config.api_key_variable} must hold printable ASCII "
                    "characters without white space alone"
                )
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            base_url=config.base_url.rstrip("/") + "/",
            headers=headers,
            timeout=config.timeout_seconds,
            limits=httpx.Limits(max_connections=config.max_concurrency),
        )
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._sends_schema = config.structured_output != "off"

    async def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        json_schema: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the reply's text.

        Args:
            messages: [{"role": ..., "content": ...}, ...].
            max_tokens: most tokens of the reply.
            temperature: >= 0.
            seed: sent along; whether it has an effect is up to the server.
            json_schema: asked for through response_format where configured; the reply is not checked against it.

        Raises:
            EngineTimeoutError: the last attempt timed out.
            EngineError: the server cannot be reached, refuses, or its answer has no text, is compressed, or is longer
                than engines/servers.py reads; the message holds the status and the start of the body.
        """
        payload: dict[str, Any] = {
            "model": self.config.model,
            "messages": [dict(message) for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        async with self._slots:
            if json_schema is not None and self._sends_schema:
                form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": dict(json_schema)}}
                answer = await self._post({**payload, "response_format": form})
                if answer.status_code != 400 or self.config.structured_output != "auto":
                    return self._text(answer)
                answer = await self._post(payload)
                # Only if it works without was the schema what the server minded.
                self._sends_schema = not answer.is_success
                return self._text(answer)
            return self._text(await self._post(payload))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _post(self, payload: Mapping[str, Any]) -> httpx.Response:
        for attempt in range(self.config.max_retries + 1):
            is_last = attempt == self.config.max_retries
            retry_after = None
            try:
                # httpx bounds each read; a server that trickles would pass that for ever.
                async with asyncio.timeout(self.config.timeout_seconds):
                    answer = await ask(self._client, "POST", "chat/completions", json=payload)
            except (httpx.TimeoutException, TimeoutError) as error:
                if is_last:
                    raise EngineTimeoutError(
                        f"{self.config.base_url}: no answer in {self.config.timeout_seconds} s, {attempt + 1} attempts"
                    ) from error
            except httpx.HTTPError as error:
                if is_last:
                    raise EngineError(f"{self.config.base_url}: {error!r}, {attempt + 1} attempts") from error
            else:
                if is_last or answer.status_code not in RETRIED_STATUSES:
                    return answer
                retry_after = _seconds(answer.headers.get("Retry-After"))
            await asyncio.sleep(self._pause(attempt, retry_after))
        raise AssertionError("the last attempt returns or raises")

    def _pause(self, attempt: int, retry_after: float | None) -> float:
        # Jitter spreads retries in time and reaches no result, so it need not be seeded.
        pause = self.config.backoff_seconds * 2 ** min(attempt, MOST_DOUBLINGS) * random.uniform(0.5, 1.0)
        return min(max(pause, retry_after or 0.0), self.config.max_backoff_seconds)

    def _text(self, answer: httpx.Response) -> str:
        # JSON is UTF-8 whatever the header says; some encodings that a header can name raise on decoding.
        body = answer.content.decode(errors="replace")
        excerpt = body[:EXCERPT_CHARACTERS]
        where = f"{self.config.base_url}: status {answer.status_code}"
        if not answer.is_success:
            raise EngineError(f"{where}: {excerpt}")
        try:
            text = json.loads(body)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise EngineError(f"{where}: no chat completion in the body: {excerpt}") from error
        if not isinstance(text, str):
            raise EngineError(f"{where}: the reply has no text: {excerpt}")
        return text


def _seconds(retry_after: str | None) -> float | None:
    """Return the header's seconds; a date or nothing gives None, and the backoff decides."""
    try:
        return max(0.0, float(retry_after)) if retry_after is not None else None
    except ValueError:
        return None
