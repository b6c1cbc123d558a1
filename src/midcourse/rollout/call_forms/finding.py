"""Recognises how a chat template writes tool calls, from turns that it rendered with a call that is known."""

import json
import re
from collections.abc import Mapping
from typing import Any

from midcourse.rollout.call_forms import CallForm
from midcourse.rollout.call_forms.bare_json import BareJsonCalls
from midcourse.rollout.call_forms.json_body import ARGUMENTS, NAME, JsonBody
from midcourse.rollout.call_forms.marked import HERMES, CallBody, MarkedCalls
from midcourse.rollout.call_forms.xml_body import XmlBody
from midcourse.rollout.marks import Mark
from midcourse.types import ToolCall

KNOWN_FORMS = (
    f"JSON or XML between {Mark.CALL.value} marks, or JSON alone with a name and parameters, as Llama 3 has it"
)


def find_form(one: str, two: str | None, *, call: ToolCall, content: str) -> CallForm | None:
    """Return the form, with the template's own white space and order of keys; None if it is no known one.

    Args:
        one: what the template writes behind the reasoning for a turn with one call.
        two: the same for two calls; None where the template does not allow them.
        call: the call that was rendered, both times where there are two. No mark, quote or brace in it.
        content: the text beside it, which the template may leave out.
    """
    before, mark, behind_mark = one.partition(Mark.CALL.value)
    inner, closing_mark, behind = behind_mark.partition(Mark.CALL_END.value)
    if not mark:
        body = _json_body(one, call)
        text = one.removeprefix(content).removeprefix(Mark.PYTHON_TAG.value).strip()
        return BareJsonCalls(body) if body is not None and body.write(call) == text else None
    body = _json_body(inner, call) or _xml_body(inner, call)
    if not closing_mark or body is None:
        return None
    opening, written, closing = inner.partition(body.write(call))
    if not written:  # arguments with other white space than what would be written here
        return None
    between = HERMES.between if two is None else _between(two)
    gap = before.removeprefix(content) if before.startswith(content) else HERMES.gap
    return MarkedCalls(body=body, gap=gap, between=between, behind=behind, opening=opening, closing=closing)


def _between(two: str) -> str:
    _, _, rest = two.partition(Mark.CALL_END.value)
    return rest.partition(Mark.CALL.value)[0]


def _json_body(text: str, call: ToolCall) -> JsonBody | None:
    """Return the body if `text` holds the call as a JSON object, with that object as its frame."""
    decoder = json.JSONDecoder()
    for start in re.finditer(r"\{", text):
        try:
            value, end = decoder.raw_decode(text, start.start())
        except json.JSONDecodeError:
            continue
        key = _arguments_key(value, call)
        if key is None:
            continue
        written = text[start.start() : end]
        at = re.search(rf'"{re.escape(key)}"\s*:\s*', written)
        assert at is not None
        _, arguments_end = decoder.raw_decode(written, at.end())
        frame = written[: at.end()] + ARGUMENTS + written[arguments_end:]
        return JsonBody(frame=frame.replace(json.dumps(call.name), NAME), arguments_key=key)
    return None


def _arguments_key(value: Mapping[str, Any], call: ToolCall) -> str | None:
    """Return the key of the arguments if the object is the call: its name, its arguments, and nothing else."""
    keys = [key for key in value if value[key] == call.arguments]
    return keys[0] if value.get("name") == call.name and set(value) == {"name", *keys[:1]} and keys else None


def _xml_body(text: str, call: ToolCall) -> CallBody | None:
    bodies = (XmlBody(writes_python=True), XmlBody(writes_python=False))
    return next((body for body in bodies if body.write(call) == text.strip()), None)
