"""What an objective is: per-token terms times coefficients that already hold every denominator.

Letters: B rows, T tokens. A coefficient is 1/denominator over the whole update, so that micro-batches just add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInputs:
    """One micro-batch. Entries off `trained_BT` are ignored, whatever they hold (NaN included)."""

    logprobs_BT: "Tensor"  # nats, policy being trained, at the sampling temperature; carries the gradient
    old_logprobs_BT: "Tensor"  # nats, the trainer's own pass at the rollout weights; no gradient
    advantages_BT: "Tensor"  # no gradient
    weights_BT: "Tensor"  # factor on a token's loss, no gradient
    coefficients_BT: "Tensor"  # 1/denominator of the aggregation, over the whole update
    trained_BT: "Tensor"  # bool
    reference_logprobs_BT: "Tensor | None" = None  # nats, reference policy; None where no KL is asked for
    intervention_BT: "Tensor | None" = None  # bool, trained tokens that the intervention wrote; None: there are none
    teacher_logprobs_BT: "Tensor | None" = None  # nats, a teacher's; None where it did not score every row


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveOutput:
    """`loss` is this micro-batch's share of the update's loss; metrics are sums that add over micro-batches.

    A metric is a sum over trained tokens and is reported as their mean; of `maxima` the largest is reported.
    """

    loss: "Tensor"  # [] to minimise
    metrics: Mapping[str, float]
    maxima: Mapping[str, float] = field(default_factory=dict)


class Objective(Protocol):
    """The loss of a method."""

    aggregation: str  # a name of objectives.reduction
    normalization_tokens: int | None  # the length that aggregation seq-sum-norm divides by; None for the others
    kl_coefficient: float  # 0: no reference pass is made

    def __call__(self, inputs: ObjectiveInputs) -> ObjectiveOutput:
        """Return the loss of one micro-batch."""
        ...
