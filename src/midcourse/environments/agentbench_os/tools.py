"""The three tools: what the policy is told of them, and reading its calls."""

from collections.abc import Mapping

from midcourse.environments.base import Tool
from midcourse.environments.calls import BadCall, argument_names, one_argument
from midcourse.types import ToolCall

SCRIPT_BYTES = 65_536


def _tool(name: str, description: str, argument: str, meaning: str, *, required: bool = True) -> Tool:
    return Tool(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {argument: {"type": "string", "description": meaning}},
            "required": [argument] if required else [],
            "additionalProperties": False,
        },
    )


TOOLS = (
    _tool(
        "bash_action", "Run a bash script in the shell. Returns what it prints.", "script", "The bash script to be run."
    ),
    _tool(
        "finish_action",
        "Say that the task has been done, where no answer is asked for. Ends the task.",
        "thought",
        "Why it is done.",
        required=False,
    ),
    _tool("answer_action", "Give the answer to the question. Ends the task.", "answer", "The answer, and no more."),
)
_ARGUMENTS = argument_names(TOOLS)


def checked_argument(call: ToolCall) -> str:
    """Return the one argument of a call; "" where finish_action has none.

    Raises:
        BadCall: unknown tool; missing, extra or wrong-typed argument; a script that no shell can be given.
    """
    if call.name == "finish_action" and isinstance(call.arguments, Mapping) and not call.arguments:
        return ""
    value = one_argument(call, _ARGUMENTS)
    wanted = _ARGUMENTS[call.name]
    if call.name == "answer_action" and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # models often give a number where text is asked for; what they mean is plain
    if not isinstance(value, str):
        raise BadCall(f"{call.name} expects {wanted} to be text")
    try:
        num_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise BadCall(f"character {error.start} of {wanted} is half of a surrogate pair") from error
    if "\0" in value:
        raise BadCall(f"{wanted} must not hold the character NUL")
    if num_bytes > SCRIPT_BYTES:
        raise BadCall(f"{wanted} has {num_bytes} bytes; at most {SCRIPT_BYTES} can be run")
    return value
