"""A real model of 270 M parameters in the embedded engine. Its windows are 512 tokens."""

import asyncio

import pytest
import torch

from midcourse.engines.base import SamplingParams
from midcourse.engines.transformers import TransformersEngineConfig
from midcourse.training.policy import token_logprobs

pytestmark = pytest.mark.gemma

# Facts enough for more than one window.
LONG = "The rivers of the north run to the sea, and in winter they freeze. " * 38


@pytest.fixture
def engine(gemma):
    return TransformersEngineConfig(context_length=1024).build(gemma.model)


def ids_of(gemma, text: str) -> list[int]:
    return gemma.tokenizer.encode(text)  # begins with <bos>, without which the model is lost


def full_logprobs(gemma, prompt, token_ids, temperature=1.0) -> torch.Tensor:
    row = [*prompt, *token_ids]
    wanted = [False] * len(prompt) + [True] * len(token_ids)
    with torch.no_grad():
        found = token_logprobs(gemma.model, [row], wanted=[wanted], temperatures=[temperature], chunk_tokens=64)
    return found.logprobs_BT[0, len(prompt) :]


def test_greedy_text_is_sensible(gemma, engine):
    prompt = ids_of(gemma, "The capital of France is")
    assert prompt[0] == gemma.tokenizer.bos_token_id
    found = asyncio.run(engine.sample(prompt, SamplingParams(max_tokens=16, temperature=0.0)))
    text = gemma.tokenizer.decode(found.token_ids)
    assert text.startswith(" the capital of the country of France")


@pytest.mark.parametrize("text", ["Once upon a time", LONG])
def test_sampled_log_probabilities_and_states_are_those_of_a_full_forward(text, gemma, engine):
    prompt = ids_of(gemma, text)
    assert (len(prompt) > 512) == (text is LONG)

    async def branch_and_score():
        root = await engine.sample(prompt, SamplingParams(max_tokens=8, temperature=0.8, seed=1))
        stand = [*prompt, *root.token_ids[:3]]
        branch = await engine.sample(stand, SamplingParams(max_tokens=5, temperature=0.8, seed=2))
        scores = await engine.score(prompt, root.token_ids, temperature=0.8, want_hidden=True)
        return root, stand, branch, scores

    root, stand, branch, scores = asyncio.run(branch_and_score())
    expected = full_logprobs(gemma, prompt, root.token_ids, 0.8)
    assert torch.allclose(torch.tensor(root.logprobs), expected, rtol=0, atol=1e-3)
    assert torch.allclose(torch.tensor(scores.logprobs), expected, rtol=0, atol=1e-3)
    expected = full_logprobs(gemma, stand, branch.token_ids, 0.8)
    assert torch.allclose(torch.tensor(branch.logprobs), expected, rtol=0, atol=1e-3)
    # The branch begins where the root has been: only what is behind that is computed.
    assert engine.usage().computed_tokens <= len(prompt) + 8 + 5 + 1
    with torch.no_grad():
        hidden = gemma.model.base_model(torch.tensor([[*prompt, *root.token_ids]])).last_hidden_state
    wanted = hidden[0, len(prompt) - 1 : -1]
    assert torch.allclose(scores.hidden, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
