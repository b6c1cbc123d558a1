"""Distance to a reference policy from sampled tokens alone. Letters: B rows, T tokens."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def k3_divergence(logprobs_BT: "Tensor", reference_logprobs_BT: "Tensor") -> "Tensor":
    """Return [B, T] exp(d) - d - 1 with d = reference - policy: the k3 estimate of KL(policy || reference) a token.

    Never negative, 0 where both agree, and unbiased if the policy drew the token. As a loss its gradient leaves out
    the part that comes from the sampling (arXiv:2402.03300, Eq. 4, does so too).

    Args:
        logprobs_BT: [B, T] nats, the policy; carries the gradient where it has one.
        reference_logprobs_BT: [B, T] nats, the reference.
    """
    difference_BT = reference_logprobs_BT - logprobs_BT
    return difference_BT.expm1() - difference_BT
