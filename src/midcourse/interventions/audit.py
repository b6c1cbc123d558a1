"""Counterfactual leak audit (not in the RTI paper): does a correction follow the evidence rather than the history?

Picking the right one of several visible candidates passes every check of values. So the same step is corrected twice,
with the true evidence and with another: a corrector that reasons from the history writes the same both times.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from midcourse.environments.base import Evidence, Task
from midcourse.interventions.leak import normalized, occurs, turn_text
from midcourse.interventions.roles import Correction, RoleFailed, Roles
from midcourse.types import ToolCall

if TYPE_CHECKING:
    from midcourse.rollout.episode import Step, StepDecision, StepHook

CASES_IN_FLIGHT = 32
"""Steps that are audited together: enough to fill a batch, few enough that none waits for its timeout."""


@runtime_checkable
class OffersCounterfactuals(Protocol):
    """An environment whose tasks could have had other evidence."""

    def counterfactual(self, task: Task) -> Task | None:
        """Return the task with the same query and other evidence that fits it too; None where there is none."""
        ...


class StepRecorder:
    """A step hook that keeps every step it is asked about and lets another hook decide."""

    def __init__(self, hook: "StepHook") -> None:
        self.steps: list[Step] = []
        self._hook = hook

    async def __call__(self, step: "Step") -> "StepDecision":
        """Return what the other hook decides."""
        self.steps.append(step)
        return await self._hook(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedStep:
    """One step corrected twice. A correction is None where the draft was let pass or the role could not be read."""

    step: "Step"  # its task holds the true evidence
    other: Evidence
    own: Correction | None
    counterfactual: Correction | None
    has_failed: bool = False  # a role's engine did not answer: neither correction is known

    @property
    def is_corrected(self) -> bool:
        """Whether both kinds of evidence led to a correction."""
        return self.own is not None and self.counterfactual is not None

    @property
    def is_changed(self) -> bool:
        """Whether the calls or the content differ between the two corrections."""
        if self.own is None or self.counterfactual is None:
            return False
        return _action(self.own) != _action(self.counterfactual)

    @property
    def follows_evidence(self) -> bool:
        """Whether the second correction holds a value that only the other evidence names, and the first does not."""
        if self.own is None or self.counterfactual is None:
            return False
        known = {normalized(value) for value in self.step.task.evidence.private_values}
        only_other = {normalized(value) for value in self.other.private_values} - known
        said, said_before = normalized(turn_text(self.counterfactual)), normalized(turn_text(self.own))
        return any(occurs(value, said) and not occurs(value, said_before) for value in only_other)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterfactualAudit:
    """Audited steps, and counts over them."""

    steps: Sequence[AuditedStep]

    @property
    def num_corrected(self) -> int:
        """Steps that both kinds of evidence led to correct."""
        return sum(step.is_corrected for step in self.steps)

    @property
    def num_changed(self) -> int:
        """Steps whose two corrections differ."""
        return sum(step.is_changed for step in self.steps)

    @property
    def num_followed(self) -> int:
        """Steps whose correction follows the evidence."""
        return sum(step.follows_evidence for step in self.steps)

    @property
    def num_failed(self) -> int:
        """Steps that say nothing because a role's engine did not answer."""
        return sum(step.has_failed for step in self.steps)

    @property
    def followed_fraction(self) -> float | None:
        """Share of corrected steps that follow the evidence, in [0, 1]; None where none was corrected."""
        return self.num_followed / self.num_corrected if self.num_corrected else None


async def counterfactual_leak_audit(
    cases: Sequence[tuple["Step", Evidence]], roles: Roles, *, audited: Callable[[int], None] = lambda done: None
) -> CounterfactualAudit:
    """Return both corrections of every step.

    Args:
        cases: steps, each with evidence that is not its own and could be (another candidate of the same history).
        roles: the validator and corrector to audit; the same seeds are used under both kinds of evidence.
        audited: told how many steps are done.
    """
    done: list[AuditedStep] = []

    async def audit(step: "Step", other: Evidence) -> AuditedStep:
        try:
            own, counterfactual = await asyncio.gather(
                _correction(step, roles),
                _correction(replace(step, task=replace(step.task, evidence=other)), roles),
            )
        except RoleFailed:
            return AuditedStep(step=step, other=other, own=None, counterfactual=None, has_failed=True)
        return AuditedStep(step=step, other=other, own=own, counterfactual=counterfactual)

    for start in range(0, len(cases), CASES_IN_FLIGHT):
        done += await asyncio.gather(*(audit(*case) for case in cases[start : start + CASES_IN_FLIGHT]))
        audited(len(done))
    return CounterfactualAudit(steps=done)


async def _correction(step: "Step", roles: Roles) -> Correction | None:
    verdict = await roles.validate(step)
    if verdict is None or verdict.is_valid:
        return None
    return await roles.correct(step, verdict)


def _action(turn: Correction) -> tuple[list[ToolCall], str]:
    return list(turn.tool_calls), turn.content
