"""VIP: how many rollouts each task of a batch gets, so that gradients vary least (arXiv:2602.01601).

The paper's: where a task is solved with probability p, the variance of its gradient from n rollouts is proportional
to a / (n - 1) with RLOO's advantages and to a (n - 1) / n^2 with Dr. GRPO's, a = 4 p (1 - p) sigma^2. The n of all
tasks minimise the sum of variances, at L <= n <= U and a total of C. p is predicted (`vip_predictor.py`).

Differs from the paper: it relaxes n to real numbers, finds the multiplier by bisection and rounds greedily. Here the
rollouts are given out one by one, each where it takes off most variance; where the variance is convex in n, that is
the exact integer optimum. Dr. GRPO's is convex from 3 on, and 0 at n = 1, where there is no gradient: hence its L of
at least 3. The authors' code adds a reward for tasks that are hard, which the paper has not; it is not taken. L 4 and
U 32 are the code's.

Note: p near 0 or 1 gets least. VIP draws less where everything fails.
"""

import heapq
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.errors import ConfigError

LEAST_ROLLOUTS = {"rloo": 2, "dr_grpo": 3}
"""From here on the variance falls and is convex in the number of rollouts."""


class VIPAllocationConfig(BaseModel):
    """How many rollouts there are to give out, and within which bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rollouts_per_task: int = Field(default=16, ge=1)
    """C over the number of tasks of a batch. RAIL compares with 16 and 32."""
    min_rollouts: int = Field(default=4, ge=2)
    """L: rollouts that every task gets. Code: 4."""
    max_rollouts: int = Field(default=32, ge=2)
    """U: most rollouts of one task. Code: 32; for 32 a task it must be more, else nothing can be moved."""
    estimator: Literal["dr_grpo", "rloo"] = "dr_grpo"
    """Whose variance is minimised; the advantages must be the same: without deviation, or leave one out."""

    @model_validator(mode="after")
    def _bounds_hold_the_mean(self) -> Self:
        if not self.min_rollouts <= self.rollouts_per_task <= self.max_rollouts:
            raise ConfigError(
                "rollouts_per_task must lie between min_rollouts and max_rollouts: "
                f"got {self.min_rollouts}, {self.rollouts_per_task}, {self.max_rollouts}"
            )
        if self.min_rollouts < LEAST_ROLLOUTS[self.estimator]:
            raise ConfigError(
                f"min_rollouts must be at least {LEAST_ROLLOUTS[self.estimator]} for {self.estimator}: "
                f"got {self.min_rollouts}"
            )
        return self


def gradient_variance(probability: float, rollouts: int, estimator: Literal["dr_grpo", "rloo"]) -> float:
    """Return the variance of a task's gradient, in units of 4 sigma^2.

    Args:
        probability: p, that a rollout succeeds, in [0, 1].
        rollouts: n, at least 2.
        estimator: whose advantages.
    """
    spread = probability * (1.0 - probability)
    return spread / (rollouts - 1) if estimator == "rloo" else spread * (rollouts - 1) / rollouts**2


def allocate_rollouts(probabilities: Sequence[float], config: VIPAllocationConfig) -> list[int]:
    """Return how many rollouts each task gets; together `rollouts_per_task` times the number of tasks.

    Of tasks that would gain equally the one with fewer rollouts is served first, then the earlier.

    Args:
        probabilities: p of each task of the batch, in [0, 1].
        config: budget, bounds, estimator.

    Raises:
        ValueError: a number that is no probability.
    """
    if not all(0 <= probability <= 1 for probability in probabilities):
        raise ValueError(f"probabilities must lie in [0, 1]: got {list(probabilities)}")
    rollouts = [config.min_rollouts] * len(probabilities)

    def entry(task: int) -> tuple[float, int, int]:
        saved = gradient_variance(probabilities[task], rollouts[task], config.estimator) - gradient_variance(
            probabilities[task], rollouts[task] + 1, config.estimator
        )
        return (-saved, rollouts[task], task)

    queue = [entry(task) for task in range(len(rollouts)) if rollouts[task] < config.max_rollouts]
    heapq.heapify(queue)
    for _ in range((config.rollouts_per_task - config.min_rollouts) * len(rollouts)):
        task = heapq.heappop(queue)[2]
        rollouts[task] += 1
        if rollouts[task] < config.max_rollouts:
            heapq.heappush(queue, entry(task))
    return rollouts
