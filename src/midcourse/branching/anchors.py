"""Where a rollout may be branched: before turns whose first tokens are uncertain (RAIL, B.3.4 and D.3).

The paper's: candidate anchors come from normalised token entropy, which proposes and never decides. Ours: anchors are
turn boundaries, the score is over a turn's first 20 tokens, and the shadow phase takes the four best of the pool.
"""

import math
from collections.abc import Sequence

ANCHOR_TOKENS = 20
"""Tokens at a turn's start whose entropy says how uncertain it is to begin there."""
SHADOW_ANCHORS = 4
"""Anchors of one pool that the shadow phase tries."""


def normalized_entropy(token_entropies: Sequence[float], vocabulary_size: int) -> float:
    """Return the mean entropy over log(vocabulary), so that 1 is a uniform choice; 0 where there is no token.

    Args:
        token_entropies: [N] nats, of the distributions that the tokens were drawn from.
        vocabulary_size: tokens that could be drawn.

    Raises:
        ValueError: an entropy that is negative or not finite, or a vocabulary of fewer than two tokens.
    """
    if vocabulary_size < 2:
        raise ValueError(f"vocabulary_size must be at least 2: got {vocabulary_size}")
    if not all(math.isfinite(entropy) and entropy > -1e-6 for entropy in token_entropies):
        raise ValueError(f"entropies must be finite and at least 0: got {list(token_entropies)}")
    if not token_entropies:
        return 0.0
    # Entropies in float32 can be a hair under 0, or over the logarithm.
    return min(1.0, max(0.0, math.fsum(token_entropies) / len(token_entropies) / math.log(vocabulary_size)))


def anchor_entropy(turn_entropies: Sequence[float], vocabulary_size: int) -> float:
    """Return the normalised entropy of a turn's first ANCHOR_TOKENS tokens: the score of the anchor before it.

    Raises:
        ValueError: as `normalized_entropy`.
    """
    return normalized_entropy(turn_entropies[:ANCHOR_TOKENS], vocabulary_size)


def top_anchors(scores: Sequence[float], count: int = SHADOW_ANCHORS) -> list[int]:
    """Return the positions of the `count` greatest scores, greatest first; of equal ones the earlier."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:count]
