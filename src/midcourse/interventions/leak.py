"""Deterministic leak check (not in the RTI paper): may this correction know what it says?

Visible is what the policy had been shown when the turn began: system prompt, query, tools and the results of earlier
turns. What the policy itself wrote, the draft above all, makes nothing visible, and neither do results of calls of
the same turn.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from midcourse.environments.base import Environment, Evidence, Task
from midcourse.types import AssistantTurn, Turn

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NUMBER_LIST = re.compile(r"-?\d+(?:\.\d+)?(?:,-?\d+(?:\.\d+)?)+")
MIN_PART_DIGITS = 4
"""Digits from which on one number of a private list (a coordinate of a pair) is private by itself."""


def visible_text(task: Task, environment: Environment, turns: Sequence[Turn]) -> str:
    """Return all that the policy had been shown before the turn after `turns`, one piece a line."""
    pieces = [environment.system_prompt, task.query]
    for tool in environment.tools:
        pieces += [tool.name, tool.description, json.dumps(tool.parameters, ensure_ascii=False)]
    for turn in turns:
        for result in turn.results:
            pieces += [result.name, result.content]
    return "\n".join(pieces)


def turn_text(turn: AssistantTurn) -> str:
    """Return all that a turn says: reasoning, content, names and arguments of its calls, one piece a line."""
    pieces = [turn.reasoning, turn.content]
    for call in turn.tool_calls:
        pieces.append(call.name)
        pieces += _leaves(call.arguments)
    return "\n".join(pieces)


def leaked_values(
    corrected_text: str, *, evidence: Evidence, visible: str, forbidden_phrases: Sequence[str] = ()
) -> list[str]:
    """Return the private values and forbidden phrases that `corrected_text` holds and `visible` does not.

    Values match whole, never inside a longer number or word; case, white space and the way a number is written
    (31.070 and 31.07) do not matter. A number with four digits or more that is part of a private list of numbers
    counts by itself. Choosing the right one among several visible candidates passes: see
    `audit.counterfactual_leak_audit`.
    """
    said, shown = normalized(corrected_text), normalized(visible)
    return [
        value
        for value in (*evidence.private_values, *forbidden_phrases)
        if any(occurs(form, said) and not occurs(form, shown) for form in _private_forms(normalized(value)))
    ]


def normalized(text: str) -> str:
    """Return `text` in one case, white space and way of writing numbers."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    spaced = re.sub(r"\s*,\s*", ",", " ".join(folded.split()))
    return _NUMBER.sub(lambda match: _plain_number(match.group()), spaced)


def occurs(value: str, text: str) -> bool:
    """Return whether the normalised `value` stands in the normalised `text` as a whole."""
    return bool(value) and re.search(_before(value[0]) + re.escape(value) + _after(value[-1]), text) is not None


def _plain_number(digits: str) -> str:
    whole, _, fraction = digits.partition(".")
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def _private_forms(value: str) -> list[str]:
    if not _NUMBER_LIST.fullmatch(value):
        return [value]
    parts = [part for part in value.split(",") if sum(map(str.isdigit, part)) >= MIN_PART_DIGITS]
    return [value, *parts]


def _before(first: str) -> str:
    if not first.isalnum() or _runs_on(first):
        return ""
    # A digit after "3." or after a sign belongs to another number; "route-31" has no sign.
    return r"(?<!\w)(?<!\d\.)(?:(?<!-)|(?<=\w-))" if first.isdigit() else r"(?<!\w)"


def _after(last: str) -> str:
    if not last.isalnum() or _runs_on(last):
        return ""
    return r"(?!\w)(?!\.\d)" if last.isdigit() else r"(?!\w)"


def _runs_on(character: str) -> bool:
    """Wide scripts put no space between words, so that a boundary cannot be asked for."""
    return unicodedata.east_asian_width(character) in "WF"


def _leaves(value: Any) -> Iterable[str]:
    """Yield the scalars of a JSON value as text; scalars that stand together also joined, as a pair would be."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        yield str(value)
        return
    scalars = [str(item) for item in value if isinstance(item, str | int | float)]
    if len(scalars) > 1:
        yield ",".join(scalars)
    for item in value:
        yield from _leaves(item)
