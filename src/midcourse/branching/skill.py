"""Does the controller know what branching brings? Numbers over traces that it had not seen (RAIL, Figures 3, 4 and 7).

The paper's: mean absolute error, sign agreement, Pearson's r, frequency of actions. Ours: balanced accuracy and the
majority's accuracy beside sign agreement, since nine gains of ten may have one sign. Letters: N traces, K cells.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from midcourse.branching.promotion import agrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """How predictions and gains agree; None where the traces do not say."""

    traces: int
    mean_absolute_error: float | None
    sign_agreement: float | None  # share of traces with both positive or neither
    majority_agreement: float | None  # of the best constant answer, chosen afterwards
    balanced_accuracy: float | None  # mean of sign agreement over gains > 0 and over the others; None: one is missing
    pearson: float | None  # None: fewer than two traces, or no spread in one of both

    def metrics(self) -> dict[str, float]:
        """Return the numbers that are there, by name."""
        return {name: float(value) for name, value in asdict(self).items() if value is not None}


def skill(predicted: Sequence[float], gained: Sequence[float]) -> Skill:
    """Return how well [N] predictions, each made before its outcome was seen, told [N] gains.

    Raises:
        ValueError: the lengths differ.
    """
    if len(predicted) != len(gained):
        raise ValueError(f"each prediction needs its gain: got {len(predicted)} and {len(gained)}")
    count = len(gained)
    if not count:
        return Skill(
            traces=0,
            mean_absolute_error=None,
            sign_agreement=None,
            majority_agreement=None,
            balanced_accuracy=None,
            pearson=None,
        )
    pairs = list(zip(predicted, gained, strict=True))
    positive = [agrees(guess, gain) for guess, gain in pairs if gain > 0]
    others = [agrees(guess, gain) for guess, gain in pairs if not gain > 0]
    return Skill(
        traces=count,
        mean_absolute_error=math.fsum(abs(guess - gain) for guess, gain in pairs) / count,
        sign_agreement=(sum(positive) + sum(others)) / count,
        majority_agreement=max(len(positive), len(others)) / count,
        balanced_accuracy=(
            (sum(positive) / len(positive) + sum(others) / len(others)) / 2 if positive and others else None
        ),
        pearson=pearson(predicted, gained),
    )


def pearson(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the correlation of [N] pairs, in [-1, 1]; None for fewer than two, or without spread in one of both."""
    if len(one) != len(other):
        raise ValueError(f"a correlation is of pairs: got {len(one)} and {len(other)}")
    if len(one) < 2 or min(one) == max(one) or min(other) == max(other):
        return None
    mean_one, mean_other = math.fsum(one) / len(one), math.fsum(other) / len(other)
    first = [value - mean_one for value in one]
    second = [value - mean_other for value in other]
    together = math.fsum(a * b for a, b in zip(first, second, strict=True))
    spread = math.sqrt(math.fsum(a * a for a in first)) * math.sqrt(math.fsum(b * b for b in second))
    return min(1.0, max(-1.0, together / spread)) if spread else None


def action_map(cells: Sequence[int], names: Sequence[str]) -> Mapping[str, int]:
    """Return how often each of the K cells was run, by its name: does the controller choose one thing everywhere?"""
    counts = [0] * len(names)
    for cell in cells:
        counts[cell] += 1
    return dict(zip(names, counts, strict=True))
