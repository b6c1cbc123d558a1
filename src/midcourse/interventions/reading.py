"""Role replies -> typed answers. A reply is a model's words: it is read as far as it goes, and never raises."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import json_repair
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

LONGEST_REPLY = 100_000
"""Characters of a reply that are read; repairing what lies beyond would cost more than it is worth."""
MOST_BRACKETS = 200
"""Of an object that is repaired: a repair tries each of them, and thousands in a row would hold up everything else."""


def _none_is_empty(value: Any) -> Any:
    return "" if value is None else value


def _none_is_no_list(value: Any) -> Any:
    return [] if value is None else value


def _arguments_may_be_text(value: Any) -> Any:
    """Servers trained on other call formats write the arguments as JSON inside a string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _lower_word(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_none_is_empty)]
TextList = Annotated[list[str], BeforeValidator(_none_is_no_list)]


class ValidatorReply(BaseModel):
    """What a validator must write."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    is_valid: bool
    error_types: TextList = []
    diagnosis: Text = ""
    suggest_next: Text = ""


class CallReply(BaseModel):
    """One tool call inside a correction."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    name: str
    arguments: Annotated[dict[str, Any], BeforeValidator(_arguments_may_be_text)] = {}


class CorrectorReply(BaseModel):
    """What a corrector must write. `tool_calls` and `content` exclude each other, and one must be there."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    reasoning: Text = ""
    tool_calls: Annotated[list[CallReply], BeforeValidator(_none_is_no_list)] = []
    content: Text = ""


class VerifierReply(BaseModel):
    """What a verifier must write."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    ok: bool
    reasons: TextList = []
    diagnosis: Text = ""


class ReviewReply(BaseModel):
    """What a judge of chunks must write. `quote` is copied from the chunk where the verdict is revise."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    verdict: Annotated[Literal["keep", "revise"], BeforeValidator(_lower_word)]
    quote: Text = ""
    reason: Text = ""


Reply = TypeVar("Reply", bound=BaseModel)


def read_reply(text: str, reply_type: type[Reply]) -> Reply | None:
    """Return the last object in `text` that has the form of `reply_type`; None where there is none.

    Fences, prose around the object, trailing commas, unquoted or single-quoted keys, a cut end and any order of keys
    are tolerated; a value of the wrong type is not.
    """
    for segment in reversed(outermost_objects(text)):
        value = _repaired(segment)
        if value is None:
            continue
        try:
            return reply_type.model_validate(value)
        except (ValidationError, RecursionError):
            continue
    return None


def read_review(text: str) -> tuple[ReviewReply, Sequence[str]] | None:
    """Return a judge's reply and the readings of its quote, the likeliest first; None where it cannot be read.

    Models copy LaTeX and code into JSON without doubling its backslashes: the beginning of a fraction is then a form
    feed. The second reading takes a backslash that stands alone for itself.
    """
    text = text[:LONGEST_REPLY]
    reply = read_reply(text, ReviewReply)
    literal = read_reply(_BACKSLASH.sub(_doubled, text), ReviewReply)
    first = reply or literal
    if first is None:
        return None
    quotes = (found.quote for found in (reply, literal) if found is not None and found.quote)
    return first, tuple(dict.fromkeys(quotes))


_BACKSLASH = re.compile(r"""\\\\|\\"|\\""")


def _doubled(match: re.Match[str]) -> str:
    """Double a backslash unless it is one of a pair or guards a quotation mark."""
    return match.group() if len(match.group()) == 2 else 2 * match.group()


def outermost_objects(text: str) -> Sequence[str]:
    """Return the brace-enclosed stretches of a reply in order, reasoning left out; the last may be cut off.

    Only outermost ones: an object inside a broken one (the arguments of a call) must not be taken for the answer.
    """
    _, _, answer = text[:LONGEST_REPLY].rpartition("</think>")
    segments: list[str] = []
    start = depth = 0
    in_string = escaped = False
    for position, character in enumerate(answer):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"' and depth:
            in_string = True
        elif character == "{":
            start = position if depth == 0 else start
            depth += 1
        elif character == "}" and depth:
            depth -= 1
            if depth == 0:
                segments.append(answer[start : position + 1])
    if depth:
        segments.append(answer[start:])
    return segments


def _repaired(segment: str) -> Mapping[str, Any] | None:
    try:
        is_repairable = segment.count("{") + segment.count("[") <= MOST_BRACKETS
        value = json_repair.loads(segment) if is_repairable else json.loads(segment)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and value:
        value = value[0]  # a stray brace after the object makes the repair see a list
    return value if isinstance(value, dict) else None
