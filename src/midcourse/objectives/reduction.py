"""From sums to means: the factor on each row's tokens that holds every denominator of the aggregation.

All rows that one optimizer step sees are given at once, so the denominators are those of the step, and the losses
of its micro-batches just add up. Only rows that train are given: what has no signal is in no denominator.
"""

from collections.abc import Sequence

AGGREGATIONS = ("seq-mean-token-mean", "token-mean", "seq-sum-norm", "seq-mean-token-sum")
"""seq-mean-token-mean: GRPO. token-mean: DAPO. seq-sum-norm: Dr. GRPO. seq-mean-token-sum: one number a sequence."""


def row_coefficients(
    trained_lengths: Sequence[Sequence[int]],
    *,
    aggregation: str,
    normalization_tokens: int | None = None,
) -> list[list[float]]:
    """Return for each row of each group the factor on every trained token of that row.

    - `seq-mean-token-mean`: 1 / (groups * rows of the group * tokens of the row). RTI Eq. 2 and Eq. 7 (1/G, 1/|tau|)
      averaged over tasks.
    - `token-mean`: 1 / (tokens of all rows). DAPO, arXiv:2503.14476, Eq. 8.
    - `seq-sum-norm`: 1 / (groups * rows of the group * normalization_tokens). Dr. GRPO, arXiv:2503.20783, Sec. 3.3.
    - `seq-mean-token-sum`: 1 / (groups * rows of the group), for objectives that take one number a sequence.

    All but `token-mean` are means over groups of means over rows, not over all rows: the equations average inside
    a task first, and a task whose group has grown or lost a member keeps its weight. With groups of one size both
    readings are the same.

    Args:
        trained_lengths: for each group its rows' numbers of trained tokens. A row without any counts as a row.
        aggregation: one of AGGREGATIONS.
        normalization_tokens: the constant length that `seq-sum-norm` divides by, >= 1; None for the others.

    Raises:
        ValueError: an unknown aggregation, `normalization_tokens` missing or given where it is not used, or a
            negative length.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {aggregation!r}; known: {', '.join(AGGREGATIONS)}")
    if (aggregation == "seq-sum-norm") != (normalization_tokens is not None):
        raise ValueError(
            f"seq-sum-norm needs normalization_tokens and no other aggregation uses it: got {aggregation!r} "
            f"with {normalization_tokens}"
        )
    if normalization_tokens is not None and normalization_tokens < 1:
        raise ValueError(f"normalization_tokens must be at least 1: got {normalization_tokens}")
    if any(length < 0 for lengths in trained_lengths for length in lengths):
        raise ValueError(f"trained_lengths must not be negative: got {trained_lengths}")
    num_groups = sum(1 for lengths in trained_lengths if lengths)
    num_tokens = sum(length for lengths in trained_lengths for length in lengths)
    coefficients = []
    for lengths in trained_lengths:
        if aggregation == "token-mean":
            coefficients.append([1.0 / max(num_tokens, 1)] * len(lengths))
        elif aggregation == "seq-mean-token-sum":
            coefficients.append([1.0 / (num_groups * len(lengths))] * len(lengths))
        elif normalization_tokens is not None:
            coefficients.append([1.0 / (num_groups * len(lengths) * normalization_tokens)] * len(lengths))
        else:
            coefficients.append([1.0 / (num_groups * len(lengths) * max(length, 1)) for length in lengths])
    return coefficients
