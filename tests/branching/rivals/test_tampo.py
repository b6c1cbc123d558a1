import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midcourse.branching.rivals.tampo import TemperaturePolicy, TemperaturePolicyConfig, nucleus_draw, sparsemax
from midcourse.errors import CheckpointError

THREE = TemperaturePolicyConfig(temperature_factors=(0.7, 1.0, 1.3))
SCORES = st.lists(st.floats(-20, 20), min_size=1, max_size=8)


def test_sparsemax_by_hand():
    # (0.5, 0.1, -2): the last is out, the others less (0.6 - 1) / 2 = -0.2.
    assert sparsemax(numpy.array([0.5, 0.1, -2.0])) == pytest.approx([0.7, 0.3, 0.0], abs=1e-15)
    assert sparsemax(numpy.array([2.0, 0.5])).tolist() == [1.0, 0.0]
    assert sparsemax(numpy.array([-3.0] * 4)) == pytest.approx([0.25] * 4)


@given(SCORES, st.floats(-5, 5))
def test_sparsemax_is_a_distribution_and_knows_no_shift(scores, shift):
    weights = sparsemax(numpy.array(scores))
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1.0)
    assert sparsemax(numpy.array(scores) + shift) == pytest.approx(weights, abs=1e-9)
    assert weights[numpy.argmax(scores)] == weights.max()


def test_a_temperature_earns_the_advantages_of_rollouts_that_are_likely_at_it():
    policy = TemperaturePolicy(THREE)
    # Weights (0.7, 0.3, 0) and (0, 0.3, 0.7); advantages 1 and -1: (0.7, 0, -0.7) / 2.
    policy.learn([[-1.0, -1.4, -3.5], [-3.5, -1.4, -1.0]], [1.0, -1.0])
    assert policy.earned == pytest.approx([0.05 * 0.35, 0.0, -0.05 * 0.35], abs=1e-15)
    # To [0, 1]: (1, 1/2, 0), to a sum of one: (2/3, 1/3, 0).
    assert policy.probabilities() == pytest.approx([2 / 3, 1 / 3, 0.0])
    policy.learn([[-1.0, -1.4, -3.5]], [0.0])
    assert policy.earned[0] == pytest.approx(0.95 * 0.05 * 0.35)


def test_a_rollout_without_an_advantage_is_not_read():
    one, two = TemperaturePolicy(THREE), TemperaturePolicy(THREE)
    one.learn([[-1.0, -1.4, -3.5], [math.nan] * 3], [1.0, None])
    two.learn([[-1.0, -1.4, -3.5]], [1.0])
    assert one.earned.tolist() == two.earned.tolist()
    one.learn([[math.nan] * 3], [None])
    one.learn([], [])
    assert one.earned.tolist() == two.earned.tolist()


def test_groups_without_signal_teach_exactly_nothing():
    policy = TemperaturePolicy(THREE)
    policy.learn([[-1.0, -1.4, -3.5]] * 4, [0.0] * 4)
    assert policy.earned.tolist() == [0.0] * 3
    assert policy.probabilities().tolist() == [1 / 3] * 3


def test_at_first_every_temperature_is_equally_likely():
    policy = TemperaturePolicy(TemperaturePolicyConfig())
    chosen = [policy.choose((index + 0.5) / 10) for index in range(10)]
    assert chosen == list(TemperaturePolicyConfig().temperature_factors)


def test_the_nucleus_holds_the_most_likely_and_keeps_their_proportions():
    probabilities = numpy.array([0.15, 0.4, 0.15, 0.3])
    # 0.4 + 0.3 = 0.7 is enough: 4/7 and 3/7.
    assert [nucleus_draw(probabilities, 0.7, draw) for draw in (0.0, 0.571, 0.572, 0.999)] == [1, 1, 3, 3]
    # 0.71 needs one of two equal ones: both are in.
    assert {nucleus_draw(probabilities, 0.71, draw / 100) for draw in range(100)} == {0, 1, 2, 3}
    assert nucleus_draw(probabilities, 0.3, 0.99) == 1


@given(SCORES, st.floats(0.01, 1), st.floats(0, 1, exclude_max=True))
def test_a_draw_never_takes_a_temperature_of_probability_zero(scores, mass, draw):
    probabilities = sparsemax(numpy.array(scores))
    assert probabilities[nucleus_draw(probabilities, mass, draw)] > 0


def test_the_order_of_rollouts_does_not_matter():
    generator = numpy.random.default_rng(0)
    logprobs, advantages = generator.normal(size=(5, 3)), generator.normal(size=5).tolist()
    one, two = TemperaturePolicy(THREE), TemperaturePolicy(THREE)
    one.learn(logprobs, advantages)
    two.learn(logprobs[::-1], advantages[::-1])
    assert one.earned == pytest.approx(two.earned, abs=1e-15)


def test_a_resumed_policy_goes_on_bit_for_bit():
    one, two = TemperaturePolicy(THREE), TemperaturePolicy(THREE)
    one.learn([[-1.0, -1.1, -1.3]], [0.7])
    two.load_state_dict(one.state_dict())
    for each in (one, two):
        each.learn([[-0.5, -0.4, -0.6]], [-0.2])
    assert one.earned.tolist() == two.earned.tolist()
    assert one.choose(0.4) == two.choose(0.4)


def test_what_does_not_fit_is_refused():
    policy = TemperaturePolicy(THREE)
    with pytest.raises(CheckpointError, match="temperature factors"):
        TemperaturePolicy(TemperaturePolicyConfig(temperature_factors=(0.5, 1.0, 1.5))).load_state_dict(
            policy.state_dict()
        )
    with pytest.raises(CheckpointError, match="another form"):
        policy.load_state_dict({})
    with pytest.raises(ValueError, match="finite"):
        policy.learn([[math.nan, 0.0, 0.0]], [1.0])
    with pytest.raises(ValueError, match="its advantage"):
        policy.learn([[0.0, 0.0, 0.0]], [])
    for factors in ((), (1.0, 0.5), (0.0, 1.0), (1.0, 1.0)):
        with pytest.raises(ValidationError, match="temperature_factors"):
            TemperaturePolicyConfig(temperature_factors=factors)
