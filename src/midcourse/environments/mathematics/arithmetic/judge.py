"""A judge without a model: names the earliest slip of a passage and writes on from there."""

from midcourse.environments.base import Task
from midcourse.environments.mathematics.arithmetic.problems import read_chain
from midcourse.environments.mathematics.arithmetic.steps import continuation, slips
from midcourse.interventions.judge import Continuation


class ArithmeticJudge:
    """Judges by the rules of the worked steps, never by the answer alone.

    A passage is judged against what stands before it: where an earlier slip was let pass, the steps that follow from
    it are no slips, and a correction goes on from it.
    """

    def review(self, task: Task, *, accepted: str, chunk: str, is_ended: bool) -> int | None:
        """Return the character of `chunk` at which it first goes wrong; None where it may stand.

        Where only the end came too early, that is the last character: the correction writes it again and goes on.
        """
        if not chunk:
            return None
        text = accepted + chunk
        slip = next(slips(read_chain(task.query), text, start=len(accepted), is_ended=is_ended), None)
        return None if slip is None else min(slip.start - len(accepted), len(chunk) - 1)

    def correct(self, task: Task, *, accepted: str) -> Continuation:
        """Return the rest of the response as it follows from what was accepted."""
        return Continuation(text=continuation(read_chain(task.query), accepted), is_ended=True)
