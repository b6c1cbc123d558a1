"""How often and where the controller looks away from its own choice (RAIL, B.3.7 and C.2, Assumption C.4).

The paper's: with probability rho_t, decaying, the least covered cell is run, ties broken by a fixed order. Ours:
rho_t = rho_0 / sqrt(1 + t / t_0), whose sum grows as sqrt(T) and so stays within the assumption's O~(sqrt(T K)).

Note: the rule does not meet Assumption C.4 as it is written. Given the past only one cell gets the mass rho_t, not each
cell rho_t / K; what holds is that cells are covered in turn.
"""

import math
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from midcourse.branching.actions import Action


class ExplorationConfig(BaseModel):
    """How often the least covered action is tried in place of the best."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    initial_rate: float = Field(default=0.2, ge=0, le=1)
    """rho_0: probability at the first live decision. Ours."""
    half_rate_decisions: float = Field(default=50.0, gt=0, allow_inf_nan=False)
    """t_0: after three times as many live decisions the probability is half of rho_0. Ours."""


def exploration_rate(decisions: int, config: ExplorationConfig) -> float:
    """Return rho_t = rho_0 / sqrt(1 + t / t_0) after `decisions` live decisions."""
    return config.initial_rate / math.sqrt(1.0 + decisions / config.half_rate_decisions)


def least_covered(actions: Sequence[Action], coverage: Sequence[int]) -> int:
    """Return the position in `actions` of the one whose cell was run least; of equal ones the first.

    Args:
        actions: what can be run, at least one.
        coverage: [K] how often each cell of the space was run.
    """
    return min(range(len(actions)), key=lambda position: (coverage[actions[position].cell], position))
