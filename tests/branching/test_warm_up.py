from fractions import Fraction

import pytest

from midcourse.branching.actions import ActionSpaceConfig
from midcourse.branching.gain import GainConfig
from midcourse.branching.warm_up import is_kept, next_trial, warm_up_regime


@pytest.mark.parametrize(
    ("mean", "regime"),
    [
        (Fraction(0), 2),
        (Fraction(1, 4), 2),
        (Fraction(1, 3), 1),
        (Fraction(1, 2), 1),
        (Fraction(2, 3), 0),
        (Fraction(1), 0),
        (None, 2),
        (Fraction(-3), 2),
        (Fraction(7), 0),
    ],
)
def test_solved_pools_exploit_and_hopeless_ones_explore_most(mean, regime):
    assert warm_up_regime(mean, 3) == regime


def test_the_cuts_follow_the_number_of_regimes():
    assert [warm_up_regime(Fraction(eighth, 8), 2) for eighth in (3, 4)] == [1, 0]
    assert [warm_up_regime(Fraction(eighth, 8), 4) for eighth in (1, 2, 4, 6)] == [3, 2, 1, 0]
    assert warm_up_regime(Fraction(0), 1) == 0


def test_counts_are_tried_in_increasing_order_and_the_regime_follows_the_pool():
    space = ActionSpaceConfig().build()
    hopeless, halfway = [0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]
    trials = [
        next_trial(space, hopeless, trials_done=0, remaining=28),
        next_trial(space, halfway, trials_done=1, remaining=24),
        next_trial(space, halfway, trials_done=2, remaining=10),
    ]
    assert [(trial.rollouts, trial.regime.name) for trial in trials if trial is not None] == [
        (4, "aggressive"),
        (8, "mild"),
        (10, "mild"),
    ]
    assert next_trial(space, halfway, trials_done=3, remaining=8) is None
    assert next_trial(space, halfway, trials_done=1, remaining=0) is None


def test_a_regime_that_comes_last_is_for_the_hardest_pools():
    space = ActionSpaceConfig(regimes=("exploit", "mild", "aggressive", "repair")).build()
    hopeless = next_trial(space, [0, 0, 0, 0], trials_done=0, remaining=28)
    better = next_trial(space, [1, 0, 0, 0], trials_done=0, remaining=28)
    assert hopeless is not None
    assert better is not None
    assert (hopeless.regime.kind, better.regime.name) == ("repair", "aggressive")


def test_a_branch_is_kept_if_the_mean_came_nearer_and_a_tie_stops():
    config = GainConfig()
    assert is_kept([0, 0, 0, 0], [1, 0, 0, 0], config)
    assert not is_kept([1, 0, 0, 0], [1, 0, 0, 0], config)
    assert not is_kept([1, 0], [0], config)
    assert not is_kept([0, 0], [None], config)


def test_the_cost_does_not_count_in_what_is_kept():
    assert is_kept([0] * 4, [1] + [0] * 11, GainConfig(cost_weight=10.0))
