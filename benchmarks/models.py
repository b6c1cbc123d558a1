"""The random model that benchmarks of speed run on: what it says does not matter, its shape does."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 512


def random_model(hidden_size: int) -> Qwen3ForCausalLM:
    """Return a Qwen3 of four layers, the same one for the same size."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()
