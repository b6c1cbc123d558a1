"""Counterfactual leak audit (not in the RTI paper): does a correction follow the evidence rather than the history?

Picking the right one of several visible candidates passes every check of values. So the same step is corrected twice,
with the true evidence and with another: a corrector that reasons from the history writes the same both times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from midcourse.environments.base import Evidence
from midcourse.interventions.leak import normalized, occurs, turn_text
from midcourse.interventions.roles import Correction, Roles
from midcourse.types import ToolCall

if TYPE_CHECKING:
    from midcourse.rollout.episode import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterfactualAudit:
    """Counts over audited steps. `num_corrected` are those that both kinds of evidence led to correct."""

    num_steps: int
    num_corrected: int
    num_changed: int  # the calls or the content differ between the two corrections
    num_followed: int  # the second holds a value that only the other evidence names, and the first does not

    @property
    def followed_fraction(self) -> float:
        """Share of corrected steps that follow the evidence, in [0, 1]; 0 where none was corrected."""
        return self.num_followed / self.num_corrected if self.num_corrected else 0.0


async def counterfactual_leak_audit(cases: Sequence[tuple["Step", Evidence]], roles: Roles) -> CounterfactualAudit:
    """Return how often a correction follows the evidence. Raises RoleFailed.

    Args:
        cases: steps, each with evidence that is not its own and could be (another candidate of the same history).
        roles: the validator and corrector to audit; the same seeds are used under both kinds of evidence.
    """
    num_corrected = num_changed = num_followed = 0
    for step, other in cases:
        own = await _correction(step, roles)
        counterfactual = await _correction(replace(step, task=replace(step.task, evidence=other)), roles)
        if own is None or counterfactual is None:
            continue
        num_corrected += 1
        num_changed += _action(own) != _action(counterfactual)
        num_followed += _follows(own, counterfactual, own_evidence=step.task.evidence, other_evidence=other)
    return CounterfactualAudit(
        num_steps=len(cases), num_corrected=num_corrected, num_changed=num_changed, num_followed=num_followed
    )


async def _correction(step: "Step", roles: Roles) -> Correction | None:
    verdict = await roles.validate(step)
    if verdict is None or verdict.is_valid:
        return None
    return await roles.correct(step, verdict)


def _action(turn: Correction) -> tuple[list[ToolCall], str]:
    return list(turn.tool_calls), turn.content


def _follows(own: Correction, counterfactual: Correction, *, own_evidence: Evidence, other_evidence: Evidence) -> bool:
    known = {normalized(value) for value in own_evidence.private_values}
    only_other = {normalized(value) for value in other_evidence.private_values} - known
    said, said_before = normalized(turn_text(counterfactual)), normalized(turn_text(own))
    return any(occurs(value, said) and not occurs(value, said_before) for value in only_other)
