import asyncio
import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from midcourse.engines.base import ENGINES
from midcourse.engines.openai import OpenAIEngineConfig
from midcourse.engines.servers import MOST_BYTES
from midcourse.errors import ConfigError, EngineError, EngineTimeoutError

SCHEMA = {"type": "object", "properties": {"valid": {"type": "boolean"}}}


def reply(text: str) -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


class Server:
    """Answers with `answers` in turn, the last one for ever: (status, body, headers, delay in seconds)."""

    def __init__(self, answers, decide=None):
        self.requests, self.headers, self.in_flight, self.most_in_flight = [], [], 0, 0
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.in_flight += 1
                    outer.most_in_flight = max(outer.most_in_flight, outer.in_flight)
                    status, text, headers, delay = (
                        decide(body) if decide else answers[min(len(outer.requests), len(answers) - 1)]
                    )
                    outer.requests.append((self.path, body))
                    outer.headers.append(dict(self.headers))
                time.sleep(delay)
                with lock:
                    outer.in_flight -= 1
                try:
                    self.send_response(status)
                    content = text if isinstance(text, bytes) else text.encode()
                    for name, value in {**headers, "Content-Length": str(len(content))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except ConnectionError:
                    pass  # the client has given up

            def log_message(self, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *args):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def sent_header(server: Server, name: str) -> str:
    return next(value for key, value in server.headers[0].items() if key.lower() == name.lower())


def ask(url: str, *, times: int = 1, schema=None, **settings):
    settings = {"backoff_seconds": 0.01, "timeout_seconds": 5.0} | settings

    async def run():
        engine = OpenAIEngineConfig(base_url=url, model="m", **settings).build()
        try:
            question = engine.complete(
                [{"role": "user", "content": "hi"}], max_tokens=5, temperature=0.3, seed=11, json_schema=schema
            )
            first = [await question]
            more = (
                engine.complete(
                    [{"role": "user", "content": "hi"}], max_tokens=5, temperature=0, seed=1, json_schema=schema
                )
                for _ in range(times - 1)
            )
            return first + await asyncio.gather(*more)
        finally:
            await engine.close()

    return asyncio.run(run())


def test_the_reply_is_the_text_and_the_request_says_what_was_asked(monkeypatch):
    monkeypatch.setenv("ROLE_KEY", "secret")
    with Server([(200, reply("yes"), {}, 0)]) as server:
        assert ask(server.url, api_key_variable="ROLE_KEY", schema=SCHEMA) == ["yes"]
    path, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert {name: body[name] for name in ("model", "max_tokens", "temperature", "seed")} == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.3,
        "seed": 11,
    }
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert server.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_a_passing_failure_is_tried_again(status):
    with Server([(status, "busy", {}, 0), (200, reply("ok"), {}, 0)]) as server:
        assert ask(server.url) == ["ok"]
    assert len(server.requests) == 2


def test_retry_after_is_waited_for():
    with Server([(429, "busy", {"Retry-After": "0.3"}, 0), (200, reply("ok"), {}, 0)]) as server:
        started = time.monotonic()
        assert ask(server.url) == ["ok"]
    assert time.monotonic() - started >= 0.3


def test_retries_end_and_the_error_holds_status_and_body():
    loading = (503, "the model is loading", {}, 0)
    with Server([loading]) as server, pytest.raises(EngineError, match="status 503: the model is loading"):
        ask(server.url, max_retries=2)
    assert len(server.requests) == 3


def test_a_refusal_is_not_tried_again():
    with Server([(401, "bad key", {}, 0)]) as server, pytest.raises(EngineError, match="status 401: bad key"):
        ask(server.url)
    assert len(server.requests) == 1


def test_a_compressed_answer_is_refused_unread_since_it_may_unpack_to_any_size():
    bomb = gzip.compress(reply(" " * (1 << 22)).encode())
    with Server([(200, bomb, {"Content-Encoding": "gzip"}, 0)]) as server:
        with pytest.raises(
            EngineError, match=f"{server.url}/chat/completions: status 200: the answer is compressed by 'gzip'"
        ):
            ask(server.url)
        assert sent_header(server, "Accept-Encoding") == "identity"
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_is_read_up_to_a_bound(status):
    expected = pytest.raises(EngineError, match=f"status {status}: the answer is longer than {MOST_BYTES} bytes")
    with Server([(status, reply(" " * MOST_BYTES), {}, 0)]) as server, expected:
        ask(server.url)


def test_a_server_that_is_down_is_an_engine_error():
    with Server([(200, "", {}, 0)]) as server:
        url = server.url
    with pytest.raises(EngineError, match="2 attempts"):
        ask(url, max_retries=1)


def test_a_slow_server_is_a_timeout():
    late = (200, reply("late"), {}, 0.5)
    with Server([late]) as server, pytest.raises(EngineTimeoutError, match=r"no answer in 0\.1 s, 2 attempts"):
        ask(server.url, timeout_seconds=0.1, max_retries=1)


@pytest.mark.parametrize(
    "body",
    ["<html>", "[]", "{}", '{"choices": []}', '{"choices": [{"message": {"content": null}}]}', "", "[" * 100_000],
)
def test_a_body_without_a_reply_is_an_engine_error(body):
    with Server([(200, body, {}, 0)]) as server, pytest.raises(EngineError, match="status 200"):
        ask(server.url)


def refuse_schema(body):
    return (400, "no response_format", {}, 0) if "response_format" in body else (200, reply("plain"), {}, 0)


def test_auto_falls_back_once_and_remembers():
    with Server([], decide=refuse_schema) as server:
        assert ask(server.url, schema=SCHEMA, times=3) == ["plain"] * 3
    assert ["response_format" in body for _, body in server.requests] == [True, False, False, False]


def test_a_schema_that_is_required_is_not_dropped_and_off_sends_none():
    with Server([], decide=refuse_schema) as server:
        with pytest.raises(EngineError, match="status 400"):
            ask(server.url, schema=SCHEMA, structured_output="json_schema")
        assert ask(server.url, schema=SCHEMA, structured_output="off") == ["plain"]
    assert len(server.requests) == 2


def test_no_more_requests_are_in_flight_than_configured():
    with Server([(200, reply("ok"), {}, 0.03)]) as server:
        assert len(ask(server.url, times=7, max_concurrency=2)) == 7
    assert server.most_in_flight == 2


def test_a_missing_key_is_named(monkeypatch):
    monkeypatch.delenv("ROLE_KEY", raising=False)
    with pytest.raises(ConfigError, match="ROLE_KEY is not set"):
        OpenAIEngineConfig(base_url="http://127.0.0.1:1/v1", model="m", api_key_variable="ROLE_KEY").build()


@pytest.mark.parametrize("key", ["top-secret\r", "top secret", "top-secr\u00e9t"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(monkeypatch, key):
    monkeypatch.setenv("ROLE_KEY", key)
    with pytest.raises(ConfigError, match="ROLE_KEY must hold printable ASCII") as caught:
        OpenAIEngineConfig(base_url="http://127.0.0.1:1/v1", model="m", api_key_variable="ROLE_KEY").build()
    assert "top" not in str(caught.value)


@pytest.mark.parametrize("charset", ["hex", "utf-16", "idna"])
def test_a_body_is_utf_8_whatever_encoding_the_header_names(charset):
    with Server([(200, reply("yes"), {"Content-Type": f"application/json; charset={charset}"}, 0)]) as server:
        assert ask(server.url) == ["yes"]


def test_the_wait_stays_finite_however_often_it_is_tried():
    engine = OpenAIEngineConfig(base_url="http://127.0.0.1:1/v1", model="m", max_backoff_seconds=2.0).build()
    assert engine._pause(5000, None) == 2.0


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v\x011", "http://127.0.0.1:8000/" + "v" * 70_000])
def test_an_address_that_the_client_would_refuse_is_refused_at_once(url):
    with pytest.raises(ValueError, match="expected an address"):
        OpenAIEngineConfig(base_url=url, model="m")


def test_both_engines_are_registered():
    import midcourse.engines.transformers  # noqa: F401

    assert {"openai", "transformers"} <= set(ENGINES.names())
