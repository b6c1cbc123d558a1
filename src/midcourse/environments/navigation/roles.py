"""Navigation's oracle in the three roles of RTI. The corrected values come from the query and earlier answers."""

from typing import TYPE_CHECKING

from midcourse.environments.navigation.oracle import find_error, review
from midcourse.interventions.roles import Correction, ValidatorVerdict, VerifierVerdict

if TYPE_CHECKING:
    from midcourse.rollout.episode import Step


class OracleRoles:
    """Scripted validator, corrector and verifier."""

    def validate(self, step: "Step") -> ValidatorVerdict:
        """Judge the draft by the evidence."""
        found = review(step.task, step.turns, step.draft)
        if found is None:
            return ValidatorVerdict(is_valid=True)
        return ValidatorVerdict(
            is_valid=False,
            error_types=tuple(found.error_types),
            diagnosis=found.diagnosis,
            suggest_next=found.suggest_next,
        )

    def correct(self, step: "Step", verdict: ValidatorVerdict) -> Correction | None:
        """Return the expert's turn; None where the expert lets the draft pass."""
        found = review(step.task, step.turns, step.draft)
        return None if found is None else found.turn

    def verify(self, step: "Step", corrected: Correction) -> VerifierVerdict:
        """Refuse a correction that is itself an error."""
        error = find_error(step.task, step.turns, corrected)
        if error is None:
            return VerifierVerdict(ok=True)
        return VerifierVerdict(ok=False, reasons=(error[0],), diagnosis=error[1])
