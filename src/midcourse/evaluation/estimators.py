"""Exact pass@k and pass^k from n attempts, and how sure one may be of them. No model, no file, no clock."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SUCCESS_REWARD = 1.0 - 1e-6
"""Least reward that counts as success, task units; RTI and tau-bench score 1 for it."""


def is_success(reward: float) -> bool:
    """Return whether a reward counts as success."""
    return reward >= SUCCESS_REWARD


def pass_at_k(num_attempts: int, num_successes: int, k: int) -> float:
    """Return the probability that k attempts drawn without replacement hold a success: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of arXiv:2107.03374, Eq. 1, in exact integers up to one division.

    Raises:
        ValueError: k outside [1, n], or c outside [0, n]. There is no pass@k of fewer than k attempts.
    """
    _check(num_attempts, num_successes, k)
    # The difference is taken in integers: 1 - a/b would lose digits where nearly every draw succeeds or fails.
    draws = math.comb(num_attempts, k)
    return (draws - math.comb(num_attempts - num_successes, k)) / draws


def pass_hat_k(num_attempts: int, num_successes: int, k: int) -> float:
    """Return the probability that k attempts drawn without replacement all succeed: C(c, k) / C(n, k).

    pass^k of arXiv:2406.12045, Sec. 3. Raises as `pass_at_k`.
    """
    _check(num_attempts, num_successes, k)
    return math.comb(num_successes, k) / math.comb(num_attempts, k)


def _check(num_attempts: int, num_successes: int, k: int) -> None:
    if not 1 <= k <= num_attempts:
        raise ValueError(f"k must lie in [1, number of attempts]: got k {k} with {num_attempts} attempts")
    if not 0 <= num_successes <= num_attempts:
        raise ValueError(f"successes must lie in [0, {num_attempts}]: got {num_successes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks with a bootstrap interval over tasks. None where no task had enough scored attempts."""

    value: float | None
    low: float | None
    high: float | None
    num_tasks: int  # tasks the value is a mean of
    num_short_tasks: int  # tasks left out: fewer than k attempts were scored


def estimate_pass(
    rewards_by_task: Mapping[str, Sequence[float | None]],
    k: int,
    *,
    all_must_pass: bool = False,
    seed: int = 0,
    num_resamples: int = 1000,
    confidence: float = 0.95,
) -> Estimate:
    """Return the mean over tasks of pass@k, or of pass^k with `all_must_pass`.

    A failed rollout (reward None) is no attempt: it leaves its task's n. Tasks left with fewer than k attempts are
    counted in `num_short_tasks`, so that a mean over fewer tasks can be seen as such.

    Args:
        rewards_by_task: [tasks][attempts] rewards, task units.
        k: attempts drawn, >= 1.
        all_must_pass: every drawn attempt must succeed.
        seed: of the bootstrap.
        num_resamples: bootstrap draws.
        confidence: share of the bootstrap means that the interval holds, in (0, 1).
    """
    estimator = pass_hat_k if all_must_pass else pass_at_k
    values: list[float] = []
    for rewards in rewards_by_task.values():
        scored = [reward for reward in rewards if reward is not None]
        if len(scored) >= k:
            values.append(estimator(len(scored), sum(is_success(reward) for reward in scored), k))
    num_short = len(rewards_by_task) - len(values)
    if not values:
        return Estimate(value=None, low=None, high=None, num_tasks=0, num_short_tasks=num_short)
    low, high = bootstrap_interval(values, seed=seed, num_resamples=num_resamples, confidence=confidence)
    return Estimate(
        value=math.fsum(values) / len(values), low=low, high=high, num_tasks=len(values), num_short_tasks=num_short
    )


def bootstrap_interval(
    values: Sequence[float], *, seed: int, num_resamples: int = 1000, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of `values`.

    It covers which tasks were drawn, not which seed trained the policy: for that see `seed_interval`.

    Raises:
        ValueError: no values, no resamples, or a confidence outside (0, 1).
    """
    if not values or num_resamples < 1 or not 0 < confidence < 1:
        raise ValueError(
            "a bootstrap needs values, resamples >= 1 and a confidence in (0, 1): "
            f"got {len(values)} values, {num_resamples}, {confidence}"
        )
    array = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, len(array), size=(num_resamples, len(array)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(array[draws].mean(axis=1), [tail, 1 - tail])
    return float(low), float(high)


def seed_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return (mean, least, greatest) over training seeds.

    The range is given, not a standard error: papers of this field have 1 to 3 seeds.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("an interval over seeds needs at least one value")
    return math.fsum(values) / len(values), min(values), max(values)
