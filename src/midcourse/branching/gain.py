"""What an intervention brought: the target that the controller learns (RAIL, B.3.3 and C.1).

The paper's: y = d(before) - d(after) - lambda C(b) with d = |mean reward - 0.5|, "after" being the pool with the new
branches in it; for any rewards I(Y), the population variance, in place of -d. For rewards of 0 and 1 both say the same:
I = p (1 - p) = 1/4 - d^2 (Proposition C.2). Ours: C = rollouts / 12 in every grid, lambda 0.05, and the gain that mere
chance would bring. Sums are exact: rewards 1/3 and 2/3 are equally far from 0.5, so neither beats the other.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.branching.actions import Action

COST_ROLLOUTS = 12
"""Rollouts that cost 1: the greatest count of the paper's grid, so that a rollout costs the same in every grid."""
HALF = Fraction(1, 2)


class GainConfig(BaseModel):
    """What counts as a gain."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    target: Literal["midpoint", "variance"] = "midpoint"
    """midpoint: the mean reward comes nearer to 0.5. variance: rewards differ more; for rewards other than 0 and 1."""
    cost_weight: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """lambda: gain that 12 rollouts must bring to be worth drawing. Ours; the paper's value is not known."""


def pool_mean(rewards: Sequence[float | None]) -> Fraction | None:
    """Return the exact mean of the rewards that there are; None where every rollout failed.

    Raises:
        ValueError: a reward that is not finite.
    """
    scored = _scored(rewards)
    return Fraction(sum(scored)) / len(scored) if scored else None


def pool_variance(rewards: Sequence[float | None]) -> Fraction | None:
    """Return I(Y) of C.1, the exact variance (divided by the number) of the rewards that there are, or None.

    Raises:
        ValueError: a reward that is not finite.
    """
    scored = _scored(rewards)
    if not scored:
        return None
    total, squares = Fraction(sum(scored)), Fraction(sum(reward * reward for reward in scored))
    return squares / len(scored) - (total / len(scored)) ** 2


def distance_to_half(mean: Fraction) -> Fraction:
    """Return d = |mean - 0.5|: 0 is the richest contrast of rewards, 0.5 is none."""
    return abs(mean - HALF)


def branch_cost(action: Action) -> float:
    """Return C(b): rollouts as run, times the regime's cost of one, over 12."""
    return action.rollouts * action.regime.cost / COST_ROLLOUTS


def realized_gain(
    before: Sequence[float | None],
    branch: Sequence[float | None],
    action: Action,
    config: GainConfig,
) -> float | None:
    """Return y of a branch; None where it cannot be known, since no rollout before or none of the branch has a reward.

    Args:
        before: rewards of the pool; None where a rollout failed: it counts nowhere.
        branch: rewards of the new continuations; the pool after is both together.
        action: what was run.
        config: target and weight of the cost.

    Raises:
        ValueError: a reward that is not finite.
    """
    gained = informativeness_gain(before, branch, target=config.target)
    return None if gained is None else float(gained) - config.cost_weight * branch_cost(action)


def informativeness_gain(
    before: Sequence[float | None], branch: Sequence[float | None], *, target: Literal["midpoint", "variance"]
) -> Fraction | None:
    """Return I(after) - I(before), exact and without the cost; I is -d or the variance. None: as `realized_gain`."""
    if not any(reward is not None for reward in before) or not any(reward is not None for reward in branch):
        return None
    return _informativeness([*before, *branch], target) - _informativeness(before, target)


def chance_gain(successes: int, failures: int, rollouts: int) -> float:
    """Return the midpoint gain, without cost, to be expected of `rollouts` more draws from the task's start (ours).

    |mean - 0.5| falls with the number of rollouts alone, whatever they are, so a branch has to beat this. The success
    rate is not known: given the pool and a uniform prior, the number of new successes is beta-binomial.

    Args:
        successes: rollouts of the pool with reward 1.
        failures: rollouts of the pool with reward 0.
        rollouts: new draws, at least 1.

    Raises:
        ValueError: a negative number, an empty pool, or no draw.
    """
    if min(successes, failures) < 0 or successes + failures < 1 or rollouts < 1:
        raise ValueError(
            f"chance_gain needs a pool and a draw: got {successes} successes, {failures} failures, {rollouts} rollouts"
        )
    pool = successes + failures
    expected = sum(
        (
            Fraction(math.comb(successes + new, new) * math.comb(failures + rollouts - new, rollouts - new))
            * distance_to_half(Fraction(successes + new, pool + rollouts))
            for new in range(rollouts + 1)
        ),
        Fraction(0),
    ) / math.comb(pool + rollouts + 1, rollouts)
    return float(distance_to_half(Fraction(successes, pool)) - expected)


def _informativeness(rewards: Sequence[float | None], target: Literal["midpoint", "variance"]) -> Fraction:
    mean, variance = pool_mean(rewards), pool_variance(rewards)
    assert mean is not None
    assert variance is not None
    return variance if target == "variance" else -distance_to_half(mean)


def _scored(rewards: Sequence[float | None]) -> list[int | Fraction]:
    """Return the rewards that there are, exactly; whole numbers as such, which sum twenty times as fast."""
    scored = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in scored):
        raise ValueError(f"rewards must be finite: got {list(rewards)}")
    return [int(reward) if reward == int(reward) else Fraction(reward) for reward in scored]
