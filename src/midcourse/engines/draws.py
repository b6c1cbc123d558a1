"""Which token comes next. Letters: R rows, V vocabulary.

Token i's uniform number is word i of a counter-based generator keyed by the request's seed, so a draw depends on
(seed, i) alone and on nobody else in the batch. The token is where the cumulative distribution, in vocabulary order
and float64, passes that number.
"""

import numpy
import torch
from torch import Tensor

SEED_MASK = (1 << 128) - 1  # the generator's key size


def uniforms(seed: int, count: int) -> Tensor:
    """Return [count] float64 in [0, 1); the first n are the same for every count >= n."""
    words = numpy.random.Philox(key=seed & SEED_MASK).random_raw(count)
    return torch.from_numpy((words >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53)


def entropy(logprobs_RV: Tensor, probabilities_RV: Tensor) -> Tensor:
    """Return [R] the entropy of each row, nats."""
    # A token of probability 0 adds 0, not 0 * -inf.
    finite_RV = logprobs_RV.clamp(min=torch.finfo(logprobs_RV.dtype).min)
    return -(probabilities_RV * finite_RV).sum(dim=-1)


def truncate(probabilities_RV: Tensor, top_p_R: Tensor, top_k_R: Tensor) -> Tensor:
    """Return the probabilities with all but each row's nucleus and its k most likely tokens set to 0.

    Args:
        probabilities_RV: [R, V] rows that sum to 1.
        top_p_R: [R] in (0, 1]; the token that crosses the mass stays.
        top_k_R: [R] at least 1; V or more is off. Ties go to the smaller token id.
    """
    ordered_RV, order_RV = probabilities_RV.sort(dim=-1, descending=True, stable=True)
    ranks_V = torch.arange(ordered_RV.shape[1], device=ordered_RV.device)
    before_RV = ordered_RV.cumsum(dim=-1) - ordered_RV
    kept_RV = ((before_RV < top_p_R[:, None]) | (top_p_R[:, None] >= 1)) & (ranks_V < top_k_R[:, None])
    kept_RV[:, 0] = True
    return torch.zeros_like(probabilities_RV).scatter_(1, order_RV, ordered_RV * kept_RV)


def draw(probabilities_RV: Tensor, uniforms_R: Tensor) -> Tensor:
    """Return [R] token ids by inverse CDF. A token of probability 0 is never drawn.

    Args:
        probabilities_RV: [R, V] rows need not sum to 1.
        uniforms_R: [R] float64 as `uniforms` gives them.
    """
    cumulative_RV = probabilities_RV.cumsum(dim=-1, dtype=torch.float64)
    # Below the whole sum, even rounded: the largest uniform number is 1 - 2^-53. So a token lies behind the target.
    target_R1 = (uniforms_R * cumulative_RV[:, -1])[:, None]
    token_R = torch.searchsorted(cumulative_RV, target_R1, right=True)[:, 0]
    return token_R.clamp_(max=probabilities_RV.shape[1] - 1)  # a row of NaN: an id that exists, found out later
