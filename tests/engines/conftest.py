import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from midcourse.engines.transformers import TransformersEngine, TransformersEngineConfig

VOCABULARY = 61


def _tiny_qwen3(**changes) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
    }
    return _sharpen(Qwen3ForCausalLM(Qwen3Config(**(sizes | changes))))


def _sharpen(model: torch.nn.Module) -> torch.nn.Module:
    """Move the weights off their near-uniform start, so that a wrong position or mask shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model.eval()


def _full_logprobs(model: torch.nn.Module, prompt_ids, token_ids, temperature: float = 1.0) -> torch.Tensor:
    """[N, V] of one forward over everything."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt_ids, *token_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return (logits / temperature).log_softmax(dim=-1)


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    torch.set_num_threads(1)
    return _tiny_qwen3()


@pytest.fixture
def make_engine(model):
    def make(used_model=model, **settings) -> TransformersEngine:
        return TransformersEngine(used_model, config=TransformersEngineConfig(**settings))

    return make


@pytest.fixture
def tiny_qwen3():
    return _tiny_qwen3


@pytest.fixture
def sharpen():
    return _sharpen


@pytest.fixture
def full_logprobs():
    return _full_logprobs
