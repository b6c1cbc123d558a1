"""AEPO's rollouts: how many begin at the start, and a penalty on branching turn after turn (arXiv:2510.14545).

The paper's: of k rollouts m = k sigmoid(beta (H_root - mean H_tool)) begin at the start, the entropies measured on one
rollout; the others are branches, where P_t = (alpha + gamma dH_t) (1 - Phat(l)) > tau, Phat growing with the number l
of branches in a row. Motive: most branches of ARPO fall on one to three rollouts. The authors' code: beta 0.5, m
rounded up, Phat(l) = 0.05 l, and tau replaced as in `entropy_trigger.py`.

Differs from paper and code: the rollout that is measured is the first of the m, so that the budget holds it; H_tool is
of turns behind a tool's answer (the code's mean holds the first turn too); l counts along a rollout, branches of its
ancestors included (the code's counter is of the task, whichever rollout branched); entropies are means, so that beta
is 20 times the code's. As in the code: without a turn behind a tool H_tool is H_root, and m is floor(k sigmoid) + 1.
"""

import math
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from midcourse.branching.rivals.branches import Boundary, Branch, DrawKey
from midcourse.branching.rivals.entropy_trigger import EntropyTriggerConfig, branch_probability, triggered_branches


class AEPORolloutConfig(BaseModel):
    """How the rollouts of a task are split, which turns branch, and what branching in a row costs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rollout_budget: int = Field(default=16, ge=1)
    """k: rollouts of one task."""
    entropy_sensitivity: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """beta, on mean normalised entropies; 10.0 is the code's 0.5 on a sum over 20 tokens."""
    trigger: EntropyTriggerConfig = Field(default_factory=EntropyTriggerConfig)
    """Which turns branch, without the penalty."""
    branch_penalty: float = Field(default=0.05, ge=0, le=1)
    """Phat(l) = branch_penalty * l, at most 1. Code: 0.05."""


def initial_rollouts(root_entropy: float, tool_entropies: Sequence[float], config: AEPORolloutConfig) -> int:
    """Return m, in [1, k].

    Args:
        root_entropy: H_root, `anchor_entropy` of the first turn of the measured rollout.
        tool_entropies: of its turns behind a tool's answer; without any, the gap is 0.
        config: budget and sensitivity.
    """
    gap = root_entropy - math.fsum(tool_entropies) / len(tool_entropies) if tool_entropies else 0.0
    # Of the negative side alone, so that no exponential overflows.
    share = math.exp(-abs(config.entropy_sensitivity * gap))
    share = (1.0 if gap >= 0 else share) / (1.0 + share)
    return max(1, min(math.floor(config.rollout_budget * share) + 1, config.rollout_budget))


def penalty_factor(consecutive_branches: int, config: AEPORolloutConfig) -> float:
    """Return 1 - Phat(l), in [0, 1]."""
    return max(0.0, 1.0 - config.branch_penalty * consecutive_branches)


def aepo_branches(
    boundaries: Sequence[Boundary],
    consecutive_branches: Sequence[int],
    *,
    remaining: int,
    config: AEPORolloutConfig,
    key: DrawKey,
) -> list[Branch]:
    """Return the branches of one round, as `arpo_branches`.

    Args:
        boundaries: before one turn, by `boundaries_at`.
        consecutive_branches: l of each, by `Lineage.consecutive_branches`.
        remaining: rollouts left of the budget.
        config: rule and penalty.
        key: of the task.

    Raises:
        ValueError: lists of different lengths.
    """
    probabilities = [
        branch_probability(boundary.entropy_change, config.trigger) * penalty_factor(count, config)
        for boundary, count in zip(boundaries, consecutive_branches, strict=True)
    ]
    return triggered_branches(boundaries, probabilities, remaining=remaining, config=config.trigger, key=key)
