import asyncio
import json
import math

import pytest
from tests.engines.vllm.fake_server import STOP, Break, FakeServer, RevivedServer, endless, generated, scored

from midcourse.engines.base import SamplingParams
from midcourse.engines.servers import MOST_BYTES
from midcourse.engines.vllm.client import LOGPROB_BYTES, VllmClient, request_seed
from midcourse.engines.vllm.config import VllmEngineConfig
from midcourse.engines.vllm.features import check_server
from midcourse.errors import EngineError, EngineTimeoutError, PromptTooLongError

VOCABULARY = 50
SAMPLING = SamplingParams(max_tokens=4, temperature=0.7, seed=11, stop_ids=(STOP,))


def run(server, work, **settings):
    """Run `work(client)` against a server."""

    async def main():
        settings_ = {"backoff_seconds": 0.01, "request_timeout_seconds": 5.0} | settings
        client = VllmClient(VllmEngineConfig(**settings_), server=server, vocabulary_size=VOCABULARY)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(main())


def in_turn(*answers):
    """Return a decision that gives the answers one after the other, the last one for ever."""
    remaining = list(answers)
    return lambda path, body: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def draw(client):
    return client.generate([1, 2, 3], SAMPLING)


def one(decide, work=draw, **settings):
    with FakeServer(decide) as fake:
        return run(RevivedServer(fake.url), work, **settings), fake


def test_a_completion_is_what_the_server_drew_and_the_request_says_all_that_it_depends_on():
    body = generated((4, STOP), logprobs=[-0.25, -1.5], cached=2)
    answer, fake = one(in_turn((200, body)))
    assert (answer.token_ids, answer.logprobs, answer.finish_reason) == ([4, STOP], [-0.25, -1.5], "stop")
    assert (answer.versions, answer.cached_tokens) == (frozenset({"0"}), 2)
    path, sent = fake.requests[0]
    assert path == "/inference/v1/generate"
    assert sent["token_ids"] == [1, 2, 3]
    assert sent["sampling_params"] == {
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 11,
        "stop_token_ids": [STOP],
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }


def test_a_schema_is_sent_and_the_tokenizers_own_end_may_stop_it():
    schema = {"type": "object"}
    sampling = SamplingParams(max_tokens=4, stop_ids=(STOP,), json_schema=schema)
    answer, fake = one(in_turn((200, generated((4, 5)))), lambda client: client.generate([1], sampling))
    sent = fake.requests[0][1]["sampling_params"]
    assert (sent["structured_outputs"], sent["ignore_eos"]) == ({"json": schema}, False)
    assert answer.token_ids == [4, 5]


def test_a_seed_is_kept_and_chunks_behind_the_first_have_their_own():
    assert request_seed(11, 0) == 11
    seeds = {request_seed(11, first) for first in range(5)} | {request_seed(12, 3)}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("failure", [(500, "EngineCore encountered an issue"), (503, "busy"), (429, "slow"), Break()])
def test_a_passing_failure_is_asked_again_and_answered_once(failure):
    async def work(client):
        return await draw(client), client.counters.repetitions, client._pause(2), client._pause(30)

    (answer, *rest), fake = one(in_turn(failure, failure, (200, generated())), work)
    assert answer.token_ids == [4, STOP]
    assert rest == [2, 0.04, 10.0]
    assert len(fake.requests) == 3
    assert fake.requests[0] == fake.requests[2]


@pytest.mark.parametrize("token", [VOCABULARY, 10**9, 10**30])
def test_a_token_that_the_model_does_not_know_is_an_engine_error(token):
    one(in_turn((200, generated((VOCABULARY - 1, STOP)))))
    with pytest.raises(EngineError, match=f"tokens of the model's 50: got token id {token}$"):
        one(in_turn((200, generated((token, STOP)))))


def test_an_answer_is_read_up_to_a_bound_that_fits_what_was_asked_for():
    def draw_with_likeliest(client):
        return client.generate([1, 2, 3], SAMPLING, top_logprobs=20)

    for work, logprobs in ((draw, 7), (draw_with_likeliest, 7 * 21), (lambda client: client.get("/v1/models"), 0)):
        most = MOST_BYTES + logprobs * LOGPROB_BYTES
        with endless(b" " * 65536) as url, pytest.raises(EngineError, match=f"the answer is longer than {most} bytes"):
            run(RevivedServer(url), work)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_the_server_broke_off_is_asked_again(reason):
    aborted = generated((4,), finish_reason=reason)
    answer, fake = one(in_turn((200, aborted), (200, generated())))
    assert (answer.token_ids, len(fake.requests)) == ([4, STOP], 2)
    with pytest.raises(EngineError, match="broken off by the server, 3 attempts"):
        one(in_turn((200, aborted)), max_retries=2)


def test_repetitions_end_and_the_error_holds_status_and_body():
    with pytest.raises(EngineError, match="status 500: EngineCore encountered an issue, 3 attempts"):
        one(in_turn((500, "EngineCore encountered an issue")), max_retries=2)
    with pytest.raises(EngineError, match="2 attempts"):
        run(RevivedServer("http://127.0.0.1:9"), draw, max_retries=1)


def test_what_was_in_flight_when_a_server_died_is_answered_by_the_next_one_each_once():
    """All of it waits for one revival, and nothing is sent meanwhile."""

    def echo(path, body):
        token = body["token_ids"][0]
        return 200, generated((token, STOP))

    async def many(client):
        return await asyncio.gather(*(client.generate([token], SAMPLING) for token in range(10, 30)))

    with FakeServer(lambda path, body: (0.05, Break())) as dead, FakeServer(echo) as alive:
        server = RevivedServer(dead.url, moves_to=alive.url, seconds=0.2)
        answers = run(server, many)
    assert [answer.token_ids[0] for answer in answers] == list(range(10, 30))
    assert server.revivals == 1
    assert sorted(body["token_ids"][0] for _, body in alive.requests) == list(range(10, 30))


def test_nothing_is_sent_to_a_server_that_is_being_revived():
    with FakeServer(lambda path, body: Break()) as dead, FakeServer(in_turn((200, generated()))) as alive:
        server = RevivedServer(dead.url, moves_to=alive.url, seconds=0.3)

        async def work(client):
            first = asyncio.create_task(draw(client))
            while not server.revivals:
                await asyncio.sleep(0.01)
            return await draw(client), await first

        run(server, work)
    assert (len(dead.requests), len(alive.requests)) == (1, 2)


def test_a_server_that_cannot_be_brought_back_fails_everybody_who_waits():
    class Lost(RevivedServer):
        async def revive(self):
            self.revivals += 1
            raise EngineError("died again after 3 restarts")

    async def many(client):
        return await asyncio.gather(*(draw(client) for _ in range(5)), return_exceptions=True)

    with FakeServer(lambda path, body: (0.05, Break())) as dead:
        found = run(Lost(dead.url), many)
    assert [str(error) for error in found] == ["died again after 3 restarts"] * 5


def test_no_more_requests_are_in_flight_than_configured():
    async def many(client):
        return await asyncio.gather(*(draw(client) for _ in range(7)))

    answers, fake = one(lambda path, body: (0.03, (200, generated())), many, max_concurrency=2)
    assert (len(answers), fake.most_in_flight) == (7, 2)


def test_a_server_that_does_not_answer_is_a_timeout():
    with pytest.raises(EngineTimeoutError, match=r"no answer in 0\.1 s, 2 attempts"):
        one(lambda path, body: (0.5, (200, generated())), request_timeout_seconds=0.1, max_retries=1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<html>", "no JSON in the answer, status 200: <html>"),
        ("[" * 100_000, "no JSON in the answer"),
        ([], "must answer with one choice: got"),
        ({"choices": []}, "must answer with one choice"),
        (generated(()), "must answer with 1 to 4 token ids: got"),
        (generated((4, 5, 6, 7, STOP)), "1 to 4 token ids"),
        ({**generated(), "choices": [{**generated()["choices"][0], "token_ids": None}]}, "token ids: got null"),
        ({**generated(), "choices": [{**generated()["choices"][0], "token_ids": [4, -9]}]}, "token ids"),
        (generated((4, 5)), "stopped at token 5, expected one of"),
        (generated(finish_reason="tool_calls"), 'a stop token or the length: got "tool_calls"'),
        (generated(logprobs=[-0.5]), "must tell 2 log-probabilities: got 1"),
        ({**generated(), "choices": [{**generated()["choices"][0], "logprobs": None}]}, "log-probabilities: got None"),
        (
            {**generated(), "choices": [{**generated()["choices"][0], "logprobs": [-0.5]}]},
            "2 log-probabilities: got None",
        ),
        (generated(logprobs=[-0.5, -9999.0]), "a log-probability of token 9, finite and at most 0"),
        (generated(logprobs=[-0.5, 0.7]), "finite and at most 0"),
        (generated(logprobs=[-0.5, None]), "finite and at most 0"),
        (generated(logprobs=[-0.5, "a lot"]), "finite and at most 0"),
        (json.dumps(generated(logprobs=[math.nan, -0.5])), "finite and at most 0"),
        (json.dumps(generated(logprobs=[-math.inf, -0.5])), "finite and at most 0"),
        (
            {**generated(), "choices": [{**generated((4, STOP))["choices"][0], "token_ids": [5, STOP]}]},
            "a log-probability of token 5",
        ),
        (generated(weight_versions=None), "must tell the version of its weights"),
        (generated(weight_versions=[{"version": 3}]), "must tell the version of its weights"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_engine_error_that_shows_it(body, said):
    with pytest.raises(EngineError, match=said):
        one(in_turn((200, body)))


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens=5000 cannot be greater than max_model_len=2048",
        "This model's maximum context length is 2048 tokens. However, your prompt contains 2100",
        "The decoder prompt (length 2100) is longer than the maximum model length of 2048.",
    ],
)
def test_a_prompt_that_is_too_long_for_the_server_is_called_so(said):
    with pytest.raises(PromptTooLongError, match="2048"):
        one(in_turn((400, json.dumps({"error": {"message": said}}))))


def test_a_completion_that_the_servers_context_cut_is_called_too_long():
    with pytest.raises(PromptTooLongError, match="context ended after 2 of 4 tokens"):
        one(in_turn((200, generated((4, 5), finish_reason="length"))))


@pytest.mark.parametrize(
    ("status", "said"),
    [(400, "status 400"), (403, "--enable-scale-out"), (404, r"vLLM 0\.32 or later, started with --enable-scale-out")],
)
def test_a_refusal_is_not_repeated_and_says_what_to_change(status, said):
    with FakeServer(in_turn((status, "no"))) as fake, pytest.raises(EngineError, match=said):
        run(RevivedServer(fake.url), draw)
    assert len(fake.requests) == 1


def test_every_version_that_drew_a_part_of_an_answer_is_told():
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    assert one(in_turn((200, generated(weight_versions=spans))))[0].versions == frozenset({"3", "4"})


def test_rounding_above_probability_1_is_probability_1():
    assert one(in_turn((200, generated(logprobs=[-0.25, 5e-7]))))[0].logprobs == [-0.25, 0.0]


def test_proxies_of_the_environment_are_not_for_servers(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert one(in_turn((200, generated())), max_retries=0)[0].token_ids == [4, STOP]


def test_a_client_that_is_closed_waits_for_no_revival():
    class Slow(RevivedServer):
        async def revive(self):
            self.revivals += 1
            await asyncio.sleep(600)

    async def main():
        server = Slow("http://127.0.0.1:9")
        client = VllmClient(VllmEngineConfig(backoff_seconds=0.01), server=server, vocabulary_size=VOCABULARY)
        asked = asyncio.create_task(draw(client))
        while not server.revivals:
            await asyncio.sleep(0.01)
        await client.close()
        await asyncio.wait([asked], timeout=60)
        assert asked.done()

    asyncio.run(main())


def test_scores_are_those_of_the_continuation():
    body = scored([1, 2, 3, 4], [-3.0, -0.5, -9999.0])
    found, fake = one(in_turn((200, body)), lambda client: client.score([1, 2], [3, 4]))
    assert found == ([-0.5, -math.inf], frozenset({"0"}))
    assert fake.requests[0][1]["sampling_params"]["prompt_logprobs"] == 0


@pytest.mark.parametrize(
    "body",
    [
        generated((0,), finish_reason="length"),
        scored([1, 2, 3], [-3.0, -0.5]),
        scored([1, 2, 3, 5], [-3.0, -0.5, -1.0]),
        json.dumps(scored([1, 2, 3, 4], [-3.0, math.nan, -1.0])),
    ],
)
def test_scores_of_other_tokens_or_none_are_an_engine_error(body):
    with pytest.raises(EngineError, match="must score"):
        one(in_turn((200, body)), lambda client: client.score([1, 2], [3, 4]))


@pytest.mark.parametrize(
    "top",
    [
        (),
        [None],
        [{"token_id": "4", "logprob": -0.5}],
        [{"token_id": True, "logprob": -0.5}],
        [{"token_id": 4, "logprob": 0.5}],
        [{"token_id": 4, "logprob": -9999.0}],
    ],
)
def test_likeliest_tokens_that_cannot_be_are_an_engine_error(top):
    def ask(client):
        return client.generate([1, 2, 3], SAMPLING, top_logprobs=2)

    good = [{"token_id": 4, "logprob": -0.5}, {"token_id": 5, "logprob": -9999.0}]
    answer, fake = one(in_turn((200, generated(top=good))), ask)
    assert fake.requests[0][1]["sampling_params"]["logprobs"] == 2
    assert list(answer.top_logprobs) == [{4: -0.5}] * 2
    with pytest.raises(EngineError, match="must tell the likeliest tokens"):
        one(in_turn((200, generated(top=top))), ask)


def test_tokens_are_counted_and_those_from_the_cache():
    async def work(client):
        await draw(client)
        await client.score([1, 2], [3, 4])
        return client.counters

    counters, _ = one(in_turn((200, generated(cached=2)), (200, scored([1, 2, 3, 4], [-1.0, -1.0, -1.0]))), work)
    assert (counters.prompt_tokens, counters.cached_tokens) == (5, 2)
    assert (counters.generated_tokens, counters.scored_tokens) == (2, 2)
    assert counters.busy_seconds > 0


def server_of(mode, *, limit=2048):
    """Return a decision of a server that tells processed or raw log-probabilities of top-k 1."""
    value = 0.0 if mode == "processed" else -0.7

    def decide(path, body):
        if path == "/v1/models":
            return 200, {"data": [{"id": "policy", "max_model_len": limit}]}
        assert body["sampling_params"]["top_k"] == 1
        return 200, generated((4, 5, 6, 7), logprobs=[value] * 4, finish_reason="length")

    return decide


def test_a_running_server_is_looked_at_before_anything_depends_on_it():
    def check(client):
        return check_server(client, logprobs="processed")

    assert one(server_of("processed", limit=77), check)[0] == 77
    with pytest.raises(EngineError, match=r"tells raw log-probabilities, engine\.logprobs = 'processed': expected"):
        one(server_of("raw"), check)
    with pytest.raises(EngineError, match="max_model_len"):
        one(in_turn((200, {"object": "list"})), check)
    with pytest.raises(EngineError, match=r"vLLM 0\.32 or later"):
        one(in_turn((200, {"data": [{"max_model_len": 9}]}), (404, "Not Found")), check)
