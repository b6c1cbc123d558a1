"""RTI's three roles without a model: a draft is kept up to its earliest slip and written on from there."""

from dataclasses import replace
from typing import TYPE_CHECKING

from midcourse.environments.mathematics.arithmetic.problems import read_chain
from midcourse.environments.mathematics.arithmetic.steps import Slip, continuation, slips
from midcourse.interventions.roles import Correction, ValidatorVerdict, VerifierVerdict
from midcourse.types import AssistantTurn

if TYPE_CHECKING:
    from midcourse.rollout.episode import Step


class ArithmeticRoles:
    """Scripted validator, corrector and verifier."""

    def validate(self, step: "Step") -> ValidatorVerdict:
        """Judge the draft by the rules of the worked steps."""
        slip = _first_slip(step.task.query, step.draft)
        if slip is None:
            return ValidatorVerdict(is_valid=True)
        return ValidatorVerdict(
            is_valid=False,
            error_types=("wrong_calculation",) if slip.expected else ("wrong_form",),
            diagnosis=f"step {slip.step + 1} goes wrong at character {slip.start + 1}",
            suggest_next=f"write {slip.expected} there" if slip.expected else "end the response there",
        )

    def correct(self, step: "Step", verdict: ValidatorVerdict) -> Correction | None:
        """Return the draft up to its first slip and the right rest behind it; None where there is no slip."""
        slip = _first_slip(step.task.query, step.draft)
        if slip is None:
            return None
        kept = step.draft.content[: slip.start]
        return replace(step.draft, content=kept + continuation(read_chain(step.task.query), kept), parse_error=None)

    def verify(self, step: "Step", corrected: Correction) -> VerifierVerdict:
        """Refuse a correction that has a slip itself."""
        slip = _first_slip(step.task.query, corrected)
        if slip is None:
            return VerifierVerdict(ok=True)
        return VerifierVerdict(ok=False, reasons=("wrong_calculation",), diagnosis=f"wrong in step {slip.step + 1}")


def _first_slip(query: str, turn: AssistantTurn) -> Slip | None:
    return next(slips(read_chain(query), turn.content, is_ended=True), None)
