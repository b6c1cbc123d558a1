"""A call as a JSON object of a name and an object of arguments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from midcourse.environments.base import Tool
from midcourse.rollout.marks import Mark, excerpt
from midcourse.rollout.strict_json import read_json, write_json
from midcourse.types import ToolCall

NAME, ARGUMENTS = "<name>", "<arguments>"


@dataclass(frozen=True, slots=True)
class JsonBody:
    """`{"name": "search", "arguments": {"query": "Oslo"}}`; Llama says parameters. Order of keys is free in reading."""

    frame: str = f'{{"name": {NAME}, "arguments": {ARGUMENTS}}}'  # as the family writes it
    arguments_key: str = "arguments"

    def read(self, text: str, tools: Sequence[Tool] = ()) -> ToolCall:
        """Return the call. Raises ValueError with words for a language model if `text` is none."""
        return self.as_call(read_json(text), text)

    def as_call(self, value: Any, text: str) -> ToolCall:
        """Return the call that a JSON value is. Raises ValueError with words for a language model if it is none."""
        key = self.arguments_key
        if not isinstance(value, dict):
            raise ValueError(f"a call must be a JSON object with name and {key}: got {excerpt(text)}")
        unknown = sorted(set(value) - {"name", key})
        if unknown:
            raise ValueError(f"a call has name and {key} only: got also {', '.join(map(repr, unknown))}")
        name = value.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"a call must have a name, a string: got {excerpt(write_json(name))}")
        if key not in value:
            raise ValueError(f"the call of {name!r} has no {key}; without any they are {{}}")
        if not isinstance(value[key], dict):
            raise ValueError(f"the {key} of {name!r} must be a JSON object: got {excerpt(write_json(value[key]))}")
        return ToolCall(name, value[key])

    def write(self, call: ToolCall) -> str:
        """Return the call as JSON that holds no mark, whatever its strings spell.

        Raises:
            ValueError: an argument is no JSON value (NaN and infinity are none).
        """
        parts = {NAME: write_json(call.name)}
        try:
            parts[ARGUMENTS] = write_json(dict(call.arguments))
        except ValueError as error:
            raise ValueError(f"the arguments of {call.name!r} are no JSON: {error}") from None
        # Inside JSON, < occurs in strings only, where its escape means the same.
        if any(mark.value in part for mark in Mark for part in parts.values()):
            parts = {key: part.replace("<", "\\u003c") for key, part in parts.items()}
        return re.sub(f"{NAME}|{ARGUMENTS}", lambda word: parts[word.group()], self.frame)
