"""Comparing an answer in words with the reference values of a question.

RAIL (App. B.1) asks for "numeric canonicalisation and order-independent set equality" and gives no details; they are
AgentBench's (numbers within 0.01, percent signs and thousands separators left out, NULL words equal to 0).
Differs from AgentBench: case, white space and outer quotes do not matter; how often a value is given does not matter;
values may stand in lines or between commas; an empty answer is no 0.
"""

import ast
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

TOLERANCE = 0.01
MAX_CHARACTERS = 20_000
NOTHING_WORDS = frozenset({"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity"})
"""How an empty result is written in answers and references; AgentBench takes all of them for 0."""
QUOTES = "'\"`"
_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?(e[+-]?\d{1,3})?|[+-]?\.\d+(e[+-]?\d{1,3})?")

Value = float | str


def answer_matches(answer: str | Sequence[Any], reference: Sequence[str]) -> bool:
    """Return whether an answer gives exactly the values of the reference, in any order.

    Args:
        answer: values, or text that holds them: a JSON or Python list (of values, or of rows as the database prints
            them), one value, a value a line, or values between commas.
        reference: the values.
    """
    wanted = [canonical(value) for value in reference]
    return any(_same_values(values, wanted) for values in _readings(answer))


def canonical(text: str) -> Value:
    """Return a value as a number where it is one, else as text in one case and white space without outer quotes."""
    plain = " ".join(text.split()).casefold()
    while len(plain) > 1 and plain[0] == plain[-1] and plain[0] in QUOTES:
        plain = plain[1:-1].strip()
    if plain in NOTHING_WORDS:
        return 0.0
    number = plain.removesuffix("%").rstrip()
    if _NUMBER.fullmatch(number):
        value = float(number.replace(",", ""))
        if math.isfinite(value):
            return value
    return plain


def _same_values(values: Sequence[Value], wanted: Sequence[Value]) -> bool:
    return all(any(map(_same, wanted, [value] * len(wanted))) for value in values) and all(
        any(map(_same, values, [value] * len(values))) for value in wanted
    )


def _same(value: Value, other: Value) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        # Two numbers that differ by exactly the tolerance are the same, whichever way their halves are rounded.
        return abs(value - other) <= TOLERANCE + 1e-9
    return value == other


def _readings(answer: str | Sequence[Any]) -> Iterator[list[Value]]:
    """Yield the values that an answer may be taken for; nothing for an empty list, or for far too long a text."""
    if not isinstance(answer, str):
        texts = list(_texts(answer))
        if texts:
            yield [canonical(text) for text in texts]
        return
    text = answer.strip()
    if len(text) > MAX_CHARACTERS:
        return
    listed = _listed(text)
    if listed is not None:
        yield from _readings(listed)
        return
    yield [canonical(text)]
    for separator in ("\n", ","):
        parts = [part for part in text.split(separator) if part.strip()]
        if len(parts) > 1:
            yield [canonical(part) for part in parts]


def _listed(text: str) -> list[Any] | None:
    """Return the list that a text writes down in JSON or Python, None where it does not."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, list):
            return value
    return None


def _texts(values: Sequence[Any]) -> Iterator[str]:
    """Yield the values of a list as text; a row stands for its values."""
    for value in values:
        for item in value if isinstance(value, list | tuple) else (value,):
            yield "none" if item is None else str(item)
