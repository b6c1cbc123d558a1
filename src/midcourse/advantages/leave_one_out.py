"""Reward minus the mean reward of the others (RLOO, arXiv:2402.14740, Sec. 3.3). Letters: G members of one group."""

from collections.abc import Sequence

from midcourse.advantages.group import group_advantages


def leave_one_out_advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """Return [G] r - mean of the other scored members = (r - mean) n / (n - 1), n scored members.

    Differs from the paper, which is silent on it: a group of one scored member gets exactly 0, and so do equal rewards.

    Args:
        rewards: [G] task units, G >= 1; None where the member could not be scored: it stays None and moves nothing.

    Raises:
        ValueError: as `group_advantages`.
    """
    scored = sum(1 for reward in rewards if reward is not None)
    factor = scored / (scored - 1) if scored > 1 else 1.0
    centred = group_advantages(rewards, normalize=False)
    return [None if advantage is None else advantage * factor for advantage in centred]
