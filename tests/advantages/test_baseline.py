import math

import pytest

from midcourse.advantages.baseline import baseline_advantages


def test_the_baseline_is_the_mean_of_the_chosen_members_alone():
    # Two of four chosen members succeed: 1/2. The others do not move it.
    rewards, chosen = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0], [True] * 4 + [False] * 2
    assert baseline_advantages(rewards, in_baseline=chosen) == [0.5, -0.5, 0.5, -0.5, 0.5, 0.5]


def test_a_success_above_a_failed_baseline_is_worth_one_and_the_failures_nothing():
    assert baseline_advantages([0.0, 0.0, 1.0, 0.0], in_baseline=[True, True, False, False]) == [0.0, 0.0, 1.0, 0.0]


def test_equal_rewards_give_exactly_zero():
    assert baseline_advantages([0.1] * 7, in_baseline=[True] * 3 + [False] * 4) == [0.0] * 7


def test_equal_rewards_of_the_baseline_give_its_members_exactly_zero():
    found = baseline_advantages([0.1, 0.1, 0.1, 1.0], in_baseline=[True, True, True, False])
    assert found == [0.0, 0.0, 0.0, 0.9]


def test_an_unscored_member_stays_out():
    found = baseline_advantages([None, 1.0, 0.0, None, 1.0], in_baseline=[True, True, True, False, False])
    assert found == [None, 0.5, -0.5, None, 0.5]


def test_without_a_scored_baseline_there_is_no_signal():
    assert baseline_advantages([None, 1.0, 0.0], in_baseline=[True, False, False]) == [None, 0.0, 0.0]


def test_the_order_of_members_changes_no_bit():
    rewards, chosen = [0.3, 0.1, 0.7, 0.2, 0.9], [True, True, False, True, False]
    order = [3, 0, 4, 2, 1]
    found = baseline_advantages(rewards, in_baseline=chosen)
    permuted = baseline_advantages([rewards[index] for index in order], in_baseline=[chosen[index] for index in order])
    assert permuted == [found[index] for index in order]


@pytest.mark.parametrize(("rewards", "chosen"), [([], []), ([1.0], []), ([math.nan, 1.0], [True, True])])
def test_what_cannot_be_compared_is_refused(rewards, chosen):
    with pytest.raises(ValueError, match="must"):
        baseline_advantages(rewards, in_baseline=chosen)
