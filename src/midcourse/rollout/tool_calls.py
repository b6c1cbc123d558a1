"""The text of a turn: `<think>` reasoning, then content, then `<tool_call>` JSON. Tokens are somebody else's matter.

A turn is a list of pieces: plain text, and the four marks. Which of the marks are tokens of their own, and are
therefore never confused with text that spells them, is up to the tokenizer (plain_text.py).

A call of the policy must be strict JSON. A repaired call would train the policy on what it did not write, so one
that cannot be read goes back to it with the reason.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from midcourse.types import AssistantTurn, ToolCall


class Mark(StrEnum):
    """What structures a turn."""

    THINK = "<think>"
    THINK_END = "</think>"
    CALL = "<tool_call>"
    CALL_END = "</tool_call>"


Piece = str | Mark
EXCERPT_CHARACTERS = 80


def split_marks(text: str, marks: Iterable[Mark]) -> list[Piece]:
    """Return `text` cut at every spelling of `marks`, without empty pieces."""
    spelled = {mark.value: mark for mark in marks}
    if not spelled:
        return [text] if text else []
    parts = re.split(f"({'|'.join(map(re.escape, spelled))})", text)
    return [spelled.get(part, part) for part in parts if part]


def read_turn(pieces: Sequence[Piece], *, opens_in_reasoning: bool = False) -> AssistantTurn:
    """Return the turn. Never raises: what cannot be read is named in `parse_error`, and the readable calls stay.

    One newline inside each end of the reasoning, two behind it and one before the first call belong to the form; all
    other white space is the policy's. Text between and behind calls is stripped and joins the content.

    Args:
        pieces: the turn without its stop token; no two texts in a row.
        opens_in_reasoning: the generation prompt has written `<think>` already.
    """
    errors: list[str] = []
    reasoning, pieces = _split_reasoning(list(pieces), opens_in_reasoning, errors)
    content, calls = "", []
    open_call: str | None = None  # text of the call that is being read
    num_calls = 0
    for index, piece in enumerate(pieces):
        if piece is Mark.CALL:
            if open_call is not None:
                errors.append(f"tool call {num_calls} is not closed by {Mark.CALL_END.value} before the next begins")
            open_call, num_calls = "", num_calls + 1
        elif piece is Mark.CALL_END:
            if open_call is None:
                errors.append(f"{Mark.CALL_END.value} without {Mark.CALL.value} before it")
                continue
            try:
                calls.append(read_call(open_call))
            except ValueError as error:
                errors.append(f"tool call {num_calls} cannot be read: {error}")
            open_call = None
        elif open_call is not None:
            open_call += str(piece)
        elif num_calls == 0:
            before_call = index + 1 < len(pieces) and pieces[index + 1] is Mark.CALL
            content += piece.removesuffix("\n") if before_call else str(piece)
        elif piece.strip():
            content += ("\n" if content else "") + piece.strip()
    if open_call is not None:
        errors.append(f"tool call {num_calls} is not closed by {Mark.CALL_END.value}: {_excerpt(open_call)}")
    return AssistantTurn(
        reasoning=reasoning, content=content, tool_calls=tuple(calls), parse_error="; ".join(errors) or None
    )


def _split_reasoning(pieces: list[Piece], opens_in_reasoning: bool, errors: list[str]) -> tuple[str, list[Piece]]:
    """Return the reasoning and the pieces behind it. Marks of calls inside the reasoning are text there."""
    start = 0
    if pieces and pieces[0] is Mark.THINK:
        start = 1
    elif len(pieces) > 1 and pieces[1] is Mark.THINK and not pieces[0].strip():
        start = 2
    elif not opens_in_reasoning and Mark.THINK_END not in pieces:
        return "", pieces
    if Mark.THINK_END not in pieces[start:]:
        errors.append(f"the reasoning is not closed by {Mark.THINK_END.value}, so nothing behind it was read")
        return "".join(pieces[start:]).removeprefix("\n"), []
    end = pieces.index(Mark.THINK_END, start)
    reasoning = "".join(pieces[start:end]).removesuffix("\n")
    if start > 0:  # else the generation prompt wrote the newline
        reasoning = reasoning.removeprefix("\n")
    rest = pieces[end + 1 :]
    if rest and not isinstance(rest[0], Mark):
        rest[0] = rest[0].removeprefix("\n").removeprefix("\n")
        rest = rest if rest[0] else rest[1:]
    return reasoning, rest


def write_turn(turn: AssistantTurn, *, opens_in_reasoning: bool = False) -> list[Piece]:
    """Return the pieces of a turn, without stop token; `read_turn` reads back the same turn.

    Not so where text holds a mark that is no token of its own: that text is then read as the mark.
    """
    pieces: list[Piece] = []
    if turn.reasoning or opens_in_reasoning:
        opening: list[Piece] = [] if opens_in_reasoning else [Mark.THINK, "\n"]
        pieces += [*opening, f"{turn.reasoning}\n", Mark.THINK_END, "\n\n"]
    pieces.append(turn.content)
    for index, call in enumerate(turn.tool_calls):
        separator = "\n" if turn.content or index else ""
        pieces += [separator, Mark.CALL, f"\n{write_call(call)}\n", Mark.CALL_END]
    return join_texts(pieces)


def join_texts(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces with neighbouring texts made one and empty ones left out."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Mark):
            joined.append(piece)
        elif joined and not isinstance(joined[-1], Mark):
            joined[-1] += piece
        elif piece:
            joined.append(piece)
    return joined


def read_call(text: str) -> ToolCall:
    """Return the call that `text` is: a JSON object of a name and an object of arguments.

    Raises:
        ValueError: it is not; the message tells a language model what is wrong.
    """
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_read_float,
            object_pairs_hook=_read_object,
        )
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair cannot be sent on
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a string holds half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON at character {error.pos} ({error.msg}): {_excerpt(text)}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a call must be a JSON object with name and arguments: got {_excerpt(text)}")
    unknown = sorted(set(value) - {"name", "arguments"})
    if unknown:
        raise ValueError(f"a call has name and arguments only: got also {', '.join(map(repr, unknown))}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a call must have a name, a string: got {_excerpt(json.dumps(name))}")
    if "arguments" not in value:
        raise ValueError(f"the call of {name!r} has no arguments; without any they are {{}}")
    if not isinstance(value["arguments"], dict):
        raise ValueError(
            f"the arguments of {name!r} must be a JSON object: got {_excerpt(json.dumps(value['arguments']))}"
        )
    return ToolCall(name, value["arguments"])


def write_call(call: ToolCall) -> str:
    """Return the call as JSON that holds no mark, whatever its strings spell.

    Raises:
        ValueError: an argument is no JSON value (NaN and infinity are none).
    """
    try:
        text = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"the arguments of {call.name!r} are no JSON: {error}") from None
    # Inside JSON, < occurs in strings only, where its escape means the same.
    return text.replace("<", "\\u003c") if any(mark.value in text for mark in Mark) else text


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _read_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{_excerpt(digits)} is too large for a number")
    return number


def _read_object(pairs: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {_excerpt(repeated)!r} stands twice in one object")
    return value


def _excerpt(text: str) -> str:
    text = text.strip()
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]}..."
