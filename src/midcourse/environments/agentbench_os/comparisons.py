"""AgentBench's comparisons of an answer with a reference value: five checks by name, and the plain match.

They are AgentBench's small check scripts, done here: what decides runs where the policy cannot reach it. `tolerant` is
RAIL's (App. B.1): "a case-insensitive match with integer-value and bounded-substring tolerance".
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

SUBSTRING_MARGIN = 40
"""Characters that a tolerated answer may have beside the reference. RAIL names no bound."""
UNITS = {"": 0, "B": 0, "Byte": 0, "K": 1, "KB": 1, "M": 2, "MB": 2, "G": 3, "GB": 3, "T": 4, "TB": 4, "P": 5, "PB": 5}
"""Unit -> power of 1,024."""
_SIZE = re.compile(rf"([+-]?\d{{1,30}}(?:\.\d{{1,30}})?)\s*({'|'.join(UNITS)})")
_NUMBER = re.compile(r"[-+]?\d(?:[\d.,]*\d)?")

Comparison = Callable[[str, str], bool]


def plain(text: str) -> str:
    """Return a text with one kind of line end, stripped."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def same_integer(answer: str, reference: str) -> bool:
    """Return whether both are the same integer."""
    try:
        return int(answer) == int(reference)
    except ValueError:
        return False


def same_text(answer: str, reference: str) -> bool:
    """Return whether both are the same text but for line ends and outer white space."""
    return plain(answer) == plain(reference)


def same_size(answer: str, reference: str) -> bool:
    """Return whether both are the same number of bytes, 2K and 2048 for example.

    Differs from AgentBench: there only whole numbers are read, though `du -h` writes 4.0K, and "2KB" is an error, since
    its loop ends at the unit B and is left with "2K".
    """
    given = _bytes(answer)
    return given is not None and given == _bytes(reference)


def contains_reference(answer: str, reference: str) -> bool:
    """Return whether the reference stands in the answer."""
    return plain(reference) in plain(answer)


def stands_in_reference(answer: str, reference: str) -> bool:
    """Return whether the answer stands in the reference."""
    return plain(answer) in plain(reference)


def tolerant(answer: str, reference: str) -> bool:
    """Return whether an answer is the reference by RAIL's tolerances.

    Case does not matter; integers are compared by value; and the reference may stand in an answer, as whole words, that
    is at most SUBSTRING_MARGIN characters longer and holds no other number. Differs from RAIL, which gives neither the
    bound nor the rule on words and numbers.
    """
    given, wanted = plain(answer).casefold(), plain(reference).casefold()
    if given == wanted or same_integer(given, wanted):
        return True
    if not wanted or len(given) > len(wanted) + SUBSTRING_MARGIN:
        return False
    others = set(_NUMBER.findall(given)) - set(_NUMBER.findall(wanted))
    return not others and re.search(rf"(?<![\w.-]){re.escape(wanted)}(?![\w-])", given) is not None


def _bytes(text: str) -> Fraction | None:
    size = _SIZE.fullmatch(text.strip())
    return None if size is None else Fraction(size[1]) * 1024 ** UNITS[size[2]]


COMPARISONS: Mapping[str, Comparison] = {
    "integer-match": same_integer,
    "string-match": same_text,
    "size-match": same_size,
    "containing": contains_reference,
    "in": stands_in_reference,
}
"""Name of AgentBench's check script, without its ending -> what it does with an answer and a reference."""
