"""Random weights in which one circuit is wired already: copy what stood after this word the last time.

Every skill of the nano policy rests on it (a name's coordinates among the answers, a coordinate among the thoughts).
Trained from noise it takes most of a warm start to appear: Olsson et al., "In-context Learning and Induction Heads"
(2022), describe the two heads and their late, sudden forming. Here they are written down and trained from there on.

Letters: V vocabulary, H hidden size, D head size, C code size (= D).
"""

import math
from typing import cast

import torch
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3DecoderLayer, Qwen3ForCausalLM

SHARPNESS = 1.8
"""Norm weights of queries and keys in the two layers: attention logits are up to 3.2 sqrt(D)."""
PREVIOUS_ENERGY = (0.45, 0.30, 0.25)
"""How the previous-token head spreads over the fastest rotary frequencies: one alone comes round again."""
CONSTANT = 4.0
"""Value of the one dimension that is the same in every token, for a head that looks at positions alone."""


@torch.no_grad()
def wire_induction(model: Qwen3ForCausalLM, *, generator: torch.Generator) -> None:
    """Write a previous-token head into layer 0 and an induction head into layer 1, in place.

    The hidden state gets three parts of C dimensions: a random code of the token, the code of the token before it
    (written by layer 0, head 0), and the code of the token that is expected next (written by layer 1, head 0, read by
    the output matrix). The last dimension is constant; what is left stays random.

    Args:
        model: at least two layers, H > 3 C, an output matrix of its own, plain rotary positions.
        generator: draws codes and the other dimensions of the embedding.

    Raises:
        ValueError: the model has no room for it.
    """
    config = model.config
    size, hidden = config.head_dim, config.hidden_size
    if config.num_hidden_layers < 2 or hidden <= 3 * size or config.tie_word_embeddings:
        raise ValueError(
            f"needs two layers, hidden size over three head sizes, an output matrix of its own; got "
            f"{config.num_hidden_layers} layers, {hidden} and {size}, tied={config.tie_word_embeddings}"
        )
    code, before, expected = (slice(part * size, (part + 1) * size) for part in range(3))
    codes_VC = torch.randn(config.vocab_size, size, generator=generator)
    embedding_VH, output_VH = model.model.embed_tokens.weight, model.lm_head.weight
    embedding_VH.normal_(0, 0.5, generator=generator)
    embedding_VH[:, code] = codes_VC
    embedding_VH[:, before] *= 0.04  # written by the heads: nearly empty at the start
    embedding_VH[:, expected] *= 0.04
    embedding_VH[:, -1] = CONSTANT
    output_VH.normal_(0, 0.02, generator=generator)
    output_VH[:, expected] = 0.2 * codes_VC

    first, second = (cast(Qwen3DecoderLayer, model.model.layers[index]).self_attn for index in (0, 1))
    query_D, key_D = previous_token_directions(model)
    _wire_head(first, hidden, reads=code, writes=before)
    first.q_proj.weight[:size, -1] = query_D
    first.k_proj.weight[:size, -1] = key_D

    # The slow half of the rotary frequencies: codes must match whatever the distance.
    mixing_DC = torch.randn(size, size, generator=generator) / math.sqrt(size)
    mixing_DC.view(2, 2, size // 4, size)[:, 0] = 0
    _wire_head(second, hidden, reads=code, writes=expected)
    second.q_proj.weight[:size, code] = mixing_DC
    second.k_proj.weight[:size, before] = mixing_DC


def previous_token_directions(model: Qwen3ForCausalLM) -> tuple[Tensor, Tensor]:
    """Return [D] query and [D] key whose product after rotation is greatest one position back."""
    half = model.config.head_dim // 2
    frequencies = model.model.rotary_emb.inv_freq
    query, key = torch.zeros(2 * half), torch.zeros(2 * half)
    for pair, energy in enumerate(PREVIOUS_ENERGY):
        angle = float(frequencies[pair])  # of one position
        query[pair] = math.sqrt(energy)
        key[pair], key[pair + half] = math.sqrt(energy) * math.cos(angle), math.sqrt(energy) * math.sin(angle)
    return query, key


def _wire_head(attention: Qwen3Attention, hidden: int, *, reads: slice, writes: slice) -> None:
    """Clear head 0's queries and keys, and let its values copy the dimensions `reads` to `writes`."""
    size = attention.head_dim
    attention.q_norm.weight.fill_(SHARPNESS)
    attention.k_norm.weight.fill_(SHARPNESS)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight[:size] = 0
    attention.v_proj.weight[:size, reads] = torch.eye(size)
    attention.o_proj.weight[:, :size] = 0
    attention.o_proj.weight[writes, :size] = torch.eye(size)
