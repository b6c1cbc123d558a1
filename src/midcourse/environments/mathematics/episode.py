"""One attempt at one problem: a single turn without tools, which is the answer."""

from collections.abc import Callable
from typing import Self

from midcourse.environments.base import Observation
from midcourse.types import AssistantTurn, ToolResult

MAX_TURNS = 1


class AnswerEpisode:
    """Takes one turn and scores what it says.

    The turn's content is the response; its reasoning is not read. A tool call has nothing to run: its result says so,
    and the content beside it counts. A turn that was cut short or cannot be parsed never gets here: no answer, 0.

    Args:
        score_response: response -> reward; called once, when the score is asked for.
    """

    def __init__(self, score_response: Callable[[str], float]) -> None:
        self._score_response = score_response
        self._response: str | None = None
        self._score: float | None = None

    def act(self, turn: AssistantTurn) -> Observation:
        """Keep the first turn's content; the episode is done."""
        if self._response is not None:
            return Observation(done=True)
        self._response = turn.content
        results = tuple(
            ToolResult(name=call.name, content="there are no tools here", is_error=True) for call in turn.tool_calls
        )
        return Observation(results=results, done=True)

    def score(self) -> float:
        """Return the reward of the response; 0.0 where there is none."""
        if self._score is None:
            self._score = 0.0 if self._response is None else self._score_response(self._response)
        return self._score

    def fork(self) -> Self:
        """Return an independent episode in the same state."""
        twin = type(self)(self._score_response)
        twin._response, twin._score = self._response, self._score
        return twin

    def close(self) -> None:
        """Free nothing: an episode holds no resource."""
