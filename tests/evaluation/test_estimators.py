import itertools

import pytest

from midcourse.evaluation.estimators import (
    bootstrap_interval,
    estimate_pass,
    is_success,
    pass_at_k,
    pass_hat_k,
    seed_interval,
)


def test_pass_at_k_matches_hand_computation():
    # 5 attempts, 2 successes, 3 drawn: C(3,3)/C(5,3) = 1/10 draws hold no success
    assert pass_at_k(5, 2, 3) == 0.9
    # 4 attempts, 1 success, 2 drawn: C(3,2)/C(4,2) = 3/6 hold none
    assert pass_at_k(4, 1, 2) == 0.5


def test_pass_hat_k_matches_hand_computation():
    # 4 attempts, 3 successes, 2 drawn: C(3,2)/C(4,2) = 3/6, not (3/4)^2
    assert pass_hat_k(4, 3, 2) == 0.5
    assert pass_hat_k(4, 1, 2) == 0.0


@pytest.mark.parametrize("estimator", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize(("attempts", "successes", "k"), [(4, 1, 5), (4, 5, 2), (4, -1, 2), (4, 1, 0), (0, 0, 1)])
def test_impossible_counts_are_errors(estimator, attempts, successes, k):
    with pytest.raises(ValueError, match="must lie in"):
        estimator(attempts, successes, k)


@pytest.mark.parametrize("successes", range(5))
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_both_match_enumeration_of_every_draw(successes, k):
    draws = list(itertools.combinations([1] * successes + [0] * (4 - successes), k))
    assert pass_at_k(4, successes, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws), abs=1e-15)
    assert pass_hat_k(4, successes, k) == pytest.approx(sum(all(draw) for draw in draws) / len(draws), abs=1e-15)


def test_no_success_is_zero_and_all_successes_are_one():
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 4, 1) == 1.0


def test_nearly_full_reward_counts_as_success_and_partial_reward_does_not():
    assert is_success(1.0 - 1e-7)
    assert not is_success(0.999)


def test_failed_rollouts_leave_the_attempts_of_their_task():
    rewards = {"a": [1.0, None, 0.0, None], "b": [0.0, 0.0, 0.0, 1.0]}
    # a: 1 of 2 scored; b: 1 of 4 scored
    assert estimate_pass(rewards, 1).value == (0.5 + 0.25) / 2


def test_tasks_with_too_few_scored_attempts_are_reported():
    estimate = estimate_pass({"a": [1.0, None], "b": [0.0, 1.0]}, 2)
    assert (estimate.value, estimate.num_tasks, estimate.num_short_tasks) == (1.0, 1, 1)


def test_no_task_with_enough_attempts_gives_no_value():
    estimate = estimate_pass({"a": [None]}, 1)
    assert (estimate.value, estimate.low, estimate.num_short_tasks) == (None, None, 1)


def test_the_interval_of_equal_values_is_a_point():
    assert bootstrap_interval([0.5] * 6, seed=1) == (0.5, 0.5)


def test_the_interval_holds_the_mean_and_repeats_with_its_seed():
    values = [0.0, 1.0] * 10
    low, high = bootstrap_interval(values, seed=3)
    assert 0.2 < low < 0.5 < high < 0.8
    assert bootstrap_interval(values, seed=3) == (low, high)


def test_the_interval_narrows_with_more_tasks():
    few = bootstrap_interval([0.0, 1.0] * 5, seed=0)
    many = bootstrap_interval([0.0, 1.0] * 100, seed=0)
    assert many[1] - many[0] < (few[1] - few[0]) / 2


def test_a_bootstrap_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="needs values"):
        bootstrap_interval([], seed=0)


def test_seeds_give_mean_and_range():
    assert seed_interval([0.25, 0.75, 0.5]) == (0.5, 0.25, 0.75)
