"""Calls as JSON without marks, the form of Llama 3: the turn is the call.

A turn is a call if it begins, behind white space, with a JSON object that has a name and arguments, or holds
`<|python_tag|>`. Any other JSON is an answer. Several calls are parted by semicolons.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from midcourse.environments.base import Tool
from midcourse.rollout.call_forms.json_body import ARGUMENTS, NAME, JsonBody
from midcourse.rollout.marks import Mark, Piece, excerpt
from midcourse.rollout.strict_json import read_first_json
from midcourse.types import ToolCall

# The beginning of a call whose JSON is broken further on.
_BEGINS_LIKE_A_CALL = re.compile(r'\s*\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"')
SEPARATOR = "; "


@dataclass(frozen=True, slots=True)
class BareJsonCalls:
    """The family writes a call alone. Text beside calls stands before `<|python_tag|>`, in what is written here too."""

    body: JsonBody = field(
        default_factory=lambda: JsonBody(
            frame=f'{{"name": {NAME}, "parameters": {ARGUMENTS}}}', arguments_key="parameters"
        )
    )

    marks = (Mark.PYTHON_TAG,)

    def read(self, pieces: Sequence[Piece], *, tools: Sequence[Tool], errors: list[str]) -> tuple[str, list[ToolCall]]:
        """Return text and readable calls; what cannot be read is added to `errors`. Never raises."""
        if Mark.PYTHON_TAG in pieces:
            tag = pieces.index(Mark.PYTHON_TAG)
            return "".join(pieces[:tag]), self._read_calls("".join(pieces[tag + 1 :]), errors)
        text = "".join(pieces)
        return ("", self._read_calls(text, errors)) if self._is_call(text) else (text, [])

    def write(self, content: str, calls: Sequence[ToolCall]) -> list[Piece]:
        """Return text and calls. Raises ValueError if an argument is no JSON or text alone reads like a call."""
        if not calls:
            if self._is_call(content):
                raise ValueError(f"an answer cannot be text that reads like a call: {excerpt(content)}")
            return [content]
        written = SEPARATOR.join(self.body.write(call) for call in calls)
        return [content, Mark.PYTHON_TAG, written] if content else [written]

    def _is_call(self, text: str) -> bool:
        if not text.lstrip().startswith("{"):
            return False
        try:
            value, _ = read_first_json(text.lstrip())
        except ValueError:
            return _BEGINS_LIKE_A_CALL.match(text) is not None
        return "name" in value and ("parameters" in value or "arguments" in value)

    def _read_calls(self, text: str, errors: list[str]) -> list[ToolCall]:
        calls: list[ToolCall] = []
        text = text.strip()
        num_calls = 0
        while True:
            num_calls += 1
            try:
                value, end = read_first_json(text)
            except ValueError as error:
                errors.append(f"tool call {num_calls} cannot be read: {error}")
                return calls
            try:
                calls.append(self.body.as_call(value, text[:end]))
            except ValueError as error:
                errors.append(f"tool call {num_calls} cannot be read: {error}")
            rest = text[end:].lstrip()
            if not rest:
                return calls
            if not rest.startswith(";"):
                errors.append(f"behind tool call {num_calls} stands neither its end nor ';': {excerpt(rest)}")
                return calls
            text = rest[1:].lstrip()
