"""A call as nested tags, the form of Qwen3-Coder and Qwen 3.5.

<function=search>
<parameter=query>
Oslo
</parameter>
</function>

Every value is text. The tool's schema says what it stands for: where it allows a string, it is that string; else it
is read as JSON. A value that cannot be read as its type stays text, which the environment then answers with what it
expected.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midcourse.environments.base import Tool
from midcourse.rollout.marks import excerpt
from midcourse.rollout.strict_json import read_json, write_json
from midcourse.types import ToolCall

_CALL = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
# A closing tag within a value is text: only one that is followed by the next parameter, or by nothing, closes.
_PARAMETER_END = re.compile(r"</parameter>(?=\s*(?:<parameter=[^<>\n]+>|$))")
PYTHON_WORDS = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class XmlBody:
    """The tags; `writes_python` says that true, false and null are written True, False and None."""

    writes_python: bool = True

    def read(self, text: str, tools: Sequence[Tool] = ()) -> ToolCall:
        """Return the call. Raises ValueError with words for a language model if `text` is none."""
        name, values = _read_texts(text)
        schemas = next((tool.parameters.get("properties", {}) for tool in tools if tool.name == name), {})
        return ToolCall(name, {key: _typed(value, schemas.get(key)) for key, value in values.items()})

    def write(self, call: ToolCall) -> str:
        """Return the call as tags.

        Raises:
            ValueError: an argument is no JSON value, or the tags cannot hold it (a name with > in it; a value that
                spells the end of its own tag).
        """
        values = {key: self._text(value) for key, value in call.arguments.items()}
        tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        text = f"<function={call.name}>\n{tags}</function>"
        try:
            is_readable = _read_texts(text) == (call.name, values)
        except ValueError:
            is_readable = False
        if not is_readable:
            raise ValueError(f"tags cannot hold this call of {excerpt(call.name)!r}: a name or value spells a tag")
        return text

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if self.writes_python and (value is None or isinstance(value, bool)):
            return str(value)
        return write_json(value)


def _read_texts(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the values as text. Raises ValueError if the tags are not whole."""
    whole = _CALL.fullmatch(text)
    if whole is None:
        raise ValueError(f"a call must be <function=name> ... </function> and nothing else: got {excerpt(text)}")
    name, rest = whole.groups()
    values: dict[str, str] = {}
    position = 0
    while rest[position:].strip():
        start = _PARAMETER.match(rest, position)
        if start is None:
            raise ValueError(f"expected <parameter=name> or </function>: got {excerpt(rest[position:])}")
        key = start.group(1)
        end = _PARAMETER_END.search(rest, start.end())
        if end is None:
            raise ValueError(f"parameter {excerpt(key)!r} of {excerpt(name)!r} is not closed by </parameter>")
        if key in values:
            raise ValueError(f"parameter {excerpt(key)!r} of {excerpt(name)!r} is given twice")
        values[key] = rest[start.end() : end.start()].removeprefix("\n").removesuffix("\n")
        position = end.end()
    return name, values


def _typed(text: str, schema: Any) -> Any:
    """Return the value that a text stands for under a JSON schema."""
    if _allows_text(schema):
        return text
    if text.strip() in PYTHON_WORDS:
        return PYTHON_WORDS[text.strip()]
    try:
        return read_json(text)
    except ValueError:
        return text


def _allows_text(schema: Any) -> bool:
    """Return whether a schema allows a string, or does not say what it allows."""
    if not isinstance(schema, Mapping):
        return True
    if "type" in schema:
        types = schema["type"]
        return types == "string" or (isinstance(types, Sequence) and not isinstance(types, str) and "string" in types)
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    return not choices or any(_allows_text(choice) for choice in choices)
