"""Calls of a server's control routes: what goes wrong has a kind, and ends in time."""

import asyncio
import time

import pytest
from tests.engines.vllm.fake_server import Break, FakeServer, RevivedServer, endless

from midcourse.engines.servers import MOST_BYTES
from midcourse.engines.vllm.routes import Routes
from midcourse.engines.vllm.server import ServerGoneError
from midcourse.errors import EngineError, EngineTimeoutError


def call(url, *, seconds=30.0):
    async def run():
        routes = Routes(RevivedServer(url), seconds=seconds)
        try:
            return await routes.post("/pause", mode="wait")
        finally:
            await routes.close()

    return asyncio.run(run())


def test_an_answer_is_its_json_and_words_are_none():
    with FakeServer(lambda path, body: (200, {"a": 1})) as server:
        assert call(server.url) == {"a": 1}
        assert server.requests == [("/pause?mode=wait", None)]
    with FakeServer(lambda path, body: (200, "done")) as server:
        assert call(server.url) is None


def test_a_broken_connection_and_a_refusal_are_told_apart():
    with FakeServer(lambda path, body: Break()) as server, pytest.raises(ServerGoneError, match="/pause: "):
        call(server.url)
    with FakeServer(lambda path, body: (503, "busy")) as server, pytest.raises(EngineError, match="503: busy") as found:
        call(server.url)
    assert not isinstance(found.value, ServerGoneError)


def test_an_answer_that_comes_byte_by_byte_ends_in_time():
    started = time.monotonic()
    with endless(b" ", pause=0.02) as url, pytest.raises(EngineTimeoutError, match=r"no answer within 0\.3 s"):
        call(url, seconds=0.3)
    assert time.monotonic() - started < 60


def test_an_answer_without_end_is_read_up_to_a_bound():
    with (
        endless(b" " * 65536) as url,
        pytest.raises(EngineError, match=f"the answer is longer than {MOST_BYTES} bytes"),
    ):
        call(url)
