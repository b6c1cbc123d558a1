"""How predictions are fitted to gains: Huber loss, recency weights, optimizer (RAIL, Eq. 6 and B.3.3).

L = sum_j w_j huber(predicted_j - gained_j) / sum_j w_j over the last W traces. Letters: N traces, B rows of a batch.

The paper's: the loss, the window, weights that fall exponentially with a trace's age. Ours: Huber's delta (0.1: gains
are at most 0.5, so 1 would be the squared error), W, the half-life, AdamW, and that a step looks at a systematic
sample of the window, drawn by the weights: its gradient is on average that of the equation, at an eighth of the cost.
"""

import math

import numpy
from numpy.typing import NDArray

Array = NDArray[numpy.float64]


def recency_weights(count: int, half_life: float) -> Array:
    """Return [count] w = 2^(-age / half_life) for ages 0, 1, ..., newest first."""
    return numpy.exp2(-numpy.arange(count) / half_life)


def huber(errors: Array, delta: float) -> Array:
    """Return e^2 / 2 where |e| <= delta, and delta (|e| - delta / 2) beyond."""
    sizes = numpy.abs(errors)
    return numpy.where(sizes <= delta, 0.5 * errors * errors, delta * (sizes - 0.5 * delta))


def huber_slope(errors: Array, delta: float) -> Array:
    """Return the derivative of `huber`: the error, held within delta."""
    return numpy.clip(errors, -delta, delta)


def systematic_sample(weights: Array, size: int, offset: float) -> NDArray[numpy.int64]:
    """Return [size] positions, each drawn size * w / sum w times on average, and never further from it than one.

    Args:
        weights: [N] at least 0, not all 0.
        size: how many.
        offset: uniform in [0, 1): the only randomness.
    """
    cumulative = numpy.cumsum(weights)
    places = (numpy.arange(size) + offset) / size * cumulative[-1]
    return numpy.minimum(numpy.searchsorted(cumulative, places, side="right"), len(weights) - 1)


def limited(gradient: Array, max_norm: float) -> Array:
    """Return the gradient, scaled down to `max_norm` if it is longer."""
    norm = math.sqrt(float(gradient @ gradient))
    return gradient * (max_norm / norm) if norm > max_norm else gradient


class AdamW:
    """Adam with decoupled weight decay (arXiv:1711.05101, Algorithm 2, constant schedule) on one parameter vector."""

    def __init__(
        self,
        size: int,
        *,
        learning_rate: float,
        weight_decay: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        self._learning_rate, self._weight_decay = learning_rate, weight_decay
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self.first: Array = numpy.zeros(size)
        self.second: Array = numpy.zeros(size)
        self.steps = 0

    def step(self, parameters: Array, gradient: Array) -> None:
        """Move the parameters in place."""
        self.steps += 1
        self.first += (1.0 - self._beta1) * (gradient - self.first)
        self.second += (1.0 - self._beta2) * (gradient * gradient - self.second)
        deviation = numpy.sqrt(self.second / (1.0 - self._beta2**self.steps)) + self._epsilon
        parameters *= 1.0 - self._learning_rate * self._weight_decay
        parameters -= self._learning_rate / (1.0 - self._beta1**self.steps) * self.first / deviation
