"""Advantage regression (papers: "MInTRL"): the log-ratio of a whole response is fitted to its advantage.

The text of the paper has no formula. From it are: sequence level, no division by behaviour probabilities, the anchors
proxy and const. Ours, after A*PO (arXiv:2505.20686): the square, the sum over tokens, beta. Letters: B rows, T tokens.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.objectives.base import ObjectiveInputs, ObjectiveOutput
from midcourse.objectives.sequence import AGGREGATION, row_sums, row_values

if TYPE_CHECKING:
    from torch import Tensor


class RegressionConfig(BaseModel):
    """What a response's log-ratio is fitted to, and what stands in it for tokens of the intervention."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    anchor: Literal["proxy", "const"] = "const"
    """Anchor of intervention tokens: the policy's own log-probability at the rollout weights, or `kappa`."""
    kappa: float = Field(default=-0.2, le=0, allow_inf_nan=False)
    """Anchor of const, nats a token: what the judge gives its own tokens on average. Paper: -0.2 math, -0.1 code."""
    beta: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Advantage units a nat. About 5 / (loss tokens of a response at the start); const: beta * S at most 0.25. Ours."""
    huber_delta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Residuals beyond this count linearly, advantage units; none squares all of them. Ours."""
    divide_by_two_beta: bool = False
    """Divide the loss by 2 beta, so that its gradient at the rollout weights is that of REINFORCE, summed. Ours."""


class RegressionObjective:
    """Loss = mean over responses of (beta * sum_t [log pi(y_t) - a_t] - A)^2.

    a_t = log pi_old(y_t); on tokens of the intervention the same (proxy) or kappa (const). At pi = pi_old the
    gradient is -2 beta (A + beta S) sum_t grad log pi(y_t) with S = sum over intervention tokens of
    (kappa - log pi_old); proxy: S = 0. A token's weight multiplies its term of the sum.
    """

    def __init__(self, config: RegressionConfig) -> None:
        self.config = config
        self.aggregation = AGGREGATION
        self.normalization_tokens: int | None = None
        self.kl_coefficient = 0.0

    def __call__(self, inputs: ObjectiveInputs) -> ObjectiveOutput:
        """Return the loss of one micro-batch; every row holds a whole response."""
        config, trained_BT = self.config, inputs.trained_BT
        ignored_BT = ~trained_BT
        # Everything is cleared before any arithmetic: 0 * NaN would be NaN, in the gradient too.
        logprobs_BT = inputs.logprobs_BT.masked_fill(ignored_BT, 0.0)
        old_logprobs_BT = inputs.old_logprobs_BT.masked_fill(ignored_BT, 0.0)
        weights_BT = inputs.weights_BT.masked_fill(ignored_BT, 0.0)
        anchors_BT = old_logprobs_BT
        if config.anchor == "const" and inputs.intervention_BT is not None:
            anchors_BT = anchors_BT.masked_fill(inputs.intervention_BT & trained_BT, config.kappa)
        advantages_B = row_values(inputs.advantages_BT, trained_BT)
        coefficients_B = row_values(inputs.coefficients_BT, trained_BT)
        residual_B = config.beta * (weights_BT * (logprobs_BT - anchors_BT)).sum(dim=1) - advantages_B
        loss = (coefficients_B * self._penalty(residual_B)).sum()
        if config.divide_by_two_beta:
            loss = loss / (2 * config.beta)
        log_ratio_BT = (logprobs_BT - old_logprobs_BT).detach()
        bonus_B = config.beta * (weights_BT * (old_logprobs_BT - anchors_BT)).sum(dim=1).abs()
        return ObjectiveOutput(
            loss=loss,
            metrics={"approximate_kl": float((log_ratio_BT.expm1() - log_ratio_BT).double().sum())},
            maxima={
                "sequence_log_ratio_max": float(row_sums(log_ratio_BT, trained_BT).abs().max()),
                "anchor_bonus_max": float(bonus_B.detach().max()),  # |beta S|, advantage units
                "residual_max": float(residual_B.detach().abs().max()),
            },
        )

    def _penalty(self, residual_B: "Tensor") -> "Tensor":
        limit = self.config.huber_delta
        if limit is None:
            return residual_B.square()
        size_B = residual_B.abs()
        return residual_B.square().where(size_B <= limit, limit * (2 * size_B - limit))
