"""What a chat template writes, asked for with conversations of words that stand for content."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midcourse.environments.base import Tool
from midcourse.errors import ChatTemplateError
from midcourse.rollout.chatml import tool_schema
from midcourse.types import ToolCall

Message = Mapping[str, Any]

# Words that stand for content in the dummy conversations. No template writes them, no white space can be trimmed off.
SYSTEM, QUERY, NOTE, ANSWER, REASONING = "QsystemQ", "QqueryQ", "QnoteQ", "QanswerQ", "QreasoningQ"
DUMMY_CALL = ToolCall("qtoolq", {"key": "QargumentQ", "flag": True})
DUMMY_TOOL = Tool(
    name=DUMMY_CALL.name,
    description="QdescriptionQ",
    parameters={
        "type": "object",
        "properties": {
            "key": {"type": "string", "description": "QkeyQ"},
            "flag": {"type": "boolean", "description": "QflagQ"},
        },
        "required": ["key"],
    },
)
TODAY = "26 Jul 2024"
"""The `date_string` of templates that have one, so that a run can be repeated: Llama's own where it has no clock."""
EXCERPT_CHARACTERS = 40
MAX_RENDERED_CHARACTERS = 1_000_000  # of conversations of a few words, with the tools of a run


class TemplateRenderer:
    """Renders conversations with one template.

    Args:
        tokenizer: a Hugging Face tokenizer.
        template: Jinja text; None takes the tokenizer's, of several the one for tools where there are tools.
        enable_thinking: the template's variable of that name; None leaves it undefined.
    """

    def __init__(self, tokenizer: Any, *, template: str | None, enable_thinking: bool | None) -> None:
        self._tokenizer = tokenizer
        self._variables: dict[str, Any] = {"date_string": TODAY}
        if enable_thinking is not None:
            self._variables["enable_thinking"] = enable_thinking
        self._template = template

    def render(self, messages: Sequence[Message], *, prompt: bool, tools: Sequence[Tool] = (DUMMY_TOOL,)) -> str:
        """Return the conversation as text, with the generation prompt if `prompt`.

        Raises:
            ChatTemplateError: the template does not render it, or writes far too much; the message holds the
                template's own words.
        """
        name = "the model's chat template" if self._template is None else "the template of policy.chat_template"
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=[tool_schema(tool) for tool in tools] or None,
                chat_template=self._template,
                add_generation_prompt=prompt,
                tokenize=False,
                **self._variables,
            )
        # A template is a program: it may divide by zero, call itself for ever or ask for all memory.
        except Exception as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ChatTemplateError(
                f"{name} cannot render a conversation of {roles}: {type(error).__name__}: {error}"
            ) from error
        if len(text) > MAX_RENDERED_CHARACTERS:
            raise ChatTemplateError(
                f"{name} writes {len(text)} characters for a conversation of a few words: expected at most "
                f"{MAX_RENDERED_CHARACTERS}"
            )
        return text


def user(text: str) -> Message:
    """Return a user's message."""
    return {"role": "user", "content": text}


def call_turn(content: str, num_calls: int) -> Message:
    """Return an assistant's message with the dummy call, some times."""
    calls = [
        {
            "type": "function",
            "id": f"call{index:05d}",
            "function": {"name": DUMMY_CALL.name, "arguments": dict(DUMMY_CALL.arguments)},
        }
        for index in range(num_calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result_word(index: int) -> str:
    """Return the word that stands for the text of a tool's answer."""
    return f"Qresult{index}Q"


def name_word(index: int) -> str:
    """Return the word that stands for the name of the tool that answers."""
    return f"Qname{index}Q"


def results(num_results: int) -> list[Message]:
    """Return the answers of tools."""
    return [
        {"role": "tool", "name": name_word(index), "tool_call_id": f"call{index:05d}", "content": result_word(index)}
        for index in range(num_results)
    ]


def escape_in_json(text: str) -> str:
    """Return text as it stands within the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def find_writing(render: Callable[[str], str], what: str) -> Callable[[str], str]:
    """Return what the template does to the text of a message: nothing, trimming, escaping as within JSON.

    Args:
        render: returns the conversation in which one message is the given text.
        what: that message, for the error.

    Raises:
        ChatTemplateError: it does something else.
    """
    probe = ' \n"\u00e9QprobeQ"\n '
    rendered = render(probe)
    for writing in (str, str.strip, escape_in_json, lambda text: escape_in_json(text.strip())):
        if writing(probe) in rendered:
            return writing
    raise ChatTemplateError(f"the template rewrites the text of {what}: {excerpt(rendered, rendered.find('QprobeQ'))}")


def after(text: str, beginning: str, complaint: str) -> str:
    """Return what follows `beginning` in `text`, white space that differs within and at its end left aside.

    Raises:
        ChatTemplateError: `text` begins otherwise; the message shows the place where they part.
    """
    if text.startswith(beginning):
        return text[len(beginning) :]
    position = 0
    for word in re.finditer(r"\S", beginning):
        while text[position : position + 1].isspace():
            position += 1
        if text[position : position + 1] != word.group():
            raise ChatTemplateError(
                f"the template breaks the prefix property: {complaint}: at character {position} it writes "
                f"{excerpt(text, position)} in place of {excerpt(beginning, word.start())}"
            )
        position += 1
    return text[position:].lstrip()


def excerpt(text: str, position: int) -> str:
    """Return the text around a position, quoted."""
    start = max(0, position - EXCERPT_CHARACTERS // 4)
    return repr(text[start : start + 2 * EXCERPT_CHARACTERS])
