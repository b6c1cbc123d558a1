"""ChatML with JSON tool calls, the form of the Qwen family, written out instead of taken from a template.

<|im_start|>system ... <tools> ... <|im_end|>
<|im_start|>user
query<|im_end|>
<|im_start|>assistant
<think> ... </think> <tool_call>{json}</tool_call><|im_end|>      <- a turn, stop token included
<|im_start|>user
<tool_response> ... </tool_response><|im_end|>                    <- `observe`, from the newline after <|im_end|> on
<|im_start|>assistant
"""

import json
from collections.abc import Sequence
from typing import Any

from midcourse.environments.base import Tool
from midcourse.errors import ChatTemplateError
from midcourse.rollout.marked import MarkedTurns
from midcourse.rollout.plain_text import PlainTextTokenizer, TextOrToken
from midcourse.types import ToolResult

START, END = "<|im_start|>", "<|im_end|>"
RESPONSE, RESPONSE_END = "<tool_response>", "</tool_response>"

_TOOLS_HEAD = "# Tools\n\nThese functions can be called, one JSON schema a line, inside <tools></tools>:\n<tools>\n"
_TOOLS_TAIL = (
    "\n</tools>\n\nTo call one, write a JSON object with its name and its arguments between the marks below. "
    "Several calls may follow each other in one turn.\n"
)


class ChatMLFormat(MarkedTurns):
    """Qwen-style conversations, token-in token-out.

    The newline after `<|im_end|>` belongs to `observe`: the policy never writes it, so no turn holds it. Reasoning
    stays in the history, since no turn is ever rendered again. For a model whose own template differs in the wording
    of the tool list, TemplateFormat uses that.

    Args:
        tokenizer: a Hugging Face tokenizer. Its end-of-sequence token, where it is another, ends a turn as well.

    Raises:
        ChatTemplateError: the tokenizer lacks `<|im_start|>` or `<|im_end|>`.
    """

    def __init__(self, tokenizer: Any) -> None:
        plain = PlainTextTokenizer(tokenizer)
        start_id, end_id = plain.special_id(START), plain.special_id(END)
        if start_id is None or end_id is None:
            raise ChatTemplateError(f"chat 'chatml' needs a tokenizer with the tokens {START} and {END}")
        self._start_id, self._end_id = start_id, end_id
        stop_ids = [end_id]
        if tokenizer.eos_token_id is not None and tokenizer.eos_token_id != end_id:
            stop_ids.append(tokenizer.eos_token_id)
        super().__init__(plain, stop_ids=stop_ids)
        self._generation_prompt = plain.encode_pieces([start_id, "assistant\n"])

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        """Return the tokens of a conversation's start, generation prompt included."""
        system: list[TextOrToken] = [system_prompt]
        if tools:
            system += ["\n\n" if system_prompt else "", *self._tool_list(tools)]
        messages = self._message("system", system) if system_prompt or tools else []
        return self._tokenizer.encode_pieces([*messages, *self._message("user", [query])]) + self._generation_prompt

    def observe(self, results: Sequence[ToolResult]) -> list[int]:
        """Return the tokens that follow a turn's stop token: tool answers in one message, the generation prompt."""
        pieces: list[TextOrToken] = ["\n"]
        if results:
            answers: list[TextOrToken] = []
            for index, result in enumerate(results):
                separator = "\n" if index else ""
                answers += [separator, self._special(RESPONSE), f"\n{result.content}\n", self._special(RESPONSE_END)]
            pieces += self._message("user", answers)
        return self._tokenizer.encode_pieces(pieces) + self._generation_prompt

    def with_message(self, history_ids: Sequence[int], text: str) -> list[int]:
        """Return `history_ids` with one user message put before its generation prompt.

        Raises:
            ValueError: the history does not end in the generation prompt.
        """
        message_ids = self._tokenizer.encode_pieces(self._message("user", [text]))
        return insert_before_ending(history_ids, message_ids, ending_ids=self._generation_prompt)

    def role_prompt(self, *, role: str, instructions: str, request: str) -> list[int]:
        """Return the tokens of a fresh conversation that asks a role for JSON; the role's name is not written."""
        return self.open(system_prompt=instructions, tools=(), query=request)

    def _message(self, author: str, content: Sequence[TextOrToken]) -> list[TextOrToken]:
        return [self._start_id, f"{author}\n", *content, self._end_id, "\n"]

    def _special(self, spelling: str) -> TextOrToken:
        token_id = self._tokenizer.special_id(spelling)
        return spelling if token_id is None else token_id

    def _tool_list(self, tools: Sequence[Tool]) -> list[TextOrToken]:
        lines = "\n".join(json.dumps(tool_schema(tool), ensure_ascii=False) for tool in tools)
        return [
            f"{_TOOLS_HEAD}{lines}{_TOOLS_TAIL}",
            self._special("<tool_call>"),
            '\n{"name": "...", "arguments": {...}}\n',
            self._special("</tool_call>"),
        ]


def tool_schema(tool: Tool) -> dict[str, Any]:
    """Return the tool as chat templates are given it."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
    }


def insert_before_ending(
    history_ids: Sequence[int], inserted_ids: Sequence[int], *, ending_ids: Sequence[int]
) -> list[int]:
    """Return the history with tokens put before its ending.

    Raises:
        ValueError: the history does not end in `ending_ids`.
    """
    at = len(history_ids) - len(ending_ids)
    if at < 0 or list(history_ids[at:]) != list(ending_ids):
        raise ValueError(
            f"the history must end in the generation prompt {list(ending_ids)}: got "
            f"{list(history_ids[-len(ending_ids) :])}"
        )
    return [*history_ids[:at], *inserted_ids, *ending_ids]
