"""When a turn is uncertain enough to be branched (ARPO, arXiv:2507.19849, Sec. 3.1).

The paper's: P_t = alpha + beta dH_t, and a branch where P_t > tau. dH_t is the entropy of the first tokens after a
tool's answer less that of the first tokens of the response; the authors' code takes 20 of them. Their code compares
P_t with a uniform number in place of tau, so that it branches with probability P_t: rule "probability".

Differs from the paper: its dH is a sum over the tokens, over log(vocabulary); here entropies are means, so that short
turns are not thought certain, and beta is 20 times theirs. With alpha = tau, as both of them have it, the rule
"threshold" looks at the sign of dH alone. The code's dH is of the turn before the tool's answer at which it branches;
here, as in the paper's text, of the turn behind it, and the branch replaces that turn.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.branching.rivals.branches import Boundary, Branch, DrawKey, uniform_draw


class EntropyTriggerConfig(BaseModel):
    """When a turn is uncertain enough to be branched, and into how many."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    base_probability: float = Field(default=0.5, ge=0, le=1)
    """alpha: P_t where the entropy is that of the start."""
    entropy_weight: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    """beta, on mean normalised entropies; 4.0 is the paper's 0.2 on a sum over 20 tokens."""
    rule: Literal["threshold", "probability"] = "threshold"
    """threshold: branch where P_t > threshold, as the papers say. probability: with probability P_t, as their code."""
    threshold: float = Field(default=0.5, ge=0, le=1)
    """tau of the rule threshold."""
    beam_size: int = Field(default=2, ge=2, le=1024)
    """Rollouts that a branched one becomes, itself included. Code: 2."""


def branch_probability(entropy_change: float, config: EntropyTriggerConfig) -> float:
    """Return P_t = alpha + beta dH_t; may lie outside [0, 1], which is certainty."""
    return config.base_probability + config.entropy_weight * entropy_change


def triggered_branches(
    boundaries: Sequence[Boundary],
    probabilities: Sequence[float],
    *,
    remaining: int,
    config: EntropyTriggerConfig,
    key: DrawKey,
) -> list[Branch]:
    """Return the branches at `boundaries`, in their order, until the budget is spent.

    Args:
        boundaries: of one round; earlier ones are served first.
        probabilities: P_t of each.
        remaining: rollouts that may still be drawn; less than 1 gives nothing.
        config: the rule.
        key: of the task; a boundary's draws depend on it, the rollout and the turn, and on nothing else.

    Raises:
        ValueError: lists of different lengths.
    """
    branches: list[Branch] = []
    for boundary, probability in zip(boundaries, probabilities, strict=True):
        wanted = sum(
            probability
            > (
                config.threshold
                if config.rule == "threshold"
                else uniform_draw(*key, "branch", boundary.rollout, boundary.turn, continuation)
            )
            for continuation in range(config.beam_size - 1)
        )
        continuations = min(wanted, remaining)
        if continuations > 0:
            branches.append(Branch(rollout=boundary.rollout, turn=boundary.turn, continuations=continuations))
            remaining -= continuations
    return branches
