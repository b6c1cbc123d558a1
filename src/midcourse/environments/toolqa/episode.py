"""One run of one task: code, an answer, and the reward of the answer."""

from midcourse.environments.base import Observation
from midcourse.environments.calls import BadCall, Turns
from midcourse.environments.toolqa.interpreter import Interpreter, Workshop
from midcourse.environments.toolqa.questions import Question
from midcourse.environments.toolqa.tools import checked_argument
from midcourse.types import AssistantTurn, ToolCall, ToolResult

MAX_TURNS = 6  # RAIL, App. B.1


class TableEpisode:
    """Runs the calls of a turn in order. `answer_action` ends the episode, and so does a turn without any call.

    Args:
        question: what is asked.
        workshop: where code runs.
    """

    def __init__(self, question: Question, *, workshop: Workshop) -> None:
        self._question = question
        self._interpreter = Interpreter(workshop)
        self._answer: str | None = None
        self._turns = Turns(MAX_TURNS)

    def act(self, turn: AssistantTurn) -> Observation:
        """Run the turn's calls; once done, nothing more is run.

        Raises:
            EnvironmentFault: no interpreter can be started.
        """
        return self._turns.run(turn, self._run)

    def score(self) -> float:
        """Return 1.0 for an answer that agrees with the reference, else 0.0."""
        return float(self._answer is not None and self._question.accepts(self._answer))

    def close(self) -> None:
        """End the interpreter."""
        self._interpreter.close()

    def _run(self, call: ToolCall) -> ToolResult:
        try:
            argument = checked_argument(call)
        except BadCall as error:
            return ToolResult(name=call.name, content=f"Error: {error}", is_error=True)
        if call.name == "answer_action":
            self._answer, self._turns.is_done = argument, True
            return ToolResult(name=call.name, content="ok")
        shown = self._interpreter.run(argument)
        return ToolResult(name=call.name, content=shown.text, is_error=shown.is_error)
