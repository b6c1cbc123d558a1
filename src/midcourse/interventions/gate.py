"""Perplexity gate: is a correction still something that the policy would say? (RTI Eq. 3-4). Letters: N tokens."""

import math
from collections.abc import Sequence


def perplexity(logprobs: Sequence[float]) -> float:
    """Return exp of the mean negative log-probability (RTI Eq. 3), at least 1; inf where it exceeds a float.

    Args:
        logprobs: [N] nats at temperature 1, of the corrected turn under the rollout prompt, N >= 1, each <= 0.

    Raises:
        ValueError: there is no token, or a log-probability is NaN or positive.
    """
    if not logprobs:
        raise ValueError("perplexity needs at least one token")
    if any(math.isnan(logprob) or logprob > 1e-6 for logprob in logprobs):
        raise ValueError(f"log-probabilities must be at most 0: got {list(logprobs)}")
    try:
        return math.exp(max(0.0, -math.fsum(logprobs) / len(logprobs)))
    except OverflowError:
        return math.inf


def min_token_logprob(logprobs: Sequence[float]) -> float:
    """Return the least of [N] log-probabilities, nats: a low mean perplexity can hide one impossible token.

    Raises:
        ValueError: there is no token.
    """
    if not logprobs:
        raise ValueError("min_token_logprob needs at least one token")
    return min(logprobs)


def passes(ppl: float, delta: float) -> bool:
    """Return whether a correction of perplexity `ppl` is kept (RTI Eq. 4): delta 0 keeps none, inf keeps all."""
    return ppl <= delta
