"""The engine over a server that holds a model of its own, in this process."""

import asyncio
import math
from types import SimpleNamespace

import pytest
import torch
from tests.engines.vllm.fake_server import FakeServer, generated
from tests.engines.vllm.test_weights import ServedModel

from midcourse.engines.base import Feature, SamplingParams
from midcourse.engines.vllm.answers import Answer
from midcourse.engines.vllm.config import VllmEngineConfig
from midcourse.engines.vllm.engine import VllmEngine, _entropy_bound, _entropy_bounds, _started_as
from midcourse.errors import ConfigError, EngineError, PromptTooLongError

PROMPT = [3, 7, 1, 12]
NUCLEUS = 5  # tokens that the server's top-k leaves


class ServedPolicy(ServedModel):
    """Draws and scores as vLLM does: log-probabilities after temperature and top-k, or before both."""

    def __init__(self, model, *, mode: str) -> None:
        super().__init__(model)
        self.mode = mode
        self.sampled: list[dict] = []
        self.said_version: str | None = None

    def _answer(self, name, body, query):
        if name == "v1/models":
            return {"data": [{"id": "policy", "max_model_len": 64}]}
        return super()._answer(name, body, query)

    def _probe_answer(self, body):
        sampling = body["sampling_params"]
        if sampling["max_tokens"] == 1 and "prompt_logprobs" not in sampling:
            return super()._probe_answer(body)
        version = self.said_version or self.version
        if "prompt_logprobs" in sampling:
            return self._scores(body["token_ids"], version)
        self.sampled.append(body)
        tokens, content = list(body["token_ids"]), []
        generator = torch.Generator().manual_seed(sampling["seed"])
        temperature = sampling["temperature"] or 1.0
        for _ in range(sampling["max_tokens"]):
            with torch.no_grad():
                logits = self.model(torch.tensor([tokens])).logits[0, -1]
            kept = logits / temperature
            if sampling["top_k"]:
                kept = kept.masked_fill(kept < kept.topk(sampling["top_k"]).values[-1], -math.inf)
            told = (kept if self.mode == "processed" else logits).log_softmax(-1)
            token = int(torch.multinomial(kept.softmax(-1), 1, generator=generator))
            if sampling["temperature"] == 0:
                token = int(logits.argmax())
            tokens.append(token)
            values, likeliest = told.topk(min(max(sampling["logprobs"], 1), len(told)))
            top = [{"token_id": int(t), "logprob": float(v)} for t, v in zip(likeliest, values, strict=True)]
            content.append({"token_id": token, "logprob": float(told[token]), "top_logprobs": top})
        drawn = tokens[len(body["token_ids"]) :]
        answer = generated(drawn, finish_reason="length", version=version, cached=1)
        answer["choices"][0]["logprobs"] = {"content": content}
        return answer

    def _scores(self, token_ids, version):
        with torch.no_grad():
            logprobs = self.model(torch.tensor([token_ids])).logits[0, :-1].log_softmax(-1)
        said = [{str(t): {"logprob": float(row[t])}} for row, t in zip(logprobs, token_ids[1:], strict=True)]
        return {**generated((0,), finish_reason="length", version=version), "prompt_logprobs": [None, *said]}


@pytest.fixture
def run_engine(tiny_qwen3, tmp_path):
    """Run `work(engine, served)` on an engine that was opened over a server with other weights."""

    def run(work, *, mode="processed", tokenizer=None, **settings):
        model = tiny_qwen3()
        served = ServedPolicy(tiny_qwen3(), mode=mode)
        with torch.no_grad():
            for parameter in served.model.parameters():
                parameter.mul_(0.5)

        async def main(url):
            running = {"url": url, "weights_folder": str(tmp_path), "wait_seconds": 1.0}
            config = VllmEngineConfig(running=running, logprobs=mode, backoff_seconds=0.01, **settings)
            engine = VllmEngine(model, config=config, tokenizer=tokenizer)
            try:
                await engine.open()
                served.sampled.clear()
                return await work(engine, served)
            finally:
                await engine.close()

        with FakeServer(served.decide) as fake:
            return asyncio.run(main(fake.url))

    return run


def expected_logprobs(full_logprobs, model, token_ids, temperature):
    rows = full_logprobs(model, PROMPT, list(token_ids), temperature)
    return rows[range(len(token_ids)), list(token_ids)].tolist()


@pytest.mark.parametrize("mode", ["processed", "raw"])
@pytest.mark.parametrize("draw", [{}, {"temperature": 0.7}, {"temperature": 0}, {"temperature": 0.7, "top_k": NUCLEUS}])
@pytest.mark.parametrize("reported", [None, 1.0, 1.3])
def test_logprobs_are_the_trainers_at_the_reported_temperature(run_engine, full_logprobs, mode, draw, reported):
    sampling = SamplingParams(max_tokens=6, seed=5, report_temperature=reported, **draw)

    async def work(engine, served):
        return await engine.sample(PROMPT, sampling), engine._model

    completion, model = run_engine(work, mode=mode)
    temperature = reported or sampling.temperature or 1.0
    expected = expected_logprobs(full_logprobs, model, completion.token_ids, temperature)
    assert completion.logprobs == pytest.approx(expected, abs=1e-5)
    assert (list(completion.entropies), completion.policy_version) == ([], 0)


@pytest.mark.parametrize(
    ("mode", "draw", "passes"),
    [
        ("processed", {"temperature": 0.7}, 0),
        ("processed", {"temperature": 0}, 0),
        ("processed", {"temperature": 0.7, "top_k": NUCLEUS}, 1),
        ("processed", {"temperature": 1.0, "top_p": 0.9}, 1),
        ("processed", {"temperature": 0.7, "report_temperature": 1.0}, 1),
        ("raw", {"temperature": 1.0, "top_k": NUCLEUS}, 0),
        ("raw", {"temperature": 0.7}, 1),
        ("raw", {"temperature": 0.7, "report_temperature": 1.0}, 0),
    ],
)
def test_a_completion_is_scored_again_only_where_the_server_tells_something_else(run_engine, mode, draw, passes):
    async def work(engine, served):
        await engine.sample(PROMPT, SamplingParams(max_tokens=3, seed=5, **draw))
        return engine.usage()

    usage = run_engine(work, mode=mode)
    assert usage.scored_tokens == 3 * passes


def test_scores_come_from_the_server_at_temperature_1_and_else_from_the_trainer(run_engine, full_logprobs):
    async def work(engine, served):
        found = {t: await engine.score(PROMPT, [5, 6, 7], temperature=t) for t in (1.0, 0.7, 0.0)}
        return found, engine._client.counters.scored_tokens, engine._model

    found, by_server, model = run_engine(work)
    for temperature, scores in found.items():
        expected = expected_logprobs(full_logprobs, model, [5, 6, 7], temperature or 1.0)
        assert scores.logprobs == pytest.approx(expected, abs=1e-5)
    assert by_server == 6
    assert run_engine(work, scoring="trainer")[1] == 0


def test_entropies_are_exact_a_lower_bound_or_none(run_engine, full_logprobs):
    async def work(engine, served):
        return await engine.sample(PROMPT, SamplingParams(max_tokens=4, temperature=0.7, seed=5)), engine._model

    exact, model = run_engine(work, entropies="trainer")
    rows = full_logprobs(model, PROMPT, list(exact.token_ids), 0.7)
    assert exact.entropies == pytest.approx((-rows.exp() * rows).sum(-1).tolist(), abs=1e-5)
    bound, _ = run_engine(work, entropies="top_logprobs")
    assert bound.token_ids == exact.token_ids
    for lower, entropy in zip(bound.entropies, exact.entropies, strict=True):
        assert 0.3 * entropy < lower <= entropy + 1e-6
    assert list(run_engine(work)[0].entropies) == []


def test_the_bound_is_of_the_known_tokens_and_the_mass_that_is_left():
    """Half, a quarter, and a quarter over tokens of at most a quarter each: ln 2 / 2 + 2 (ln 4 / 4) = 1.5 ln 2."""
    top = {4: math.log(0.5), 8: math.log(0.25)}
    answer = Answer(
        token_ids=[4],
        logprobs=[math.log(0.5)],
        top_logprobs=[top],
        finish_reason="length",
        versions=frozenset({"0"}),
        cached_tokens=0,
    )
    assert _entropy_bounds(answer) == pytest.approx([1.5 * math.log(2)])


def test_a_drawn_token_that_is_none_of_the_likeliest_does_not_set_what_the_others_are_worth():
    """19 of 1/32, the drawn one of 1/1024, the rest at most 1/32 each: 5 ln 2 (1023 / 1024) + 10 ln 2 / 1024."""
    top = {token: -5 * math.log(2) for token in range(19)} | {40: -10 * math.log(2)}
    assert _entropy_bound(top) == pytest.approx((5 * 1023 + 10) / 1024 * math.log(2))


def test_hidden_states_are_the_trainers_or_an_error_that_names_the_setting(run_engine, make_engine):
    async def work(engine, served):
        here = make_engine(engine._model)
        expected = await here.score(PROMPT, [5, 6], want_hidden=True)
        await here.close()
        return (await engine.score(PROMPT, [5, 6], want_hidden=True)).hidden, expected.hidden

    found, expected = run_engine(work)
    assert torch.equal(found, expected)
    with pytest.raises(EngineError, match=r'engine\.hidden_states = "trainer"'):
        run_engine(work, hidden_states="none")


def test_weights_go_to_the_server_where_their_version_is_another(run_engine, full_logprobs):
    async def work(engine, served):
        await engine.update_weights(None, 0)
        unchanged = served.paths.count("load_weights_from")
        with torch.no_grad():
            for parameter in engine._model.parameters():
                parameter.add_(0.1)
        await engine.update_weights(None, 1)
        completion = await engine.sample(PROMPT, SamplingParams(max_tokens=3, seed=5))
        return unchanged, completion, engine.usage(), engine._model

    unchanged, completion, usage, model = run_engine(work)
    assert unchanged == 1
    assert (completion.policy_version, usage.syncs) == (1, 2)
    assert usage.sync_seconds > 0
    expected = expected_logprobs(full_logprobs, model, completion.token_ids, 1.0)
    assert completion.logprobs == pytest.approx(expected, abs=1e-5)


def test_tokens_of_other_weights_are_an_engine_error(run_engine):
    async def work(engine, served):
        served.said_version = "7"
        await engine.sample(PROMPT, SamplingParams(max_tokens=3))

    with pytest.raises(EngineError, match="answered with weights 7, expected version 0"):
        run_engine(work)


def test_a_reply_by_schema_is_not_scored_again_and_needs_a_tokenizer(run_engine):
    async def work(engine, served):
        await engine.sample(PROMPT, SamplingParams(max_tokens=3, top_k=NUCLEUS, json_schema={"type": "object"}))
        return served.sampled[0]["sampling_params"], engine.usage().scored_tokens, engine.features

    sent, scored_tokens, features = run_engine(work, tokenizer=object())
    assert sent["structured_outputs"] == {"json": {"type": "object"}}
    assert scored_tokens == 0
    assert Feature.STRUCTURED_OUTPUT in features
    assert Feature.STRUCTURED_OUTPUT not in run_engine(work)[2]
    assert Feature.STRUCTURED_OUTPUT not in run_engine(work, tokenizer=object(), structured_output=False)[2]


def test_what_does_not_fit_the_servers_context_is_not_sent(run_engine):
    async def work(engine, served):
        assert engine.context_length == 64
        with pytest.raises(PromptTooLongError, match="60 prompt tokens and 5 more are over the context of 64"):
            await engine.sample([1] * 60, SamplingParams(max_tokens=5))
        with pytest.raises(PromptTooLongError):
            await engine.score([1] * 60, [2] * 5)
        full = await engine.score([1] * 60, [2] * 4)
        with pytest.raises(EngineError, match="at least one token"):
            await engine.sample([], SamplingParams(max_tokens=5))
        return served.sampled, len(full.logprobs)

    assert run_engine(work) == ([], 4)


def test_a_closed_engine_asks_nobody(run_engine):
    async def work(engine, served):
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await engine.sample(PROMPT, SamplingParams(max_tokens=5))

    run_engine(work)


def with_adapter(**adapter):
    return SimpleNamespace(peft_config={"default": SimpleNamespace(**adapter)})


def test_a_judges_server_has_a_port_of_its_own_and_no_longer_context_than_the_judge(tiny_qwen3):
    server = {"port": 8123, "context_length": 40_000, "dtype": "bfloat16"}
    config = VllmEngineConfig(server=server, entropies="trainer")
    assert config.for_judge().entropies == "none"
    model = tiny_qwen3(max_position_embeddings=64)
    started = _started_as(model, config.for_judge(), knows_text=False)
    assert (started.port, started.context_length, started.dtype) == (None, 64, "bfloat16")
    assert _started_as(model, config, knows_text=False).port == 8123


def test_a_server_is_started_for_the_largest_rank_of_the_adapters_layers():
    model = with_adapter(r=4, rank_pattern={"down_proj": 6})
    assert _started_as(model, VllmEngineConfig(), knows_text=False).max_lora_rank == 6


def test_a_rank_above_all_that_vllm_loads_is_named():
    model = with_adapter(r=513, rank_pattern={})
    with pytest.raises(ConfigError, match=r"the adapter's rank = 513: expected at most 512"):
        _started_as(model, VllmEngineConfig(), knows_text=False)
