"""Reward minus the mean reward of some members of the group (papers: "MInTRL"). Letters: G members of one group."""

import math
from collections.abc import Sequence


def baseline_advantages(rewards: Sequence[float | None], *, in_baseline: Sequence[bool]) -> list[float | None]:
    """Return [G] how far each reward lies above the mean over the members that make the baseline.

    Nothing is divided, and the advantages do not sum to zero. Differs from the paper, which is silent on both: a
    group whose scored members all have one reward gets exactly 0, and so does one whose baseline nobody was scored
    for. Sums are exact, so that the order of members changes no bit.

    Args:
        rewards: [G] task units, G >= 1; None where the member could not be scored: it stays None and moves nothing.
        in_baseline: [G] whether the member counts in the mean (MInTRL: the policy wrote all of it).

    Raises:
        ValueError: the group is empty, the lists differ in length, or a reward is not finite.
    """
    if not rewards or len(rewards) != len(in_baseline):
        raise ValueError(
            f"a group must have members and a flag for each: got {len(rewards)} rewards, {len(in_baseline)} flags"
        )
    scored = [float(reward) for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in scored):
        raise ValueError(f"rewards must be finite: got {list(rewards)}")
    chosen = [float(reward) for reward, flag in zip(rewards, in_baseline, strict=True) if flag and reward is not None]
    if not chosen or min(scored) == max(scored):
        return [None if reward is None else 0.0 for reward in rewards]
    # Of equal numbers the rounded mean need not be the number.
    baseline = chosen[0] if min(chosen) == max(chosen) else math.fsum(chosen) / len(chosen)
    return [None if reward is None else float(reward) - baseline for reward in rewards]
