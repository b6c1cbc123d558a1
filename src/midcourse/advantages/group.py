"""Reward minus group mean, over group standard deviation (GRPO, RTI Eq. 1). Letters: G members of one group."""

import math
from collections.abc import Sequence


def group_advantages(
    rewards: Sequence[float | None],
    *,
    std_ddof: int = 0,
    epsilon: float = 1e-6,
    normalize: bool = True,
) -> list[float | None]:
    """Return [G] how far each reward lies above the mean of its group, in standard deviations (RTI Eq. 1).

    Differs from the paper: `epsilon` in the denominator; a group whose scored members all have the same reward, one
    of a single scored member included, gets exactly 0. Sums are exact, so that the order of members changes no bit.

    Args:
        rewards: [G] task units, G >= 1; None where the member could not be scored. Such a member stays None and
            moves neither mean nor deviation.
        std_ddof: 0 divides the squared deviations by the number of scored members (Eq. 1), 1 by one less (as TRL
            and verl do).
        epsilon: reward units, added to the deviation; >= 0.
        normalize: False leaves out the division (Dr. GRPO, arXiv:2503.20783).

    Raises:
        ValueError: the group is empty, a reward is not finite, or `std_ddof` is neither 0 nor 1.
    """
    if not rewards:
        raise ValueError("a group must have at least one member")
    if std_ddof not in (0, 1):
        raise ValueError(f"std_ddof must be 0 or 1: got {std_ddof}")
    scored = [float(reward) for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in scored):
        raise ValueError(f"rewards must be finite: got {list(rewards)}")
    if not scored or min(scored) == max(scored):
        return [None if reward is None else 0.0 for reward in rewards]
    mean = math.fsum(scored) / len(scored)
    scale = 1.0
    if normalize:
        scale = math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / (len(scored) - std_ddof)) + epsilon
    return [None if reward is None else (float(reward) - mean) / scale for reward in rewards]
