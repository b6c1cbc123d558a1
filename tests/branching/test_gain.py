import itertools
import math
from fractions import Fraction

import numpy
import pytest

from midcourse.branching.actions import REGIMES, Action, Regime
from midcourse.branching.gain import (
    GainConfig,
    branch_cost,
    chance_gain,
    distance_to_half,
    informativeness_gain,
    pool_mean,
    pool_variance,
    realized_gain,
)


def action(rollouts, regime=None):
    return Action(cell=0, rollouts=rollouts, regime=REGIMES["mild"] if regime is None else regime)


def test_a_branch_that_finds_successes_gains_the_way_to_the_midpoint_less_its_cost():
    # 0 of 4: d = 1/2. 3 of 8: d = 1/8. y = 3/8 - 0.05 * 4/12.
    found = realized_gain([0, 0, 0, 0], [1, 1, 0, 1], action(4), GainConfig())
    assert found == pytest.approx(0.375 - 0.05 / 3, rel=1e-15)


def test_a_branch_that_changes_nothing_loses_its_cost():
    # 1 of 4 and 3 of 12: d stays 1/4, 8 rollouts cost 0.05 * 8/12
    assert realized_gain([1, 0, 0, 0], [1, 1] + [0] * 6, action(8), GainConfig()) == pytest.approx(-0.1 / 3, rel=1e-15)
    assert realized_gain([1, 0], [1, 0], action(4), GainConfig(cost_weight=0.0)) == 0.0


def test_the_mean_may_pass_the_midpoint():
    # 1 of 4: d = 1/4. 7 of 10: d = 1/5.
    assert informativeness_gain([1, 0, 0, 0], [1] * 6, target="midpoint") == Fraction(1, 20)


def test_a_rollout_costs_the_same_in_every_grid_and_a_regime_may_cost_more():
    assert [branch_cost(action(count)) for count in (4, 12, 16)] == [4 / 12, 1.0, 16 / 12]
    assert branch_cost(action(6, Regime(name="dear", kind="repair", cost=4.0))) == 2.0


def test_means_equally_far_from_the_midpoint_are_equally_good():
    # In floats |1/3 - 0.5| is greater than |2/3 - 0.5|.
    assert abs(1 / 3 - 0.5) != abs(2 / 3 - 0.5)
    assert informativeness_gain([1, 0, 0], [1, 1, 1], target="midpoint") == 0
    assert distance_to_half(Fraction(1, 3)) == distance_to_half(Fraction(2, 3))


def test_of_rewards_of_zero_and_one_the_variance_is_a_quarter_less_the_squared_distance():
    for size in range(1, 9):
        for successes in range(size + 1):
            rewards = [1] * successes + [0] * (size - successes)
            share = Fraction(successes, size)
            assert pool_variance(rewards) == share * (1 - share) == Fraction(1, 4) - distance_to_half(share) ** 2


def test_the_variance_target_is_for_any_rewards():
    # {0.25, 0.75}: 1/16. {0.25, 0.75, 0, 1}: mean 1/2, (1/16 + 1/16 + 1/4 + 1/4) / 4 = 5/32.
    config = GainConfig(target="variance", cost_weight=0.0)
    assert realized_gain([0.25, 0.75], [0.0, 1.0], action(2), config) == 5 / 32 - 1 / 16


def test_a_failed_rollout_counts_nowhere_and_never_as_zero():
    assert pool_mean([1.0, None, 0.0, None]) == Fraction(1, 2)
    with_failures = realized_gain([0, None, 0], [1, None, 1, None], action(4), GainConfig())
    assert with_failures == realized_gain([0, 0], [1, 1], action(4), GainConfig())


@pytest.mark.parametrize(("before", "branch"), [([], [1]), ([None, None], [1, 0]), ([1, 0], [None]), ([1, 0], [])])
def test_without_a_reward_on_either_side_the_gain_is_not_known(before, branch):
    assert realized_gain(before, branch, action(1), GainConfig()) is None


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="rewards must be finite"):
        realized_gain([0.0], [math.nan], action(1), GainConfig())


def test_chance_alone_gains_at_an_end_and_loses_at_the_midpoint():
    # Pool {0}: the next is a success with (0 + 1) / (1 + 2) = 1/3; then d = 0, else 1/2. 1/2 - 2/3 * 1/2 = 1/6.
    assert chance_gain(0, 1, 1) == pytest.approx(1 / 6, rel=1e-15)
    # Pool {0, 1}: a success with 1/2, mean 2/3, or mean 1/3: d = 1/6 either way.
    assert chance_gain(1, 1, 1) == pytest.approx(-1 / 6, rel=1e-15)
    assert chance_gain(1, 3, 12) == chance_gain(3, 1, 12)


def test_chance_is_the_mean_over_success_rates_and_draws():
    # Integral over a fine grid of rates, posterior p^k (1-p)^f, and every outcome of m draws.
    successes, failures, rollouts = 1, 3, 4
    rates = (numpy.arange(20_000) + 0.5) / 20_000
    posterior = rates**successes * (1 - rates) ** failures
    expected = 0.0
    for draws in itertools.product((0, 1), repeat=rollouts):
        new = sum(draws)
        likelihood = rates**new * (1 - rates) ** (rollouts - new)
        distance = abs((successes + new) / (successes + failures + rollouts) - 0.5)
        expected += float((posterior * likelihood).sum() / posterior.sum()) * distance
    assert chance_gain(successes, failures, rollouts) == pytest.approx(0.25 - expected, abs=1e-6)


@pytest.mark.parametrize("arguments", [(0, 0, 4), (-1, 2, 4), (1, 1, 0)])
def test_chance_needs_a_pool_and_a_draw(arguments):
    with pytest.raises(ValueError, match="chance_gain needs"):
        chance_gain(*arguments)
