"""TAMPO: the sampling temperature as an arm of its own policy (arXiv:2602.11779).

Letters: K temperatures, N rollouts of one update.

The paper's: each rollout says how likely it is at each temperature, l_T = mean_t log pi_T(y_t); sparsemax over the
temperatures makes weights of it, and A_T = weight_T * A, averaged over the update, is what a temperature has earned;
an exponential mean with 0.05 keeps it. pi(T) is that mean, brought to [0, 1] and to a sum of 1; the temperature is
drawn from its nucleus of 0.7 (the paper's greedy choice was worst). No rollout is drawn for it.

Ours: the temperatures, as factors on the run's own (the paper's set is not known; its temperatures rose to 1.3); the
exponential mean begins at 0; while all have earned the same, and before the first update, all are equally likely; of
temperatures equal to the last of the nucleus all are in it (else the start would favour the first of the list).
"""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.errors import CheckpointError, ConfigError

Array = NDArray[numpy.float64]


class TemperaturePolicyConfig(BaseModel):
    """Which temperatures there are, and how what they earned is kept and used."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    temperature_factors: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    """Times the run's temperature, increasing, in [0.01, 100]: log-probabilities stay finite. Ours."""
    averaging_rate: float = Field(default=0.05, gt=0, le=1)
    """Weight of an update in the exponential mean. Paper: 0.05."""
    nucleus: float = Field(default=0.7, gt=0, le=1)
    """Probability of the temperatures that are drawn from, most likely first. Paper: 0.7."""

    @model_validator(mode="after")
    def _factors_increase(self) -> Self:
        factors = self.temperature_factors
        if not factors or not all(0.01 <= one <= 100 for one in factors) or sorted(set(factors)) != list(factors):
            raise ConfigError(f"temperature_factors must be increasing and in [0.01, 100]: got {list(factors)}")
        return self


class TemperaturePolicy:
    """What each temperature has earned, and the choice among them."""

    def __init__(self, config: TemperaturePolicyConfig) -> None:
        self.config = config
        self._earned = numpy.zeros(len(config.temperature_factors))

    @property
    def earned(self) -> Array:
        """[K] the exponential mean of A_T."""
        return self._earned.copy()

    def probabilities(self) -> Array:
        """Return [K] pi(T), before the nucleus is taken."""
        low, high = self._earned.min(), self._earned.max()
        if low == high:
            return numpy.full(len(self._earned), 1.0 / len(self._earned))
        scaled = (self._earned - low) / (high - low)
        return scaled / scaled.sum()

    def choose(self, draw: float) -> float:
        """Return a temperature factor.

        Args:
            draw: uniform in [0, 1), of the choice's own: keyed by run and update, and by the task where each has one.
        """
        return self.config.temperature_factors[nucleus_draw(self.probabilities(), self.config.nucleus, draw)]

    def learn(self, mean_logprobs: ArrayLike, advantages: Sequence[float | None]) -> None:
        """Take what the rollouts of one update earned; without a scored rollout nothing changes.

        Args:
            mean_logprobs: [N, K] nats, of each rollout the mean log-probability of its tokens at each temperature,
                under the policy that drew them. Rows of rollouts without an advantage are not read.
            advantages: [N] of the rollouts; None where one could not be scored.

        Raises:
            ValueError: another shape, or a number that is not finite.
        """
        logprobs = numpy.array(mean_logprobs, dtype=numpy.float64).reshape(-1, len(self._earned))
        if len(logprobs) != len(advantages):
            raise ValueError(
                f"each rollout needs its advantage: got {len(logprobs)} rows, {len(advantages)} advantages"
            )
        scored = [(row, value) for row, value in zip(logprobs, advantages, strict=True) if value is not None]
        if not all(numpy.isfinite(row).all() and numpy.isfinite(value) for row, value in scored):
            raise ValueError("log-probabilities and advantages of scored rollouts must be finite")
        if not scored:
            return
        gained = sum((sparsemax(row) * value for row, value in scored), numpy.zeros_like(self._earned)) / len(scored)
        rate = self.config.averaging_rate
        self._earned = (1.0 - rate) * self._earned + rate * gained

    def state_dict(self) -> dict[str, Array]:
        """Return everything that a resumed run must know."""
        return {"earned": self._earned.copy(), "temperature_factors": numpy.array(self.config.temperature_factors)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take what `state_dict` gave.

        Raises:
            CheckpointError: it is of another form, or of other temperatures.
        """
        if set(state) != {"earned", "temperature_factors"} or state["earned"].shape != self._earned.shape:
            raise CheckpointError(f"TAMPO's state has another form: got {sorted(state)}")
        if not numpy.array_equal(state["temperature_factors"], self.config.temperature_factors):
            raise CheckpointError(
                f"TAMPO's state is of temperature factors {state['temperature_factors'].tolist()}, "
                f"expected {list(self.config.temperature_factors)}"
            )
        self._earned = state["earned"].astype(numpy.float64)


def sparsemax(scores: Array) -> Array:
    """Return [K] the distribution nearest to the scores: max(score - t, 0) with the t that makes the sum 1.

    Source: Martins and Astudillo, arXiv:1602.02068, Algorithm 1.
    """
    ordered = numpy.sort(scores)[::-1]
    sums = numpy.cumsum(ordered)
    counts = numpy.arange(1, len(scores) + 1)
    size = int(counts[1.0 + counts * ordered > sums][-1])
    return numpy.maximum(scores - (sums[size - 1] - 1.0) / size, 0.0)


def nucleus_draw(probabilities: Array, mass: float, draw: float) -> int:
    """Return a place by its probability among the most likely ones that hold `mass` together.

    Args:
        probabilities: [K] sum to 1. Places as likely as the last of the nucleus are in it too.
        mass: in (0, 1].
        draw: uniform in [0, 1).
    """
    ordered = numpy.sort(probabilities)[::-1]
    # The sum of all can be a hair under 1.
    last = min(int(numpy.searchsorted(numpy.cumsum(ordered), mass - 1e-12)), len(ordered) - 1)
    kept = numpy.where(probabilities >= ordered[last], probabilities, 0.0)
    cumulative = numpy.cumsum(kept)
    return int(numpy.searchsorted(cumulative, draw * cumulative[-1], side="right"))
