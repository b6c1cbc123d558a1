import math

import pytest
import torch
from tests.objectives.test_clipped import make_inputs

from midcourse.advantages.entropy import entropy_weights
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective


def test_one_deviation_of_entropy_is_a_fifth_of_the_advantage():
    # Mean 2, deviation 1.
    assert entropy_weights([[1.0, 3.0], [3.0, 1.0]]) == [[0.8, 1.2], [1.2, 0.8]]
    # Mean 1, deviation sqrt(2): z of 3 is sqrt(2).
    assert entropy_weights([[0.0], [0.0, 3.0], [1.0]], share=0.5)[1][1] == pytest.approx(1 + 0.5 * 2 / 1.5**0.5)


def test_the_mean_weight_is_one():
    weights = entropy_weights([[0.1, 0.9, 0.4], [0.0, 2.5]])
    assert sum(map(sum, weights)) == pytest.approx(5.0)


def test_equal_entropies_give_exactly_one():
    assert entropy_weights([[0.1] * 3, [], [0.1]]) == [[1.0] * 3, [], [1.0]]
    assert entropy_weights([[], []]) == [[], []]


def test_a_weight_never_turns_the_sign():
    assert entropy_weights([[0.0, *[1.0] * 99]], share=1.0)[0][0] == 0.0  # z is -sqrt(99)


def test_as_weights_they_are_the_papers_advantage_under_the_clip():
    generator = torch.Generator().manual_seed(0)
    logprobs, advantages = (torch.randn(2, 6, generator=generator, dtype=torch.float64).tolist() for _ in range(2))
    weights = entropy_weights(torch.rand(2, 6, generator=generator, dtype=torch.float64).tolist())
    scaled = [[w * a for w, a in zip(*rows, strict=True)] for rows in zip(weights, advantages, strict=True)]
    old = [[0.0] * 6] * 2
    one, two = make_inputs(logprobs, old, advantages, weights=weights), make_inputs(logprobs, old, scaled)
    for inputs in (one, two):
        ClippedObjective(ClippedConfig())(inputs).loss.backward()
    assert torch.allclose(one.logprobs_BT.grad, two.logprobs_BT.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("entropies", "share"), [([[math.nan]], 0.2), ([[1.0]], -0.1)])
def test_what_is_no_entropy_is_refused(entropies, share):
    with pytest.raises(ValueError, match="must be"):
        entropy_weights(entropies, share=share)
