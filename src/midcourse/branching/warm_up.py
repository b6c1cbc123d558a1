"""The rule that branches until the controller is trusted: the shadow phase (RAIL, Section 3.2 and B.3.4).

At each anchor, counts are tried in increasing order; a branch is kept while it brings the pool's mean reward nearer to
0.5, else the anchor is done. Every trial is a trace, kept or not. The regime follows the pool's mean, anew before each
trial: solved pools exploit, hopeless ones explore most.

Ours: a mean in the k-th part of [0, 1] takes the k-th regime, counted from the solved end (the paper names no cuts;
with three regimes they are 1/3 and 2/3), a pool without any reward counts as hopeless, and a tie stops.
"""

from collections.abc import Sequence
from fractions import Fraction

from midcourse.branching.actions import Action, ActionSpace
from midcourse.branching.gain import GainConfig, informativeness_gain, pool_mean


def warm_up_regime(mean: Fraction | None, num_regimes: int) -> int:
    """Return the regime, by its position in the space, for a pool of this mean reward; a mean at a cut exploits more.

    Means outside [0, 1] count as the nearer end.
    """
    solved = Fraction(0) if mean is None else min(max(mean, Fraction(0)), Fraction(1))
    return num_regimes - 1 - min(int(solved * num_regimes), num_regimes - 1)


def next_trial(
    space: ActionSpace, rewards: Sequence[float | None], *, trials_done: int, remaining: int
) -> Action | None:
    """Return what the warm-up rule tries next at an anchor, or None where counts or budget are used up.

    Args:
        space: counts and regimes.
        rewards: of the pool as it stands, kept branches of earlier trials included.
        trials_done: trials at this anchor so far; each took the next greater count.
        remaining: rollouts left of the budget; the count is clamped to it.
    """
    if trials_done >= len(space.branch_counts):
        return None
    regime = warm_up_regime(pool_mean(rewards), len(space.regimes))
    return space.action(trials_done, regime, remaining=remaining)


def is_kept(before: Sequence[float | None], branch: Sequence[float | None], config: GainConfig) -> bool:
    """Return whether the pool is more informative with the branch in it; cost does not count, a tie is no."""
    gained = informativeness_gain(before, branch, target=config.target)
    return gained is not None and gained > 0
