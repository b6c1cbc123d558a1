"""Clipped surrogate with a weight on each token (RTI Eq. 7; all weights 1: GRPO, RTI Eq. 2).

Letters: B rows, T tokens.
"""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.objectives.base import ObjectiveInputs, ObjectiveOutput
from midcourse.objectives.kl import k3_divergence

if TYPE_CHECKING:
    from torch import Tensor


class ClippedConfig(BaseModel):
    """Where the importance ratio is clipped, how tokens are averaged, and the pull to a reference policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    clip_low: float = Field(default=0.2, gt=0, le=1)
    """Ratios below 1 - clip_low stop counting where the advantage is negative."""
    clip_high: float = Field(default=0.2, gt=0)
    """Ratios above 1 + clip_high stop counting where the advantage is positive; above clip_low: DAPO's clip-higher."""
    aggregation: Literal["seq-mean-token-mean", "token-mean", "seq-sum-norm"] = "seq-mean-token-mean"
    """How tokens and rows are averaged: GRPO, DAPO, Dr. GRPO."""
    normalization_tokens: int | None = Field(default=None, ge=1)
    """The constant length that seq-sum-norm divides by, in tokens; for no other aggregation."""
    kl_coefficient: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Factor on the k3 divergence from the initial policy. 0 (RTI Eq. 7 has none) makes no reference pass."""

    @model_validator(mode="after")
    def _length_goes_with_its_aggregation(self) -> Self:
        if (self.aggregation == "seq-sum-norm") != (self.normalization_tokens is not None):
            raise ValueError(
                "normalization_tokens must be set for aggregation seq-sum-norm and for no other: "
                f"got {self.normalization_tokens} with {self.aggregation}"
            )
        return self


class ClippedObjective:
    """Loss = -sum over trained tokens of coefficient * weight * min(rho A, clip(rho, 1 - low, 1 + high) A).

    rho = exp(log pi - log pi_old); RTI Eq. 7. With `kl_coefficient` the k3 divergence from the reference is added
    under the same coefficients, without the weights (no such term in Eq. 7). A factor of 1 changes no bit, so
    weights of 1 are GRPO exactly.
    """

    def __init__(self, config: ClippedConfig) -> None:
        self.config = config
        self.aggregation: str = config.aggregation
        self.normalization_tokens = config.normalization_tokens
        self.kl_coefficient = config.kl_coefficient

    def __call__(self, inputs: ObjectiveInputs) -> ObjectiveOutput:
        """Return the loss of one micro-batch; metrics are sums over its trained tokens.

        Raises:
            ValueError: `kl_coefficient` is not 0 and there are no reference log-probabilities.
        """
        ignored_BT = ~inputs.trained_BT
        # Everything is cleared before any arithmetic: 0 * NaN would be NaN, in the gradient too.
        logprobs_BT = inputs.logprobs_BT.masked_fill(ignored_BT, 0.0)
        old_logprobs_BT = inputs.old_logprobs_BT.masked_fill(ignored_BT, 0.0)
        advantages_BT = inputs.advantages_BT.masked_fill(ignored_BT, 0.0)
        weights_BT = inputs.weights_BT.masked_fill(ignored_BT, 0.0)
        coefficients_BT = inputs.coefficients_BT.masked_fill(ignored_BT, 0.0)
        log_ratio_BT = logprobs_BT - old_logprobs_BT
        ratio_BT = log_ratio_BT.exp()
        bounded_BT = ratio_BT.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        gain_BT = (ratio_BT * advantages_BT).minimum(bounded_BT * advantages_BT)
        loss = -(coefficients_BT * (weights_BT * gain_BT)).sum()
        low_BT = (ratio_BT < 1 - self.config.clip_low) & (advantages_BT < 0)
        high_BT = (ratio_BT > 1 + self.config.clip_high) & (advantages_BT > 0)
        metrics = {
            "clip_fraction_low": _total(low_BT),
            "clip_fraction_high": _total(high_BT),
            # k3 of KL(old || current): tokens were drawn from the old policy.
            "approximate_kl": _total(log_ratio_BT.expm1() - log_ratio_BT),
            "ratio_mean": _total(ratio_BT.masked_fill(ignored_BT, 0.0)),
        }
        if self.kl_coefficient > 0:
            if inputs.reference_logprobs_BT is None:
                raise ValueError(f"kl_coefficient is {self.kl_coefficient}, but there are no reference_logprobs_BT")
            reference_BT = inputs.reference_logprobs_BT.masked_fill(ignored_BT, 0.0)
            divergence_BT = k3_divergence(logprobs_BT, reference_BT)
            loss = loss + self.kl_coefficient * (coefficients_BT * divergence_BT).sum()
            metrics["reference_kl"] = _total(divergence_BT)
        maxima = {"ratio_max": float(ratio_BT.detach().masked_fill(ignored_BT, 0.0).max())}
        return ObjectiveOutput(loss=loss, metrics=metrics, maxima=maxima)


def _total(values_BT: "Tensor") -> float:
    return float(values_BT.detach().double().sum())
