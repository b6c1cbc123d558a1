import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.advantages.leave_one_out import leave_one_out_advantages


def test_the_others_are_the_baseline():
    # 1 - 1/3, 0 - 2/3
    assert leave_one_out_advantages([1.0, 0.0, 1.0, 0.0]) == pytest.approx([2 / 3, -2 / 3, 2 / 3, -2 / 3])
    assert leave_one_out_advantages([3.0, 1.0]) == [2.0, -2.0]


@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [0.7], [0.3, None, 0.3], [None, None]])
def test_no_spread_gives_exactly_zero(rewards):
    assert leave_one_out_advantages(rewards) == [None if reward is None else 0.0 for reward in rewards]


def test_an_unscored_member_is_nobodys_baseline():
    assert leave_one_out_advantages([None, 3.0, 1.0]) == [None, 2.0, -2.0]


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=10))
def test_it_is_the_reward_less_the_mean_of_the_others(rewards):
    expected = [
        reward - math.fsum([*rewards[:place], *rewards[place + 1 :]]) / (len(rewards) - 1)
        for place, reward in enumerate(rewards)
    ]
    assert leave_one_out_advantages(rewards) == pytest.approx(expected, abs=1e-9)
