"""The three tools: what the policy is told of them, and reading its calls."""

from collections.abc import Mapping

from midcourse.environments.base import Tool
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
_ARGUMENTS = {tool.name: next(iter(tool.parameters["properties"])) for tool in TOOLS}


class BadCall(ValueError):
    """A call that cannot be run; its text tells the policy what was expected."""


def checked_argument(call: ToolCall) -> str:
    """Return the one argument of a call; "" where finish_action has none.

    Raises:
        BadCall: unknown tool; missing, extra or wrong-typed argument; a script that no shell can be given.
    """
    if call.name not in _ARGUMENTS:
        raise BadCall(f"unknown tool {str(call.name)[:40]!r}; expected one of {', '.join(_ARGUMENTS)}")
    wanted = _ARGUMENTS[call.name]
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {"": ""}
    if call.name == "finish_action" and not arguments:
        return ""
    if set(arguments) != {wanted}:
        given = ", ".join(str(key)[:40] for key in arguments)
        raise BadCall(f"{call.name} expects the argument {wanted} and no other: got {given or 'none'}")
    value = arguments[wanted]
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
