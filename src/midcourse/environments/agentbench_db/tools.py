"""The two tools: what the policy is told of them, and reading its calls."""

from collections.abc import Mapping
from typing import Any

from midcourse.environments.base import Tool
from midcourse.environments.calls import BadCall, argument_names, one_argument
from midcourse.types import ToolCall

TOOLS = (
    Tool(
        name="sql_query",
        description="Run one SQL statement. Returns the rows, or how many rows it changed. What it changes stays.",
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string", "description": "One SQL statement."}},
            "required": ["query"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name="answer_action",
        description="Give the final answer and end the task. After a change of the table the answer may be any text.",
        parameters={
            "type": "object",
            "properties": {
                "answer": {
                    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                    "description": "The value asked for, exactly as the table has it; several as an array.",
                }
            },
            "required": ["answer"],
            "additionalProperties": False,
        },
    ),
)
_ARGUMENTS = argument_names(TOOLS)


def checked_argument(call: ToolCall) -> Any:
    """Return the one argument of a call: a statement, or an answer as text or a list.

    Raises:
        BadCall: unknown tool; missing, extra or wrong-typed argument.
    """
    value = one_argument(call, _ARGUMENTS)
    if not str(value).isascii():
        _check_encodable(str(value))
    if call.name == "sql_query":
        if not isinstance(value, str) or not value.strip():
            raise BadCall("sql_query expects query to be an SQL statement")
        return value
    if isinstance(value, bool) or value is None or isinstance(value, Mapping):
        raise BadCall("answer_action expects answer to be text or an array of texts")
    # Models often give numbers where text is asked for; what they mean is plain.
    return value if isinstance(value, list | tuple | str) else str(value)


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadCall(f"character {error.start} is half of a surrogate pair, which no database takes") from error
