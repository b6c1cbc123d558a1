"""Calls between `<tool_call>` marks, several in a turn. What a call looks like inside is a body's matter."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from midcourse.environments.base import Tool
from midcourse.rollout.call_forms.json_body import JsonBody
from midcourse.rollout.marks import Mark, Piece, excerpt
from midcourse.types import ToolCall


class CallBody(Protocol):
    """One call as text."""

    def read(self, text: str, tools: Sequence[Tool]) -> ToolCall:
        """Return the call. Raises ValueError with words for a language model if it cannot be read."""
        ...

    def write(self, call: ToolCall) -> str:
        """Return the call as text that `read` reads back. Raises ValueError if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class MarkedCalls:
    """Bodies between marks, with the white space that the family writes around them.

    White space is exact in what is written. In what is read, that before the first call belongs to the form where it
    is exactly `gap`; text between and behind calls is stripped and joins the content.
    """

    body: CallBody = field(default_factory=JsonBody)
    gap: str = "\n"  # between text and the first call
    between: str = "\n"  # between calls
    behind: str = ""  # behind the last call
    opening: str = "\n"  # between mark and body
    closing: str = "\n"  # between body and closing mark

    marks = (Mark.CALL, Mark.CALL_END)

    def read(self, pieces: Sequence[Piece], *, tools: Sequence[Tool], errors: list[str]) -> tuple[str, list[ToolCall]]:
        """Return text and readable calls; what cannot be read is added to `errors`. Never raises."""
        content, calls = "", []
        open_call: str | None = None  # text of the call that is being read
        num_calls = 0
        for index, piece in enumerate(pieces):
            if piece is Mark.CALL:
                if open_call is not None:
                    errors.append(
                        f"tool call {num_calls} is not closed by {Mark.CALL_END.value} before the next begins"
                    )
                open_call, num_calls = "", num_calls + 1
            elif piece is Mark.CALL_END:
                if open_call is None:
                    errors.append(f"{Mark.CALL_END.value} without {Mark.CALL.value} before it")
                    continue
                try:
                    calls.append(self.body.read(open_call, tools))
                except ValueError as error:
                    errors.append(f"tool call {num_calls} cannot be read: {error}")
                open_call = None
            elif open_call is not None:
                open_call += str(piece)
            elif num_calls == 0:
                before_call = index + 1 < len(pieces) and pieces[index + 1] is Mark.CALL
                content += piece.removesuffix(self.gap) if before_call else str(piece)
            elif piece.strip():
                content += ("\n" if content else "") + piece.strip()
        if open_call is not None:
            errors.append(f"tool call {num_calls} is not closed by {Mark.CALL_END.value}: {excerpt(open_call)}")
        return content, calls

    def write(self, content: str, calls: Sequence[ToolCall]) -> list[Piece]:
        """Return text and calls. Raises ValueError if an argument is no JSON or the body cannot hold a call."""
        pieces: list[Piece] = [content]
        for index, call in enumerate(calls):
            before = self.between if index else self.gap if content else ""
            body = f"{self.opening}{self.body.write(call)}{self.closing}"
            pieces += [before, Mark.CALL, body, Mark.CALL_END]
        return [*pieces, self.behind] if calls else pieces


HERMES = MarkedCalls()
