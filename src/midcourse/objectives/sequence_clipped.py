"""Clipped surrogate of whole responses (GSPO, arXiv:2507.18071, Eq. 5-7). Letters: B rows, T tokens."""

from pydantic import BaseModel, ConfigDict, Field

from midcourse.objectives.base import ObjectiveInputs, ObjectiveOutput
from midcourse.objectives.sequence import AGGREGATION, row_values


class SequenceClippedConfig(BaseModel):
    """Where the importance ratio of a response is clipped."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    clip_low: float = Field(default=3e-4, gt=0, le=1)
    """Ratios below 1 - clip_low stop counting where the advantage is negative. Paper: 3e-4."""
    clip_high: float = Field(default=4e-4, gt=0)
    """Ratios above 1 + clip_high stop counting where the advantage is positive. Paper: 4e-4."""


class SequenceClippedObjective:
    """Loss = -mean over responses of min(s A, clip(s, 1 - low, 1 + high) A).

    s = exp(mean_t [log pi(y_t) - log pi_old(y_t)]), the likelihood ratio of a response to the power of 1/length (Eq.
    7). A token's weight multiplies its log-ratio in the mean.
    """

    def __init__(self, config: SequenceClippedConfig) -> None:
        self.config = config
        self.aggregation = AGGREGATION
        self.normalization_tokens: int | None = None
        self.kl_coefficient = 0.0

    def __call__(self, inputs: ObjectiveInputs) -> ObjectiveOutput:
        """Return the loss of one micro-batch; every row holds a whole response."""
        trained_BT = inputs.trained_BT
        ignored_BT = ~trained_BT
        # Everything is cleared before any arithmetic: 0 * NaN would be NaN, in the gradient too.
        logprobs_BT = inputs.logprobs_BT.masked_fill(ignored_BT, 0.0)
        old_logprobs_BT = inputs.old_logprobs_BT.masked_fill(ignored_BT, 0.0)
        weights_BT = inputs.weights_BT.masked_fill(ignored_BT, 0.0)
        advantages_B = row_values(inputs.advantages_BT, trained_BT)
        coefficients_B = row_values(inputs.coefficients_BT, trained_BT)
        log_ratio_BT = weights_BT * (logprobs_BT - old_logprobs_BT)
        lengths_B = trained_BT.sum(dim=1).clamp(min=1)
        ratio_B = (log_ratio_BT.sum(dim=1) / lengths_B).exp()
        bounded_B = ratio_B.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        gain_B = (ratio_B * advantages_B).minimum(bounded_B * advantages_B)
        low_B = (ratio_B < 1 - self.config.clip_low) & (advantages_B < 0)
        high_B = (ratio_B > 1 + self.config.clip_high) & (advantages_B > 0)
        difference_BT = (logprobs_BT - old_logprobs_BT).detach()
        return ObjectiveOutput(
            loss=-(coefficients_B * gain_B).sum(),
            metrics={  # sums over tokens: a clipped response counts with all of its tokens
                "clip_fraction_low": float((low_B * lengths_B).sum()),
                "clip_fraction_high": float((high_B * lengths_B).sum()),
                "approximate_kl": float((difference_BT.expm1() - difference_BT).double().sum()),
                "ratio_mean": float((ratio_B.detach().double() * lengths_B).sum()),
            },
            maxima={"ratio_max": float(ratio_B.detach().max())},
        )
