"""The two tools: what the policy is told of them, and reading its calls."""

from midcourse.environments.base import Tool
from midcourse.environments.calls import BadCall, argument_names, one_argument
from midcourse.types import ToolCall

MAX_CODE_CHARACTERS = 50_000

TOOLS = (
    Tool(
        name="python_interpreter",
        description=(
            "Run Python code. Returns what it prints, and the value of its last line. Names stay from call to call; "
            "df, the price table, is a fresh copy in every call."
        ),
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code."}},
            "required": ["code"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name="answer_action",
        description="Give the final answer and end the task.",
        parameters={
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The value asked for and nothing else."}},
            "required": ["answer"],
            "additionalProperties": False,
        },
    ),
)
_ARGUMENTS = argument_names(TOOLS)


def checked_argument(call: ToolCall) -> str:
    """Return the one argument of a call: code, or an answer.

    Raises:
        BadCall: unknown tool; missing, extra or wrong-typed argument; code that is too long or not text.
    """
    value = one_argument(call, _ARGUMENTS)
    wanted = _ARGUMENTS[call.name]
    if call.name == "answer_action" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # models often give numbers where text is asked for; what they mean is plain
    if not isinstance(value, str) or not value.strip():
        raise BadCall(f"{call.name} expects {wanted} to be text")
    if call.name == "python_interpreter" and len(value) > MAX_CODE_CHARACTERS:
        raise BadCall(f"the code has {len(value)} characters; expected at most {MAX_CODE_CHARACTERS}")
    return value
