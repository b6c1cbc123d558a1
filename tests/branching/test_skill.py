import pytest

from midcourse.branching.skill import action_map, pearson, skill


def test_the_numbers_by_hand():
    found = skill([0.2, 0.1, -0.1, 0.3], [0.1, -0.1, -0.2, -0.1])
    assert found.traces == 4
    assert found.mean_absolute_error == pytest.approx((0.1 + 0.2 + 0.1 + 0.4) / 4)
    assert found.sign_agreement == 0.5
    # Always "no gain" is right three times of four.
    assert found.majority_agreement == 0.75
    # The one gain was seen; of three others one: (1 + 1/3) / 2.
    assert found.balanced_accuracy == pytest.approx(2 / 3)
    # Deviations (3, -1, -9, 7) / 40 and (7, -1, -5, -1) / 40: 60 / sqrt(140 * 76).
    assert found.pearson == pytest.approx(60 / (140 * 76) ** 0.5)


def test_a_predictor_of_the_majority_shows_no_skill():
    found = skill([-0.1] * 10, [-0.2] * 9 + [0.2])
    assert found.sign_agreement == found.majority_agreement == 0.9
    assert found.balanced_accuracy == 0.5
    assert found.pearson is None
    assert skill([0.1] * 4, [0.2, 0.1, 0.3, -0.2]).majority_agreement == 0.75


def test_what_traces_cannot_say_is_none_and_no_metric():
    assert skill([], []).metrics() == {"traces": 0.0}
    assert skill([0.1], [0.1]).balanced_accuracy is None
    assert "balanced_accuracy" not in skill([0.1], [0.1]).metrics()


def test_correlation_is_one_of_a_line_and_none_without_spread():
    assert pearson([1.0, 2.0, 4.0], [3.0, 5.0, 9.0]) == pytest.approx(1.0)
    assert pearson([1.0, 2.0, 4.0], [-3.0, -5.0, -9.0]) == pytest.approx(-1.0)
    assert pearson([0.1, 0.1], [1.0, 2.0]) is None
    assert pearson([0.1], [0.2]) is None


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="needs its gain"):
        skill([0.1], [])


def test_the_action_map_counts_cells_by_name():
    assert action_map([0, 2, 2], ["4 mild", "8 mild", "12 mild"]) == {"4 mild": 1, "8 mild": 0, "12 mild": 2}
