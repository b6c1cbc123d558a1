"""Clipped surrogate whose upper clip keeps a gradient (AEPO, arXiv:2510.14545). Letters: B rows, T tokens.

The paper's: where rho > 1 + e_h and A > 0, PPO's constant (1 + e_h) A becomes (1 + e_h) / sg(rho) * rho * A, sg without
gradient: the same value, with the gradient (1 + e_h) A grad log pi, where PPO has none. Where rho < 1 - e_l and A < 0,
there is none as in PPO. All tokens that the upper clip meets keep it; most of them are uncertain ones.

Differs from the authors' code: no dual clip of negative advantages, which no objective here has.
"""

from dataclasses import replace

from midcourse.objectives.base import ObjectiveInputs, ObjectiveOutput
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective


class BalancedClippedObjective:
    """`ClippedObjective` to the last bit of its value, with a gradient on tokens clipped from above."""

    def __init__(self, config: ClippedConfig) -> None:
        self.config = config
        self._clipped = ClippedObjective(config)
        self.aggregation: str = config.aggregation
        self.normalization_tokens = config.normalization_tokens
        self.kl_coefficient = config.kl_coefficient

    def __call__(self, inputs: ObjectiveInputs) -> ObjectiveOutput:
        """Return the loss of one micro-batch. Metrics are those of `ClippedObjective`, and raises as it does.

        `clip_fraction_high` counts tokens whose ratio is over the bound, though they train.
        """
        output = self._clipped(inputs)
        upper = 1 + self.config.clip_high
        log_ratio_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).detach()
        clipped_BT = inputs.trained_BT & (log_ratio_BT.exp() > upper) & (inputs.advantages_BT > 0)
        factor_BT = upper * inputs.coefficients_BT * inputs.weights_BT * inputs.advantages_BT
        # rho / sg(rho) - 1 has the value 0 and the gradient of log pi.
        pull_BT = (inputs.logprobs_BT - inputs.logprobs_BT.detach()).masked_fill(~clipped_BT, 0.0)
        return replace(output, loss=output.loss - (factor_BT.masked_fill(~clipped_BT, 0.0) * pull_BT).sum())
