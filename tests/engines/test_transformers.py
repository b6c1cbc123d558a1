import asyncio
import random
import subprocess
import sys

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from midcourse.engines import common_prefix
from midcourse.engines.base import SamplingParams
from midcourse.engines.common_prefix import attend
from midcourse.errors import ConfigError, EngineError, PromptTooLongError

VOCABULARY = 61  # of the models in conftest.py


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(VOCABULARY) for _ in range(source.randrange(1, 40))] for _ in range(count)]


def sample_all(engine, requests):
    async def ask():
        return await asyncio.gather(*(engine.sample(prompt, sampling) for prompt, sampling in requests))

    return asyncio.run(ask())


def mixed_requests(count: int):
    settings = [
        {"temperature": 0.7},
        {"temperature": 0.0},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 5, "stop_ids": (3, 4, 5, 6)},
    ]
    return [
        (prompt, SamplingParams(max_tokens=3 + index % 11, seed=index, **settings[index % 4]))
        for index, prompt in enumerate(prompts(count))
    ]


def build(name: str, tiny_qwen3, sharpen) -> torch.nn.Module:
    if name == "qwen3":
        return tiny_qwen3()
    if name == "qwen3_tied_with_bias":
        return tiny_qwen3(tie_word_embeddings=True, attention_bias=True)
    sizes = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        return sharpen(GPT2LMHeadModel(GPT2Config(**sizes, n_embd=32, n_layer=2, n_head=4, n_positions=128)))
    llama = LlamaConfig(
        **sizes,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return sharpen(LlamaForCausalLM(llama))


@pytest.mark.parametrize("name", ["qwen3", "qwen3_tied_with_bias", "llama", "gpt2"])
def test_sampled_logprobs_and_entropies_are_those_of_one_full_forward(
    name, make_engine, tiny_qwen3, sharpen, full_logprobs
):
    model = build(name, tiny_qwen3, sharpen)
    requests = mixed_requests(12)
    for (prompt, sampling), completion in zip(
        requests, sample_all(make_engine(model, max_batch_rows=5), requests), strict=True
    ):
        expected = full_logprobs(model, prompt, completion.token_ids, sampling.temperature or 1.0)
        chosen = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(completion.logprobs), chosen, atol=1e-5)
        entropies = -(expected.exp() * expected).sum(dim=-1)
        assert torch.allclose(torch.tensor(completion.entropies), entropies, atol=1e-5)
        if sampling.temperature == 0:
            assert completion.token_ids == expected.argmax(dim=-1).tolist()
        if sampling.top_k:
            assert all(
                (row > row[token]).sum() < sampling.top_k
                for row, token in zip(expected, completion.token_ids, strict=True)
            )


def test_a_completion_ends_with_its_stop_token_or_at_its_length(make_engine):
    requests = [
        (prompt, SamplingParams(max_tokens=20, seed=i, stop_ids=range(10))) for i, prompt in enumerate(prompts(12))
    ]
    completions = sample_all(make_engine(), requests)
    assert {completion.finish_reason for completion in completions} >= {"stop"}
    for completion in completions:
        assert not set(completion.token_ids[:-1]) & set(range(10))
        assert (completion.finish_reason == "stop") == (completion.token_ids[-1] in range(10))
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 20


def test_a_requests_tokens_do_not_depend_on_who_shares_its_batch(make_engine):
    requests = mixed_requests(16)
    together = sample_all(make_engine(max_batch_rows=6), requests)
    alone = [sample_all(make_engine(), [request])[0] for request in requests]
    assert [completion.token_ids for completion in together] == [completion.token_ids for completion in alone]


def test_draws_follow_the_distribution(make_engine, model, full_logprobs):
    prompt = [5, 9, 2]
    requests = [(prompt, SamplingParams(max_tokens=1, seed=seed)) for seed in range(2000)]
    counts = torch.zeros(VOCABULARY)
    for completion in sample_all(make_engine(max_batch_rows=500), requests):
        counts[completion.token_ids[0]] += 1
    expected = full_logprobs(model, prompt, [0])[0].exp() * 2000
    assert (counts - expected).pow(2).div(expected.clamp(min=1.0)).sum() < 110  # chi-square, 60 degrees, p < 1e-4


def test_reused_prefixes_change_no_token_and_are_counted(make_engine):
    engine, fresh = make_engine(), make_engine(prefix_cache_tokens=0)
    history = prompts(1)[0][:9] + list(range(20))
    for turn in range(3):
        sampling = SamplingParams(max_tokens=8, seed=turn)
        cached, plain = (sample_all(item, [(history, sampling)])[0] for item in (engine, fresh))
        assert cached.token_ids == plain.token_ids
        assert torch.allclose(torch.tensor(cached.logprobs), torch.tensor(plain.logprobs), atol=1e-5)
        history = [*history, *cached.token_ids, 7, 8]
    assert fresh.usage().prompt_tokens_reused == 0
    assert engine.usage().prompt_tokens == fresh.usage().prompt_tokens == 29 + 39 + 49
    # All but what the environment added and the last token drawn, which was never fed.
    assert engine.usage().prompt_tokens_reused == (39 - 3) + (49 - 3)
    assert engine.usage().computed_tokens == (29 + 7) + (3 + 7) + (3 + 7)
    assert fresh.usage().computed_tokens == (29 + 7) + (39 + 7) + (49 + 7)
    assert engine.usage().generated_tokens == 24


def test_one_prompt_asked_many_times_in_a_batch_is_computed_once(make_engine):
    engine = make_engine(prefix_cache_tokens=0)
    prompt = list(range(30))
    completions = sample_all(engine, [(prompt, SamplingParams(max_tokens=6, seed=seed)) for seed in range(5)])
    assert engine.usage().prompt_tokens - engine.usage().prompt_tokens_reused == 30
    assert len({tuple(completion.token_ids) for completion in completions}) > 1


def test_prompts_of_one_batch_that_begin_alike_share_their_beginning(make_engine, model, full_logprobs):
    engine = make_engine(prefix_cache_tokens=0)
    beginning = list(range(20))
    requests = [([*beginning, *end], SamplingParams(max_tokens=5, seed=3)) for end in ([40, 41], [40, 42, 43], [50])]
    for (prompt, sampling), completion in zip(requests, sample_all(engine, requests), strict=True):
        assert completion.token_ids == sample_all(make_engine(), [(prompt, sampling)])[0].token_ids
        expected = full_logprobs(model, prompt, completion.token_ids)
        chosen = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(completion.logprobs), chosen, atol=1e-5)
    assert engine.usage().computed_tokens == 20 + 2 + 2 + 1 + 3 * 4  # of five tokens drawn four are fed


def test_a_long_beginning_that_rows_share_is_read_once_and_changes_no_token(
    make_engine, model, full_logprobs, monkeypatch
):
    source = random.Random(5)
    monkeypatch.setattr(common_prefix, "MIN_TOKENS", 24)  # the test model's context is short
    beginning = [source.randrange(VOCABULARY) for _ in range(40)]
    lengths = (3, 14, 7, 14, 3, 9)  # rows that end early leave gaps that others fill
    requests = [
        ([*beginning, *range(index)], SamplingParams(max_tokens=length, seed=index, temperature=0.8))
        for index, length in enumerate(lengths)
    ]
    seen = []

    def spy(*arguments):
        seen.append(arguments[-1])
        return attend(*arguments)

    monkeypatch.setattr(common_prefix, "attend", spy)
    for (prompt, _), completion in zip(requests, sample_all(make_engine(), requests), strict=True):
        expected = full_logprobs(model, prompt, completion.token_ids, temperature=0.8)
        chosen = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(completion.logprobs), chosen, atol=1e-5)
    assert len(beginning) in seen
    shared = len(seen)
    for request, together in zip(requests, sample_all(make_engine(), requests), strict=True):
        assert sample_all(make_engine(), [request])[0].token_ids == together.token_ids
    assert len(seen) == 2 * shared  # alone, nothing is shared


@pytest.mark.parametrize("cut", range(9))
def test_going_on_from_any_token_that_was_drawn_computes_nothing_before_it(cut, make_engine, model, full_logprobs):
    engine = make_engine()
    prompt = list(range(13))
    drawn = sample_all(engine, [(prompt, SamplingParams(max_tokens=10, seed=1))])[0].token_ids
    stands, sampling = [*prompt, *drawn[:cut]], SamplingParams(max_tokens=6, seed=2)
    again = sample_all(engine, [(stands, sampling)])[0]
    assert engine.usage().computed_tokens == 13 + 9 + 5
    expected = full_logprobs(model, stands, again.token_ids).gather(1, torch.tensor(again.token_ids)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(again.logprobs), expected, atol=1e-5)


def test_a_splice_that_is_scored_and_gone_on_from_at_once_is_computed_once(make_engine, model, full_logprobs):
    engine = make_engine()
    prompt, spliced, sampling = list(range(13)), [7, 8, 9], SamplingParams(max_tokens=6, seed=2)
    drawn = sample_all(engine, [(prompt, SamplingParams(max_tokens=10, seed=1))])[0].token_ids
    stands = [*prompt, *drawn[:5]]

    async def both():
        return await asyncio.gather(engine.sample([*stands, *spliced], sampling), engine.score(stands, spliced))

    completion, scores = asyncio.run(both())
    assert engine.usage().computed_tokens == (13 + 9) + 3 + 5
    tokens = [*spliced, *completion.token_ids]
    expected = full_logprobs(model, stands, tokens).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert torch.allclose(torch.tensor([*scores.logprobs, *completion.logprobs]), expected, atol=1e-5)


def test_scores_and_hidden_states_are_those_of_a_full_forward(make_engine, model, full_logprobs):
    engine = make_engine(max_batch_rows=3)
    pairs = [(prompt, prompts(5, seed=1)[index]) for index, prompt in enumerate(prompts(5))]

    async def ask():
        return await asyncio.gather(
            *(engine.score(prompt, tokens, temperature=0.8, want_hidden=True) for prompt, tokens in pairs * 2)
        )

    for (prompt, tokens), scores in zip(pairs * 2, asyncio.run(ask()), strict=True):
        expected = full_logprobs(model, prompt, tokens, 0.8).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(scores.logprobs), expected, atol=1e-5)
        assert scores.hidden.shape == (len(tokens), 32)
        logits = torch.nn.Linear(32, 1)(scores.hidden)  # an ordinary tensor: a head on it can learn
        logits.sum().backward()
    assert engine.usage().scored_tokens == 2 * sum(len(tokens) for _, tokens in pairs)


def test_scoring_a_sample_gives_its_logprobs_back(make_engine):
    engine = make_engine()
    completion = sample_all(engine, [([4, 5, 6], SamplingParams(max_tokens=12, temperature=0.8, seed=3))])[0]
    scores = asyncio.run(engine.score([4, 5, 6], completion.token_ids, temperature=0.8))
    assert torch.allclose(torch.tensor(scores.logprobs), torch.tensor(completion.logprobs), atol=1e-5)


def test_scoring_what_was_sampled_or_scored_computes_nothing(make_engine):
    engine = make_engine()
    completion = sample_all(engine, [([4, 5, 6], SamplingParams(max_tokens=12, seed=3))])[0]
    cold, warm = (
        asyncio.run(engine.score([4, 5, 6], completion.token_ids[:-1], temperature=temperature, want_hidden=True))
        for temperature in (1.0, 0.5)
    )
    assert engine.usage().computed_tokens == 3 + 11
    assert cold.logprobs == pytest.approx(completion.logprobs[:-1], abs=1e-6)
    assert warm.logprobs != cold.logprobs
    assert torch.equal(warm.hidden, cold.hidden)
    fresh = asyncio.run(make_engine().score([4, 5, 6], completion.token_ids[:-1], want_hidden=True))
    assert torch.allclose(fresh.hidden, cold.hidden, atol=1e-5)


def test_one_continuation_scored_many_times_at_once_is_computed_once(make_engine):
    engine = make_engine(prefix_cache_tokens=0)

    async def ask():
        return await asyncio.gather(*(engine.score([4, 5, 6], tokens) for tokens in ([7, 8], [7, 8], [7, 9], [7, 8])))

    scores = asyncio.run(ask())
    assert engine.usage().computed_tokens == 3 + 2 + 1
    assert engine.usage().prompt_tokens_reused == 3 * 3
    assert scores[0] == scores[1] == scores[3]
    alone = asyncio.run(make_engine().score([4, 5, 6], [7, 9]))
    assert scores[2].logprobs == pytest.approx(alone.logprobs, abs=1e-5)


@pytest.mark.parametrize("capacity", [0, 7, 40, 150])
def test_a_small_cache_changes_no_token(capacity, make_engine):
    histories = [[*range(9)], [*range(9), 3], [*range(5), 50, 51], [60, 1]]
    small, large = make_engine(prefix_cache_tokens=capacity, max_batch_rows=3), make_engine()
    for turn in range(4):
        requests = [(history, SamplingParams(max_tokens=7, seed=turn)) for history in histories]
        answers, expected = sample_all(small, requests), sample_all(large, requests)
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
        for answer, other in zip(answers, expected, strict=True):
            assert answer.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        histories = [[*h, *a.token_ids[: 3 + turn], 20 + turn] for h, a in zip(histories, answers, strict=True)]


def test_a_weight_update_drops_prefixes_and_changes_the_answer(make_engine, model):
    engine = make_engine()
    prompt = list(range(25))
    sampling = SamplingParams(max_tokens=10, temperature=0.0)
    before = sample_all(engine, [(prompt, sampling)])[0]
    changed = {name: torch.randn_like(value) * 0.3 for name, value in model.state_dict().items()}
    asyncio.run(engine.update_weights(changed, 4))
    after = sample_all(engine, [(prompt, sampling)])[0]
    assert (before.policy_version, after.policy_version) == (0, 4)
    assert after.token_ids == sample_all(make_engine(), [(prompt, sampling)])[0].token_ids != before.token_ids
    assert engine.usage().prompt_tokens_reused == 0
    with pytest.raises(EngineError, match="do not fit"):
        asyncio.run(engine.update_weights({"nothing": torch.zeros(1)}, 5))
    assert engine.version == 4


@pytest.mark.parametrize("way", ["optimizer step", "loaded weights"])
def test_samples_and_scores_come_from_the_weights_after_an_update(way, make_engine, model, full_logprobs):
    engine = make_engine()
    prompt, sampling = list(range(25)), SamplingParams(max_tokens=10, seed=2)
    before = sample_all(engine, [(prompt, sampling)])[0]
    if way == "optimizer step":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)  # writes into the shared weights
        tokens = torch.tensor([prompt])
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        asyncio.run(engine.update_weights(None, 1))
    else:
        changed = {name: value + 0.05 * torch.randn_like(value) for name, value in model.state_dict().items()}
        asyncio.run(engine.update_weights(changed, 1))
    after = sample_all(engine, [(prompt, sampling)])[0]
    scores = asyncio.run(engine.score(prompt, before.token_ids))
    for token_ids, logprobs in ((after.token_ids, after.logprobs), (before.token_ids, scores.logprobs)):
        expected = full_logprobs(model, prompt, token_ids).gather(1, torch.tensor(token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(logprobs), expected, atol=1e-5)
    assert not torch.allclose(torch.tensor(scores.logprobs), torch.tensor(before.logprobs), atol=1e-2)


class LowRank(torch.nn.Module):
    """What an adapter puts in a projection's place."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.base(states) + self.up(self.down(states))


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
def test_a_projection_that_was_replaced_is_used(name, make_engine, model, full_logprobs):
    engine = make_engine()
    prompt, sampling = list(range(12)), SamplingParams(max_tokens=6, seed=1)
    before = sample_all(engine, [(prompt, sampling)])[0]
    for layer in model.model.layers:
        owner = layer.self_attn if hasattr(layer.self_attn, name) else layer.mlp
        setattr(owner, name, LowRank(getattr(owner, name)))
    asyncio.run(engine.update_weights(None, 1))
    after = sample_all(engine, [(prompt, sampling)])[0]
    expected = full_logprobs(model, prompt, after.token_ids).gather(1, torch.tensor(after.token_ids)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(after.logprobs), expected, atol=1e-5)
    assert after.logprobs != before.logprobs


def test_half_precision_is_near_a_full_forward(make_engine, tiny_qwen3, full_logprobs):
    model = tiny_qwen3().to(torch.bfloat16)
    requests = [(prompt, SamplingParams(max_tokens=8, seed=seed)) for seed, prompt in enumerate(prompts(6))]
    for (prompt, _), completion in zip(requests, sample_all(make_engine(model), requests), strict=True):
        expected = full_logprobs(model, prompt, completion.token_ids).float()
        chosen = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(completion.logprobs), chosen, atol=0.1)


def test_sampling_leaves_the_training_mode_and_ignores_dropout(make_engine, tiny_qwen3, full_logprobs):
    model = tiny_qwen3(attention_dropout=0.5).train()
    engine = make_engine(model)
    completion = sample_all(engine, [([1, 2, 3], SamplingParams(max_tokens=5, seed=1))])[0]
    assert model.training
    expected = full_logprobs(model.eval(), [1, 2, 3], completion.token_ids)
    chosen = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(completion.logprobs), chosen, atol=1e-5)


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], {"max_tokens": 1}, "prompt must have at least one"),
        ([VOCABULARY], {"max_tokens": 1}, f"prompt token {VOCABULARY} is outside"),
        ([1], {"max_tokens": 1, "stop_ids": (-1,)}, "stop id -1 is outside"),
    ],
)
def test_a_request_that_cannot_be_run_says_why(make_engine, prompt, sampling, message):
    with pytest.raises(EngineError, match=message):
        sample_all(make_engine(), [(prompt, SamplingParams(**sampling))])


def test_a_prompt_over_the_context_names_the_numbers(make_engine):
    engine = make_engine(context_length=16)
    with pytest.raises(PromptTooLongError, match=r"10 tokens .* 7 = 17: over the context of 16"):
        sample_all(engine, [([1] * 10, SamplingParams(max_tokens=7))])
    assert len(sample_all(engine, [([1] * 10, SamplingParams(max_tokens=6))])[0].token_ids) == 6
    with pytest.raises(EngineError, match="continuation must have at least one"):
        asyncio.run(engine.score([1], []))


def test_a_context_longer_than_the_models_is_refused(make_engine):
    with pytest.raises(ConfigError, match="over the model's 128"):
        make_engine(context_length=500)


def test_a_model_that_names_no_longest_context_needs_one_set(make_engine):
    model = BloomForCausalLM(BloomConfig(vocab_size=23, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(ConfigError, match="names no longest context"):
        make_engine(model)
    assert make_engine(model, context_length=32).context_length == 32


def test_a_batch_that_fails_fails_its_requests_and_no_later_one(make_engine, model):
    engine = make_engine()
    weight = model.model.norm.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="not finite"):
        sample_all(engine, [([1, 2], SamplingParams(max_tokens=3))])
    with torch.no_grad():
        weight.copy_(kept)
    assert len(sample_all(engine, [([1, 2], SamplingParams(max_tokens=3))])[0].token_ids) == 3


def test_closing_fails_what_is_pending_and_what_comes(make_engine):
    async def close_while_waiting():
        engine = make_engine()
        task = asyncio.create_task(engine.sample([1], SamplingParams(max_tokens=1)))
        with engine.participant():  # never asks, so the batch does not start
            await asyncio.sleep(0.01)
            assert not task.done()
            await engine.close()
            with pytest.raises(EngineError, match="closed while"):
                await task
        with pytest.raises(EngineError, match="is closed"):
            await engine.sample([1], SamplingParams(max_tokens=1))

    asyncio.run(close_while_waiting())


def test_the_configs_need_no_torch():
    code = "import sys, midcourse.engines.transformers, midcourse.engines.openai; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
