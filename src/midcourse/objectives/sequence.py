"""From tokens to whole sequences, for objectives that take one number a row. Letters: B rows, T tokens."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

AGGREGATION = "seq-mean-token-sum"
"""The aggregation of such objectives: the coefficient of a row is the same on each of its tokens."""


def row_sums(values_BT: "Tensor", trained_BT: "Tensor") -> "Tensor":
    """Return [B] the sum of each row over its trained tokens; what stands elsewhere, NaN included, is not read."""
    return values_BT.masked_fill(~trained_BT, 0.0).sum(dim=1)


def row_values(values_BT: "Tensor", trained_BT: "Tensor") -> "Tensor":
    """Return [B] the value that stands on every trained token of a row; 0 for a row without any."""
    first_B1 = trained_BT.to(values_BT.dtype).argmax(dim=1, keepdim=True)
    return values_BT.masked_fill(~trained_BT, 0.0).gather(1, first_B1).squeeze(1)
