"""ARPO's rollouts: some from the start, the others from uncertain turns (arXiv:2507.19849, Sec. 3.1).

The paper's: M rollouts in all, N of them from the start. Whenever tools have answered, rollouts whose entropy rose
branch (`entropy_trigger.py`), branches of branches too, until M - N branches are made; what is missing at the end is
drawn from the start. M 16, N 8.

Differs from the paper: rollouts are finished first and branched behind, turn by turn, which asks for the same branches
as branching while they are written: a decision looks at turns up to its own alone. RAIL gives no N for its ARPO-32;
here 16. The paper's reward for several tools is not taken: rewards are the environment's.
"""

from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.branching.rivals.branches import Boundary, Branch, DrawKey
from midcourse.branching.rivals.entropy_trigger import EntropyTriggerConfig, branch_probability, triggered_branches
from midcourse.errors import ConfigError


class ARPORolloutConfig(BaseModel):
    """How many rollouts begin at the start, how many there are in all, and which turns branch."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rollout_budget: int = Field(default=16, ge=1)
    """M: rollouts of one task. RAIL compares with 16 and 32."""
    initial_rollouts: int = Field(default=8, ge=1)
    """N: rollouts from the task's start before any branch. Paper: 8 of 16."""
    trigger: EntropyTriggerConfig = Field(default_factory=EntropyTriggerConfig)
    """Which turns branch."""

    @model_validator(mode="after")
    def _initial_rollouts_are_in_the_budget(self) -> Self:
        if self.initial_rollouts > self.rollout_budget:
            raise ConfigError(
                f"initial_rollouts must be at most rollout_budget: got {self.initial_rollouts} of {self.rollout_budget}"
            )
        return self


def arpo_branches(
    boundaries: Sequence[Boundary], *, remaining: int, config: ARPORolloutConfig, key: DrawKey
) -> list[Branch]:
    """Return the branches of one round: of the boundaries before one turn, by `boundaries_at`.

    Args:
        boundaries: of all rollouts so far that wrote the turn, branches of earlier turns included.
        remaining: rollouts left of the budget.
        config: the rule.
        key: of the task.
    """
    probabilities = [branch_probability(boundary.entropy_change, config.trigger) for boundary in boundaries]
    return triggered_branches(boundaries, probabilities, remaining=remaining, config=config.trigger, key=key)
