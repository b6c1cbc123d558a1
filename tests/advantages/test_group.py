import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.advantages.group import group_advantages

REWARDS = st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=12)


def test_one_success_in_four_gives_the_numbers_of_equation_1():
    # mean 1/4, deviation sqrt(3/16)
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0], epsilon=0.0)
    assert advantages == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rel=1e-15)


def test_epsilon_is_added_to_the_deviation():
    # mean 2, deviation 1
    assert group_advantages([1.0, 3.0], epsilon=0.5) == pytest.approx([-1 / 1.5, 1 / 1.5], rel=1e-15)


def test_ddof_one_is_the_formula_of_trl_and_verl():
    rewards = [0.0, 1.0, 0.25, 0.75, 1.0]
    mean, deviation = statistics.mean(rewards), statistics.stdev(rewards)
    expected = [(reward - mean) / (deviation + 1e-4) for reward in rewards]
    assert group_advantages(rewards, std_ddof=1, epsilon=1e-4) == pytest.approx(expected, rel=1e-14)


def test_without_normalisation_only_the_mean_is_taken_off():
    assert group_advantages([1.0, 0.0, 0.5], normalize=False) == [0.5, -0.5, 0.0]


@pytest.mark.parametrize("std_ddof", [0, 1])
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [0.7], [0.3, None, 0.3], [None, 5.0]])
def test_no_spread_gives_exactly_zero(rewards: list[float | None], std_ddof: int):
    expected = [None if reward is None else 0.0 for reward in rewards]
    assert group_advantages(rewards, std_ddof=std_ddof, epsilon=0.0) == expected


def test_a_group_without_scored_members_has_no_advantages():
    assert group_advantages([None, None]) == [None, None]


@given(REWARDS, st.randoms(use_true_random=False))
def test_permuting_a_group_permutes_its_advantages_bit_for_bit(rewards, random):
    order = list(range(len(rewards)))
    random.shuffle(order)
    advantages = group_advantages(rewards)
    assert group_advantages([rewards[index] for index in order]) == [advantages[index] for index in order]


@given(REWARDS)
def test_an_unscored_member_moves_nobody(rewards):
    alone = [reward for reward in rewards if reward is not None]
    expected = group_advantages(alone) if alone else []
    assert [advantage for advantage in group_advantages([*rewards, None]) if advantage is not None] == expected


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward: float):
    with pytest.raises(ValueError, match="finite"):
        group_advantages([reward, 0.0])


def test_an_empty_group_and_an_unknown_ddof_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        group_advantages([])
    with pytest.raises(ValueError, match="std_ddof"):
        group_advantages([0.0, 1.0], std_ddof=2)
