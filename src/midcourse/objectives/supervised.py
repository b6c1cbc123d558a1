"""Imitation: the likelihood of what somebody else wrote. Letters: B rows, T tokens."""

from midcourse.objectives.base import ObjectiveInputs, ObjectiveOutput


class SupervisedObjective:
    """Loss = -(mean over the trained tokens of the optimizer step of log pi(y_t)).

    The denominator counts the tokens of all micro-batches together: a mean of their means would weigh the tokens of a
    short micro-batch more, the known mistake of gradient accumulation. Log-probabilities are those at the rollout's
    temperature, as everywhere here, so what is fitted is the distribution that the policy samples from. A token's
    weight multiplies its term; advantages are not read: a row that is here is imitated.
    """

    aggregation: str = "token-mean"
    normalization_tokens: int | None = None
    kl_coefficient: float = 0.0

    def __call__(self, inputs: ObjectiveInputs) -> ObjectiveOutput:
        """Return the loss of one micro-batch."""
        ignored_BT = ~inputs.trained_BT
        # Everything is cleared before any arithmetic: 0 * NaN would be NaN, in the gradient too.
        logprobs_BT = inputs.logprobs_BT.masked_fill(ignored_BT, 0.0)
        weights_BT = inputs.weights_BT.masked_fill(ignored_BT, 0.0)
        coefficients_BT = inputs.coefficients_BT.masked_fill(ignored_BT, 0.0)
        return ObjectiveOutput(
            loss=-(coefficients_BT * (weights_BT * logprobs_BT)).sum(),
            metrics={"negative_log_likelihood": -float(logprobs_BT.detach().double().sum())},
        )
