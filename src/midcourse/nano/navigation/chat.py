"""The nano policy's turns: `<think>Azure 31,07 Birch 44,12</think>direction 31,07=44,12<|end|>`.

A call is the tool's name and its arguments in a fixed order, each after a sign of its own; a list repeats the sign.
Tool schemas and system prompt are not rendered: they are what the warm start taught.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midcourse.environments.base import Tool
from midcourse.nano.navigation.tokenizer import ASSISTANT, END, ROLES, THINK, THINK_END, TOOL, USER, NanoTokenizer
from midcourse.types import AssistantTurn, ToolCall, ToolResult

SIGNATURES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "poi_search": (("", "address"), ("@", "region")),
    "around_search": (("", "location"), ("~", "radius"), ("?", "keyword"), ("@", "region")),
    "direction": (("", "origin"), (">", "waypoints"), ("=", "destination")),
}
"""Tool -> (sign before the value, argument), in the order of writing. A travel mode cannot be said: it is driving."""


class CompactChatFormat:
    """Turns <-> tokens of the nano policy. Its vocabulary is closed and no text comes from outside the atlas."""

    prompt_style = "nano"

    def __init__(self, tokenizer: NanoTokenizer) -> None:
        self._tokenizer = tokenizer
        self._user, self._tool, self._assistant, self._end, self._think, self._think_end = (
            tokenizer.ids[mark] for mark in (USER, TOOL, ASSISTANT, END, THINK, THINK_END)
        )
        self.stop_ids = (self._end,)
        self.unknown_id = tokenizer.unknown_id

    def encode(self, text: str) -> list[int]:
        """Tokenise text; a mark that it spells is unknown."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens spelled out."""
        return self._tokenizer.decode(token_ids)

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        """Return the tokens of a conversation's start, generation prompt included."""
        # A query that shows evidence has it behind a mark.
        return self._tokenizer.encode_marked(f"{USER}{query}{END}{ASSISTANT}")

    def parse(self, turn_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> AssistantTurn:
        """Read a turn. Never raises: what cannot be read is named in `parse_error`."""
        text = self.decode(turn_ids).removesuffix(END)
        match = re.fullmatch(rf"(?:{THINK}(?P<reasoning>.*?){THINK_END})?(?P<calls>.*)", text, re.DOTALL)
        if match is None:  # the pattern admits every text
            return AssistantTurn(content=text)
        calls, errors = [], []
        for part in match["calls"].split(";"):
            call = read_call(part)
            if isinstance(call, ToolCall):
                calls.append(call)
            else:
                errors.append(call)
        return AssistantTurn(
            reasoning=match["reasoning"] or "", tool_calls=tuple(calls), parse_error="; ".join(errors) or None
        )

    def render(self, turn: AssistantTurn) -> list[int]:
        """Return the tokens of a turn as the policy would write it, stop token included."""
        thought = [self._think, *self.encode(turn.reasoning), self._think_end] if turn.reasoning else []
        said = ";".join(write_call(call) for call in turn.tool_calls) + turn.content
        return [*thought, *self.encode(said), self._end]

    def observe(self, results: Sequence[ToolResult]) -> list[int]:
        """Return the tokens that follow a turn's stop token: tool answers, then the generation prompt."""
        answers = ("error" if result.is_error and result.content != "none" else result.content for result in results)
        return [self._tool, *self.encode(";".join(answers)), self._end, self._assistant]

    def with_message(self, history_ids: Sequence[int], text: str) -> list[int]:
        """Return `history_ids` (ending in the generation prompt) with one user message put before it."""
        return [*history_ids[:-1], self._user, *self.encode(text), self._end, self._assistant]

    def role_prompt(self, *, role: str, instructions: str, request: str) -> list[int]:
        """Return the request, then the role's own generation prompt; nano templates have no instructions.

        The request begins with the history as the policy saw it, so that an engine's prefix cache serves it.
        """
        return self._tokenizer.encode_marked(f"{request}{ROLES[role]}")


def read_call(text: str) -> ToolCall | str:
    """Return the call that one part of a turn holds, or what is wrong with it."""
    name, _, rest = text.strip().partition(" ")
    if name not in SIGNATURES or not rest:
        return "a turn is calls joined by ;, each a tool and its arguments"
    signature = SIGNATURES[name]
    signs = "".join(sign for sign, _ in signature)
    arguments: dict[str, Any] = {}
    for sign, value in re.findall(rf"(^|[{re.escape(signs)}])([^{re.escape(signs)}]*)", rest):
        argument = dict(signature)[sign]
        if argument == "waypoints":
            arguments.setdefault(argument, []).append(value)
        elif argument in arguments:
            return f"{name}: {argument} stands twice"
        else:
            arguments[argument] = float(value) if argument == "radius" and value.isdigit() else value
    return ToolCall(name, arguments)


def write_call(call: ToolCall) -> str:
    """Return the call in compact form; a tool without one is written as JSON, which is unknown words."""
    signature = SIGNATURES.get(call.name)
    if signature is None:
        return json.dumps({"name": call.name, "arguments": dict(call.arguments)})
    text = ""
    for sign, argument in signature:
        value = call.arguments.get(argument)
        if value is None:
            continue
        values = value if isinstance(value, list | tuple) else [value]
        text += "".join(f"{sign}{item:g}" if isinstance(item, float) else f"{sign}{item}" for item in values)
    return f"{call.name} {text}"
