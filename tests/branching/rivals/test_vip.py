import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from midcourse.branching.rivals.vip import VIPAllocationConfig, allocate_rollouts, gradient_variance

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=3)


def test_the_variances_by_hand():
    # p (1 - p) = 3/16
    assert gradient_variance(0.25, 4, "rloo") == 3 / 16 / 3
    assert gradient_variance(0.25, 4, "dr_grpo") == 3 / 16 * 3 / 16
    assert gradient_variance(1.0, 4, "rloo") == 0.0


def test_rollouts_go_where_the_outcome_is_uncertain():
    # a 1/4 and 9/100. RLOO takes a / ((n - 1) n) off by the next rollout: from n = 2 on the first saves 1/8, 1/24,
    # 1/48, 1/80 and the second 9/200, 3/200. In falling order: first, second (0.045), first (0.0417), first (0.0208).
    config = VIPAllocationConfig(rollouts_per_task=4, min_rollouts=2, estimator="rloo")
    assert allocate_rollouts([0.5, 0.1], config) == [5, 3]


def test_equal_tasks_share_equally_and_the_earlier_come_first():
    config = VIPAllocationConfig(rollouts_per_task=5)
    assert allocate_rollouts([0.3] * 4, config) == [5] * 4
    assert allocate_rollouts([0.0, 1.0, 0.0], config) == [5, 5, 5]
    # 0.3 and 0.7 are equally uncertain up to rounding; the third gets its least.
    assert allocate_rollouts([0.5, 0.5, 0.0], config.model_copy(update={"rollouts_per_task": 5})) == [6, 5, 4]


def test_a_full_task_leaves_the_rest_to_the_others():
    config = VIPAllocationConfig(rollouts_per_task=6, max_rollouts=7)
    assert allocate_rollouts([0.5, 0.5, 0.0], config) == [7, 7, 4]
    assert allocate_rollouts([0.5, 0.01], config.model_copy(update={"rollouts_per_task": 7})) == [7, 7]


@settings(max_examples=40)
@given(PROBABILITIES, st.sampled_from(["rloo", "dr_grpo"]), st.integers(3, 8))
def test_no_other_allocation_varies_less(probabilities, estimator, per_task):
    config = VIPAllocationConfig(rollouts_per_task=per_task, min_rollouts=3, max_rollouts=8, estimator=estimator)
    found = allocate_rollouts(probabilities, config)
    assert sum(found) == per_task * len(probabilities)
    assert all(3 <= rollouts <= 8 for rollouts in found)

    def total(allocation):
        return sum(gradient_variance(p, n, estimator) for p, n in zip(probabilities, allocation, strict=True))

    best = min(
        total(allocation)
        for allocation in itertools.product(range(3, 9), repeat=len(probabilities))
        if sum(allocation) == sum(found)
    )
    assert total(found) <= best + 1e-12


def test_the_order_of_tasks_does_not_matter_where_they_differ():
    config, probabilities = VIPAllocationConfig(), [0.5, 0.1, 0.02, 0.7]
    order = [2, 0, 3, 1]
    found = allocate_rollouts(probabilities, config)
    assert allocate_rollouts([probabilities[place] for place in order], config) == [found[place] for place in order]


def test_where_the_variance_is_not_convex_no_minimum_is_allowed():
    # Dr. GRPO: from 2 to 3 rollouts saves 1/36 of a, from 3 to 4 saves 5/144.
    assert gradient_variance(0.5, 2, "dr_grpo") - gradient_variance(0.5, 3, "dr_grpo") < gradient_variance(
        0.5, 3, "dr_grpo"
    ) - gradient_variance(0.5, 4, "dr_grpo")
    with pytest.raises(ValidationError, match="min_rollouts must be at least 3 for dr_grpo: got 2"):
        VIPAllocationConfig(min_rollouts=2)
    with pytest.raises(ValidationError, match="between min_rollouts and max_rollouts: got 4, 40, 32"):
        VIPAllocationConfig(rollouts_per_task=40)
    with pytest.raises(ValueError, match="probabilities"):
        allocate_rollouts([1.5], VIPAllocationConfig())
