import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from midcourse.engines.forward import ModuleForward, Qwen3Forward, buffer_for, forward_for


def _gpt2(sharpen) -> torch.nn.Module:
    return sharpen(GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=128)))


@pytest.mark.parametrize("kind", [Qwen3Forward, ModuleForward])
def test_the_wanted_tokens_states_are_those_of_the_whole_step(kind, model, sharpen):
    model = model if kind is Qwen3Forward else _gpt2(sharpen)
    forward = forward_for(model, context_length=64)
    assert type(forward) is kind
    token_ids_RT = torch.randint(0, 61, (3, 6), generator=torch.Generator().manual_seed(1))
    slots_RT = torch.tensor([[0], [4], [2]]) + torch.arange(6)  # rows continue sequences of 0, 4 and 2 tokens
    wanted_R = torch.tensor([5, 0, 3])
    results = []
    for wanted in (None, wanted_R):
        whole = buffer_for(model)
        whole.reserve(5, 12)
        whole.keys_values.normal_(generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            states = forward(whole.window(2), token_ids_RT, slots_RT, 10, wanted_R=wanted)
        results.append((states, whole.keys_values))
    (states_RTH, all_keys), (states_R1H, wanted_keys) = results
    assert torch.allclose(states_R1H[:, 0], states_RTH[torch.arange(3), wanted_R], atol=1e-5)
    assert torch.equal(all_keys, wanted_keys)


def test_only_the_new_tokens_places_are_written(model):
    buffer = buffer_for(model)
    buffer.reserve(4, 9)
    slots_RT = torch.tensor([[3, 4], [0, 1]])
    with torch.no_grad():
        forward_for(model, context_length=64)(buffer.window(1), torch.tensor([[7, 8], [9, 10]]), slots_RT, 5)
    written = buffer.keys_values.ne(0).all(dim=-1)  # [layers, 2, rows, heads, slots]
    expected = torch.zeros(4, 9, dtype=torch.bool)
    expected[1, 3:5] = expected[2, 0:2] = True
    assert torch.equal(written, expected[:, None].expand_as(written))
