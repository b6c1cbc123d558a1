"""Models whose layers see a window of what is before a token: alternating with layers that see all, or everywhere."""

import asyncio
import random

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Llama4TextConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)

from midcourse.engines.base import SamplingParams
from midcourse.engines.forward import ModuleForward, forward_for
from midcourse.engines.windows import FULL, MASKED, SLIDING, layer_windows, visible
from midcourse.errors import ConfigError

VOCABULARY, WINDOW = 61, 16
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MIXED = [SLIDING, FULL, SLIDING]


def config_of(name: str):
    if name == "gemma3":  # rotary bases of 10 000 in layers with a window, of 1 000 000 in the others
        return Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=WINDOW, layer_types=MIXED)
    if name == "qwen2":
        return Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=WINDOW, layer_types=MIXED)
    if name == "qwen3":
        return Qwen3Config(**SIZES, head_dim=8, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=0)
    if name == "mixtral":
        return MixtralConfig(**SIZES, sliding_window=WINDOW, num_local_experts=3)
    return MistralConfig(**SIZES, head_dim=8, sliding_window=WINDOW)


@pytest.fixture(params=["gemma3", "qwen2", "qwen3", "mistral", "mixtral"])
def windowed(request, sharpen) -> torch.nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return sharpen(AutoModelForCausalLM.from_config(config_of(request.param)))


def tokens(count: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(count)]


def ask(*requests):
    async def all_of_them():
        return await asyncio.gather(*requests)

    return asyncio.run(all_of_them())


def chosen(full_logprobs, model, prompt, token_ids) -> torch.Tensor:
    return full_logprobs(model, prompt, token_ids).gather(1, torch.tensor(token_ids)[:, None])[:, 0]


def check(full_logprobs, model, prompt, token_ids, logprobs) -> None:
    assert torch.allclose(torch.tensor(logprobs), chosen(full_logprobs, model, prompt, token_ids), rtol=0, atol=1e-5)


def test_a_window_of_two_hides_all_but_a_token_and_the_one_before_it():
    mask = visible(torch.tensor([[0, 1, 3]]), 4, torch.float32, window=2)[0, 0]
    seen = [[True, False, False, False], [True, True, False, False], [False, False, True, True]]
    assert mask.tolist() == torch.tensor(seen).logical_not().mul(MASKED).tolist()
    assert visible(torch.tensor([[3]]), 4, torch.float32)[0, 0].tolist() == [[0, 0, 0, 0]]


def test_samples_of_prompts_longer_than_the_window_are_those_of_one_full_forward(make_engine, windowed, full_logprobs):
    engine = make_engine(windowed, max_batch_rows=3)
    assert engine.context_length == 256
    prompts = [tokens(length, seed) for seed, length in enumerate((50, 73, 3, 61, 15))]
    sampling = [SamplingParams(max_tokens=20 + seed, seed=seed) for seed in range(5)]
    found = ask(*(engine.sample(prompt, item) for prompt, item in zip(prompts, sampling, strict=True)))
    for prompt, completion in zip(prompts, found, strict=True):
        check(full_logprobs, windowed, prompt, completion.token_ids, completion.logprobs)


def test_turns_and_branches_that_reuse_a_beginning_are_those_of_one_full_forward(make_engine, windowed, full_logprobs):
    engine = make_engine(windowed)
    prompt = tokens(55, seed=1)
    (drawn,) = ask(engine.sample(prompt, SamplingParams(max_tokens=30, seed=1)))
    computed = engine.usage().computed_tokens
    assert computed == 55 + 29
    # Branches from tokens within the completion, more than a window behind its end and nearer; and another turn.
    stands = [[*prompt, *drawn.token_ids[:cut]] for cut in (2, 11, 29)] + [[*prompt, *drawn.token_ids, 5, 6]]
    found = ask(*(engine.sample(stand, SamplingParams(max_tokens=9, seed=2)) for stand in stands))
    for stand, completion in zip(stands, found, strict=True):
        check(full_logprobs, windowed, stand, completion.token_ids, completion.logprobs)
    assert engine.usage().computed_tokens - computed == 3 * 8 + (3 + 8)


def test_scores_and_hidden_states_are_those_of_one_full_forward(make_engine, windowed, full_logprobs):
    engine = make_engine(windowed)
    prompt, continuations = tokens(52, seed=3), [tokens(30, seed=4), tokens(7, seed=5)]
    found = ask(*(engine.score(prompt, continuation, want_hidden=True) for continuation in continuations))
    for continuation, scores in zip(continuations, found, strict=True):
        check(full_logprobs, windowed, prompt, continuation, scores.logprobs)
        with torch.no_grad():
            states = windowed.base_model(torch.tensor([[*prompt, *continuation]])).last_hidden_state[0, 51:-1]
        assert torch.allclose(scores.hidden, states, rtol=0, atol=1e-5)


def test_the_layers_of_one_model_differ_in_what_they_see():
    model = AutoModelForCausalLM.from_config(config_of("gemma3"))
    assert layer_windows(model) == {FULL: None, SLIDING: WINDOW}
    assert isinstance(forward_for(model, context_length=64), ModuleForward)
    assert model.config.sliding_window == WINDOW  # as before the masks were compared
    assert layer_windows(AutoModelForCausalLM.from_config(config_of("mistral"))) == {SLIDING: WINDOW}


def test_a_model_that_attends_otherwise_than_its_config_says_is_refused(make_engine):
    model = AutoModelForCausalLM.from_config(config_of("mistral"))

    def see_all(_, positional, settings):  # the model's own masks ignore the window
        if settings.get("attention_mask") is None:
            num_tokens = settings["input_ids"].shape[1]
            settings["attention_mask"] = visible(torch.arange(num_tokens)[None], num_tokens, torch.float32)
        return positional, settings

    model.model.register_forward_pre_hook(see_all, with_kwargs=True)
    with pytest.raises(ConfigError, match="does not attend as its layer_types and sliding_window say"):
        make_engine(model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            Qwen3NextConfig(**SIZES, head_dim=8, layer_types=["linear_attention", FULL, FULL], num_experts=2),
            "runs layers of full_attention and sliding_attention: .* has linear_attention",
        ),
        (
            Llama4TextConfig(
                **SIZES, head_dim=8, layer_types=["chunked_attention", FULL, FULL], num_local_experts=2, moe_layers=[]
            ),
            "has chunked_attention",
        ),
        (
            Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=WINDOW, use_bidirectional_attention=True),
            "see nothing after them",
        ),
        (MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4), "keys and values"),
        (
            Gemma3nTextConfig(
                **SIZES | {"num_hidden_layers": 4},
                head_dim=8,
                sliding_window=WINDOW,
                layer_types=[SLIDING, FULL] * 2,
                num_kv_shared_layers=2,
                hidden_size_per_layer_input=8,
                vocab_size_per_layer_input=VOCABULARY,
                activation_sparsity_pattern=[0.0] * 4,
                laurel_rank=4,
            ),
            "keep no keys and values",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_run_is_refused_with_the_reason(settings, message, make_engine):
    with pytest.raises(ConfigError, match=message):
        make_engine(AutoModelForCausalLM.from_config(settings), context_length=64)
