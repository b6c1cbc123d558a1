import math

import pytest
from tests.objectives.test_regression import make_inputs

from midcourse.objectives.sequence_clipped import SequenceClippedConfig, SequenceClippedObjective

NAN = math.nan


def gradient(inputs, **settings):
    output = SequenceClippedObjective(SequenceClippedConfig(**settings))(inputs)
    output.loss.backward()
    return output, inputs.logprobs_BT.grad.tolist()


def test_at_the_old_weights_a_response_shares_its_advantage_among_its_tokens():
    same = [[-1.0, -2.0, -0.5, -3.0]]
    output, found = gradient(make_inputs(same, same, [0.8]))
    assert output.loss.item() == -0.8
    assert found == [[-0.2] * 4]  # -A / |y|


def test_the_ratio_is_that_of_the_response_to_the_power_of_one_over_its_length():
    # Log-ratios 0.3 and -0.1: s = exp(0.1).
    inputs = make_inputs([[-0.7, -1.1]], [[-1.0, -1.0]], [2.0])
    output, found = gradient(inputs, clip_high=1.0)
    ratio = math.exp(0.1)
    assert output.loss.item() == pytest.approx(-2 * ratio, rel=1e-12)
    assert found == [pytest.approx([-2 * ratio / 2] * 2, rel=1e-12)]
    assert output.metrics["ratio_mean"] == pytest.approx(2 * ratio)


@pytest.mark.parametrize(
    ("shift", "advantage", "is_clipped"),
    [(5e-4, 1.0, True), (3e-4, 1.0, False), (-4e-4, -1.0, True), (-2e-4, -1.0, False), (5e-4, -1.0, False)],
)
def test_the_papers_clip_is_of_whole_responses(shift, advantage, is_clipped):
    inputs = make_inputs([[-1.0 + shift, -1.0 + shift]], [[-1.0, -1.0]], [advantage])
    output, found = gradient(inputs)
    assert (found == [[0.0, 0.0]]) == is_clipped
    clipped = output.metrics["clip_fraction_low"] + output.metrics["clip_fraction_high"]
    assert clipped == (2.0 if is_clipped else 0.0)
    if is_clipped:
        bound = 1.0004 if advantage > 0 else 0.9997
        assert output.loss.item() == pytest.approx(-advantage * bound, rel=1e-12)


def test_a_token_that_carries_no_loss_is_in_no_mean():
    trained = [[False, True, True, False]]
    inputs = make_inputs([[NAN, -0.9, -1.0, NAN]], [[NAN, -1.0, -1.0, 5.0]], [1.0], trained=trained)
    output, found = gradient(inputs, clip_high=1.0)
    assert output.loss.item() == pytest.approx(-math.exp(0.05))
    assert found == [pytest.approx([0.0, -math.exp(0.05) / 2, -math.exp(0.05) / 2, 0.0])]


def test_the_order_of_rows_changes_no_gradient_and_rows_add_up():
    logprobs, old, advantages = [[-1.0001, -1.0], [-1.4, -1.0]], [[-1.0, -1.0], [-1.4, -1.0]], [1.0, -0.5]
    _, found = gradient(make_inputs(logprobs, old, advantages))
    _, turned = gradient(make_inputs(logprobs[::-1], old[::-1], advantages[::-1]))
    assert turned == found[::-1]
    for row in range(2):
        _, apart = gradient(make_inputs([logprobs[row]], [old[row]], [advantages[row]], coefficients=[0.5]))
        assert apart[0] == found[row]


def test_the_numbers_come_from_the_paper():
    config = SequenceClippedConfig()
    assert (config.clip_low, config.clip_high) == (3e-4, 4e-4)
