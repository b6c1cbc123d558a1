import numpy
import pytest
import torch

from midcourse.branching.fitting import AdamW, huber, huber_slope, limited, recency_weights, systematic_sample


def test_a_trace_counts_half_after_its_half_life():
    assert recency_weights(5, 2.0).tolist() == pytest.approx([1.0, 0.5**0.5, 0.5, 0.5**1.5, 0.25])


def test_huber_is_quadratic_up_to_delta_and_linear_beyond():
    # delta 0.1: 0.05^2 / 2; at 0.1 both forms give 0.005; 0.1 * (0.3 - 0.05)
    errors = numpy.array([0.05, -0.1, 0.3, -0.3])
    assert huber(errors, 0.1).tolist() == pytest.approx([0.00125, 0.005, 0.025, 0.025])
    assert huber_slope(errors, 0.1).tolist() == pytest.approx([0.05, -0.1, 0.1, -0.1])


def test_a_systematic_sample_is_never_further_than_one_from_its_share():
    weights = recency_weights(40, 8.0)
    shares = 16 * weights / weights.sum()
    counts = numpy.zeros(40)
    for offset in (numpy.arange(500) + 0.5) / 500:
        drawn = numpy.bincount(systematic_sample(weights, 16, offset), minlength=40)
        assert (abs(drawn - shares) < 1).all()
        counts += drawn
    assert counts / 500 == pytest.approx(shares, abs=0.01)


def test_a_systematic_sample_by_hand():
    # cumulative 1, 3, 4; places (i + 0.5) / 4 * 4 = 0.5, 1.5, 2.5, 3.5
    assert systematic_sample(numpy.array([1.0, 2.0, 1.0]), 4, 0.5).tolist() == [0, 1, 1, 2]


def test_a_trace_without_weight_is_never_drawn():
    for offset in (0.0, 0.5, 1 - 2.0**-53):
        assert 1 not in systematic_sample(numpy.array([1.0, 0.0, 1.0]), 7, offset)
        assert 0 not in systematic_sample(numpy.array([0.0, 1.0, 1.0]), 7, offset)


def test_gradients_are_scaled_down_and_never_up():
    assert limited(numpy.array([3.0, 4.0]), 1.0).tolist() == pytest.approx([0.6, 0.8])
    assert limited(numpy.array([0.3, 0.4]), 1.0).tolist() == [0.3, 0.4]


def test_the_optimizer_is_torchs():
    generator = numpy.random.default_rng(0)
    parameters = generator.normal(size=6)
    tensor = torch.nn.Parameter(torch.tensor(parameters))
    expected = torch.optim.AdamW([tensor], lr=0.01, weight_decay=0.1)
    own = AdamW(6, learning_rate=0.01, weight_decay=0.1)
    for _ in range(20):
        gradient = generator.normal(size=6)
        tensor.grad = torch.tensor(gradient)
        expected.step()
        own.step(parameters, gradient)
    assert parameters == pytest.approx(tensor.detach().numpy(), rel=1e-12)


def test_the_first_step_of_the_optimizer_by_hand():
    # moments over their corrections are the gradient and its square, so the step is the learning rate
    parameters = numpy.array([1.0, -2.0])
    AdamW(2, learning_rate=0.1, weight_decay=0.5).step(parameters, numpy.array([3.0, -0.01]))
    assert parameters.tolist() == pytest.approx([1.0 * 0.95 - 0.1, -2.0 * 0.95 + 0.1], rel=1e-6)
