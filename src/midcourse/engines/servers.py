"""Servers that are asked over HTTP and not trusted: their addresses, and answers of a bounded length."""

from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from midcourse.errors import EngineError

MOST_BYTES = 1 << 24
"""Of an answer: some of the longest replies fit, and a server that never ends does not fill the memory."""
UNCOMPRESSED = {"Accept-Encoding": "identity"}
"""Headers of a client whose answers are read here: what is compressed may unpack to any size."""


def address_parts(url: str) -> SplitResult | None:
    """Return the parts of an address that httpx can ask; None where it is none."""
    if any(character.isspace() for character in url):
        return None
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):  # open brackets, a port that is no number, control characters
        return None
    return parts if is_one else None


async def ask(
    client: httpx.AsyncClient, kind: str, url: str, *, most_bytes: int = MOST_BYTES, **request: Any
) -> httpx.Response:
    """Return a whole answer. How long it takes is the caller's to bound: httpx bounds each read alone.

    Args:
        client: sends UNCOMPRESSED.
        kind: "GET" or "POST".
        url: as the client takes it.
        most_bytes: of the answer's body.
        request: what else httpx is to send.

    Raises:
        EngineError: the answer is compressed, or longer than `most_bytes`.
        httpx.HTTPError: as httpx does.
    """
    async with client.stream(kind, url, **request) as response:
        where = f"{response.request.url}: status {response.status_code}"
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise EngineError(f"{where}: the answer is compressed by {encoding!r}, expected as it was asked for")
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > most_bytes:
                raise EngineError(f"{where}: the answer is longer than {most_bytes} bytes")
        return httpx.Response(
            response.status_code, headers=response.headers, content=bytes(body), request=response.request
        )
