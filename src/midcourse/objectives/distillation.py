"""Distillation on the policy's own tokens, as a policy gradient (on-policy distillation; PG-OPD).

A token's advantage is what a teacher thinks of it: the log-ratio of teacher to policy, on top of what the row brings.
Letters: B rows, T tokens.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from midcourse.objectives.base import ObjectiveInputs, ObjectiveOutput
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor


class DistillationObjective:
    """The clipped surrogate with A_t = A - coefficient * (log pi_old(y_t) - log pi_T(y_t)).

    A is the row's advantage: GRPO's where distillation is folded into it, else 0. What is taken off is the estimate of
    the reverse KL divergence KL(pi_old || pi_T) from the one token that was drawn; without gradient, pi_old being the
    trainer's own pass at the rollout weights. At these weights the expected gradient is that of the divergence at each
    position, given the tokens before it: no token answers for what its successors cost (discount 0).

    The teacher's numbers are an engine's. Where they are off by e, so is the advantage, by coefficient * e.
    """

    def __init__(self, config: ClippedConfig, *, coefficient: float) -> None:
        self.config = config
        self.coefficient = coefficient
        self.aggregation: str = config.aggregation
        self.normalization_tokens = config.normalization_tokens
        self.kl_coefficient = config.kl_coefficient
        self._clipped = ClippedObjective(config)

    def __call__(self, inputs: ObjectiveInputs) -> ObjectiveOutput:
        """Return the loss of one micro-batch; metrics are sums over its trained tokens.

        Raises:
            ValueError: a row that no teacher scored; and as `ClippedObjective`.
        """
        if inputs.teacher_logprobs_BT is None:
            raise ValueError("every row must have been scored by the teacher: there are no teacher_logprobs_BT")
        ignored_BT = ~inputs.trained_BT
        # Everything is cleared before any arithmetic: 0 * NaN would be NaN.
        teacher_BT = inputs.teacher_logprobs_BT.masked_fill(ignored_BT, 0.0)
        reverse_kl_BT = inputs.old_logprobs_BT.detach().masked_fill(ignored_BT, 0.0) - teacher_BT
        advantages_BT = inputs.advantages_BT.masked_fill(ignored_BT, 0.0) - self.coefficient * reverse_kl_BT
        output = self._clipped(replace(inputs, advantages_BT=advantages_BT))
        own = {"reverse_kl": _total(reverse_kl_BT), "teacher_logprob": _total(teacher_BT)}
        return replace(output, metrics={**output.metrics, **own})


def _total(values_BT: "Tensor") -> float:
    return float(values_BT.detach().double().sum())
