"""Comparing an answer with ToolQA's reference.

ToolQA (arXiv:2306.13304) compares text in lower case without punctuation, articles and "usd". RAIL (App. B.1) adds "a
relative/absolute numeric tolerance" and gives no figures.
Differs from ToolQA: where the reference is a number, only a number is right. Without punctuation 36.6 is -36.6 and 366.
The tolerance is ours: a reference that was rounded takes every number that may be rounded to it, one that was not takes
the same number in another way of writing it (147 for 147.0).
"""

import re
import string
from dataclasses import dataclass
from decimal import Decimal

EXACT = Decimal("1e-6")
"""Relative and absolute: what computing with floats may add to a number that was not rounded."""
MAX_CHARACTERS = 200
_WORDS = re.compile(r"\b(a|an|the|usd)\b")
_NUMBER = re.compile(
    r"(?P<prefix>usd|\$)?\s*(?P<sign>[+-]?)\s*(?:usd|\$)?\s*"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?P<exponent>e[+-]?\d{1,2})?"
    r"\s*(?P<unit>%|percent|usd|\$|us dollars|dollars)?\.?"
)


@dataclass(frozen=True, slots=True)
class _Number:
    value: Decimal
    is_percentage: bool


def answer_matches(answer: str, reference: str, *, decimals: int | None = None) -> bool:
    """Return whether an answer says what the reference says.

    Args:
        answer: the policy's text. Currency may stand with it or not; a percent sign only where the reference has one.
        reference: a number with or without unit, a date, or a word.
        decimals: digits after the point that the reference was rounded to, or None; it may be written with fewer.
    """
    if len(answer) > MAX_CHARACTERS:
        return False
    wanted = _number(reference)
    if wanted is None:
        return _plain(answer) == _plain(reference)
    given = _number(answer)
    if given is None or (given.is_percentage and not wanted.is_percentage):
        return False
    slack = EXACT * max(Decimal(1), abs(wanted.value))
    if decimals is not None:
        slack += Decimal(5).scaleb(-decimals - 1)
    return abs(given.value - wanted.value) <= slack


def _plain(text: str) -> str:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(_WORDS.sub(" ", kept).split())


def _number(text: str) -> _Number | None:
    # A minus sign of typography is one all the same.
    found = _NUMBER.fullmatch(text.strip().lower().replace("\N{MINUS SIGN}", "-"))
    if found is None:
        return None
    digits = found["digits"].replace(",", "")
    value = Decimal(f"{found['sign']}{digits}{found['exponent'] or ''}")
    return _Number(value=value, is_percentage=found["unit"] in ("%", "percent"))
