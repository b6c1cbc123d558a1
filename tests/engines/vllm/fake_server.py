"""A server that speaks the part of vLLM's protocol that the client uses, and says what a test tells it to."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from midcourse.engines.vllm.server import GivenServer, GivenServerConfig

Reply = tuple[int, Any]  # status, body: text as it is, anything else as JSON
STOP = 9


class Break:
    """In place of a reply: close the connection."""


def generated(
    token_ids=(4, STOP), *, logprobs=None, finish_reason="stop", version="0", cached=0, top=(), **fields
) -> dict[str, Any]:
    """Return the body of a completion."""
    values = [-0.5] * len(token_ids) if logprobs is None else logprobs
    content = [
        {"token_id": token, "logprob": value, "rank": 1, "top_logprobs": list(top)}
        for token, value in zip(token_ids, values, strict=False)
    ]
    choice = {
        "index": 0,
        "token_ids": list(token_ids),
        "finish_reason": finish_reason,
        "logprobs": {"content": content},
        "weight_versions": [{"version": version, "start": 0, "end": len(token_ids)}],
    }
    usage = {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [{**choice, **fields}], "usage": usage, "prompt_logprobs": None}


def scored(token_ids, logprobs, *, version="0") -> dict[str, Any]:
    """Return the body of a completion with scores of the prompt: of all its tokens but the first."""
    entries = [
        {str(token): {"logprob": value, "rank": 1}} for token, value in zip(token_ids[1:], logprobs, strict=True)
    ]
    return {**generated((0,), finish_reason="length", version=version), "prompt_logprobs": [None, *entries]}


class FakeServer:
    """Answers by `decide(path, body)`: a reply, a `Break`, or a number of seconds and one of these."""

    def __init__(self, decide: Callable[[str, Any], Any]) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.in_flight = self.most_in_flight = 0
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self, body: Any) -> None:
                if self.path == "/health":
                    return self._write(200, b"")
                with lock:
                    outer.in_flight += 1
                    outer.most_in_flight = max(outer.most_in_flight, outer.in_flight)
                    outer.requests.append((self.path, body))
                    answer = decide(self.path, body)
                if isinstance(answer, tuple) and isinstance(answer[0], float):
                    time.sleep(answer[0])
                    answer = answer[1]
                with lock:
                    outer.in_flight -= 1
                if isinstance(answer, Break):
                    self.close_connection = True
                    return None
                status, said = answer
                return self._write(status, said.encode() if isinstance(said, str) else json.dumps(said).encode())

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null"))

            def do_GET(self) -> None:
                self._answer(None)

            def _write(self, status: int, text: bytes) -> None:
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except ConnectionError:
                    pass  # the client has given up

            def log_message(self, *args) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        return self

    def __exit__(self, *args) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def endless(piece: bytes, *, pause: float = 0.0) -> Iterator[str]:
    """Yield the address of a server that answers everybody with `piece` after `piece` without end."""
    stopped = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client has given up
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            while not stopped.wait(pause):
                connection.sendall(piece)

    def accept() -> None:
        while True:
            try:
                connection = listening.accept()[0]
            except OSError:  # closed
                return
            threading.Thread(target=talk, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        stopped.set()
        listening.shutdown(socket.SHUT_RDWR)


class RevivedServer(GivenServer):
    """A given server that counts how often it was revived, and can move to another address then."""

    def __init__(self, url: str, *, moves_to: str = "", seconds: float = 0.0) -> None:
        super().__init__(GivenServerConfig(url=url, wait_seconds=1.0))
        self.address, self._moves_to, self._seconds = url, moves_to, seconds
        self.revivals = 0

    @property
    def url(self) -> str:
        return self.address

    async def revive(self) -> bool:
        self.revivals += 1
        await asyncio.sleep(self._seconds)
        if self._moves_to and self.address != self._moves_to:
            self.address = self._moves_to
            self.restarts += 1
            return True
        return False
