import math

import pytest

from midcourse.interventions.shift import token_weights


def test_weights_are_likelihood_ratios_clipped_around_one():
    calibration = [math.log(0.55), math.log(0.9), math.log(0.1), -1.0]
    rollout = [math.log(0.5), math.log(0.3), math.log(0.5), -1.0]
    # ratios 1.1, 3, 0.2, 1
    assert token_weights(calibration, rollout, 0.2) == pytest.approx([1.1, 1.2, 0.8, 1.0])


def test_equal_log_probabilities_give_exactly_one():
    assert token_weights([-0.3, -7.1], [-0.3, -7.1], 0.2) == [1.0, 1.0]


def test_a_huge_shift_is_clipped_without_overflow():
    assert token_weights([0.0, -5000.0], [-5000.0, 0.0], 0.2) == pytest.approx([1.2, 0.8])


@pytest.mark.parametrize(
    ("calibration", "rollout", "epsilon_cal"),
    [([-1.0], [-1.0, -2.0], 0.2), ([math.nan], [-1.0], 0.2), ([-1.0], [-1.0], 0.0), ([-1.0], [-1.0], 1.0)],
)
def test_what_cannot_be_weighted_is_refused(calibration, rollout, epsilon_cal):
    with pytest.raises(ValueError, match=r"epsilon_cal|same tokens|finite"):
        token_weights(calibration, rollout, epsilon_cal)
