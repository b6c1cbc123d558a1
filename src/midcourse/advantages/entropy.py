"""More weight for tokens that the policy was uncertain of: AEPO's entropy-aware advantage (arXiv:2510.14545).

Letters: G rows, T tokens of a row.

The paper's: A_t = A (1 + a z_t), z_t the entropy of token t less the mean over all trained tokens of the update, over
their deviation; the authors' code: a 0.2. The factor is given here as a weight on the token's loss: where it is not
negative, weight * min(rho A, clip(rho) A) = min(rho A_t, clip(rho) A_t), so nothing else is needed.

Differs from the paper: a factor below 0 (an entropy 5 deviations under the mean) is 0, since it would turn the
advantage's sign. Differs from the code: entropies are those of the draws, not of the policy in training; the mean is
over the whole update, not over a micro-batch; the deviation is the population's.
"""

import math
from collections.abc import Sequence

ENTROPY_SHARE = 0.2
"""a: how much one deviation of entropy adds to a token's advantage."""


def entropy_weights(entropies: Sequence[Sequence[float]], *, share: float = ENTROPY_SHARE) -> list[list[float]]:
    """Return [G][T] the factor 1 + a z of each token; exactly 1 where all entropies are equal.

    Args:
        entropies: [G][T] nats, of the trained tokens of all rows of one update.
        share: a, >= 0.

    Raises:
        ValueError: an entropy that is not finite, or a negative share.
    """
    values = [entropy for row in entropies for entropy in row]
    if not all(math.isfinite(entropy) for entropy in values):
        raise ValueError(f"entropies must be finite: got {values}")
    if share < 0:
        raise ValueError(f"share must be at least 0: got {share}")
    if not values or min(values) == max(values):
        return [[1.0] * len(row) for row in entropies]
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((entropy - mean) ** 2 for entropy in values) / len(values))
    return [[max(0.0, 1.0 + share * (entropy - mean) / deviation) for entropy in row] for row in entropies]
