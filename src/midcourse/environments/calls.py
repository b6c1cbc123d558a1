"""Turns of calls, each call with one argument: what the worlds of AgentBench and ToolQA have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midcourse.environments.base import Observation, Tool
from midcourse.types import AssistantTurn, ToolCall, ToolResult

SHOWN_CHARACTERS = 40
"""Of a name that the policy made up, in the error that it gets."""


class BadCall(ValueError):
    """A call that cannot be run; its text tells the policy what was expected."""


def argument_names(tools: Sequence[Tool]) -> Mapping[str, str]:
    """Return tool -> its argument, for tools that have one."""
    return {tool.name: next(iter(tool.parameters["properties"])) for tool in tools}


def one_argument(call: ToolCall, names: Mapping[str, str]) -> Any:
    """Return the one argument of a call, of any kind.

    Raises:
        BadCall: unknown tool; missing or extra arguments.
    """
    if call.name not in names:
        raise BadCall(f"unknown tool {str(call.name)[:SHOWN_CHARACTERS]!r}; expected one of {', '.join(names)}")
    wanted = names[call.name]
    given = call.arguments if isinstance(call.arguments, Mapping) else {}
    if set(given) != {wanted}:
        shown = ", ".join(str(key)[:SHOWN_CHARACTERS] for key in given)
        raise BadCall(f"{call.name} expects the argument {wanted} and no other: got {shown or 'none'}")
    return given[wanted]


class Turns:
    """Counts an episode's turns and runs their calls, until a call or a turn without calls ends it.

    Args:
        limit: turns that are run; one more ends the episode and is not run.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self.is_done = False  # a call that ends the episode sets it

    def run(self, turn: AssistantTurn, run_call: Callable[[ToolCall], ToolResult]) -> Observation:
        """Return the results of the turn's calls, in order; once done, nothing more is run."""
        if self.is_done or self._taken >= self._limit:
            self.is_done = True
            return Observation(done=True)
        self._taken += 1
        if not turn.tool_calls:
            self.is_done = turn.parse_error is None
            return Observation(done=self.is_done)
        results: list[ToolResult] = []
        for call in turn.tool_calls:
            results.append(run_call(call))
            if self.is_done:
                break
        return Observation(results=tuple(results), done=self.is_done)

    def copy(self) -> "Turns":
        """Return the same count, for a fork."""
        copied = Turns(self._limit)
        copied._taken, copied.is_done = self._taken, self.is_done
        return copied
