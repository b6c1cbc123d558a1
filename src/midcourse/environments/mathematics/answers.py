"""Where a response states its answer. Linear in the response's length, whatever the response holds."""

import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

AnswerPolicy = Literal["boxed", "last_number", "boxed_then_last_number", "tagged"]

_BOX = re.compile(r"\\f?box(?:ed)?\s{0,8}\{")
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(
    rf"(?<![A-Za-z0-9_.])(?P<sign>[-\u2212])?(?P<size>{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)(?P<denominator>/[0-9]+(?!\.?[0-9]))?"
)


def find_answer(response: str, policy: AnswerPolicy) -> str | None:
    """Return the answer that a response states, as it is written there; None where it states none.

    Args:
        response: what the policy wrote for the user to read (no reasoning marks).
        policy: "boxed": the inside of the last `\\boxed{}`; "last_number": the last number in the text;
            "boxed_then_last_number": the last number where there is no box at all; "tagged": what stands between
            the last `<answer>` and `</answer>`.
    """
    return _FINDERS[policy](response)


def has_box(response: str) -> bool:
    """Return whether a `\\boxed{` (or `\\fbox{`) is opened, whatever becomes of it."""
    return _BOX.search(response) is not None


def last_boxed(response: str) -> str | None:
    """Return the inside of the last `\\boxed{}` (or `\\fbox{}`), stripped.

    None where there is no box, where the last one is empty, or where it is not closed: a response that was cut
    within its box has not answered, whatever stood in earlier boxes.
    """
    openings = deque(_BOX.finditer(response), maxlen=1)
    if not openings:
        return None
    start = openings[0].end()
    depth = 1
    escaped = False
    for position in range(start, len(response)):
        character = response[position]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return response[start:position].strip() or None
    return None


def last_number(response: str) -> str | None:
    """Return the last number, without thousands separators and with `-` for a minus sign; None where there is none.

    A number is a whole or decimal number, or a fraction of whole numbers (`-3/4`). A minus counts where nothing
    stands before it that it could be subtracted from, so the last number of `10-3` is 3 and that of `x = -3` is -3.
    """
    numbers = deque(_NUMBER.finditer(response), maxlen=1)
    if not numbers:
        return None
    found = numbers[0]
    sign = "-" if found["sign"] else ""
    return f"{sign}{found['size'].replace(',', '')}{found['denominator'] or ''}"


def _boxed_then_last_number(response: str) -> str | None:
    # A box that is empty or cut short is an answer that failed, not a missing box.
    return last_boxed(response) if has_box(response) else last_number(response)


def last_tagged(response: str) -> str | None:
    """Return what stands between the last `<answer>` and the `</answer>` behind it; None where either is missing."""
    _, opening, rest = response.rpartition("<answer>")
    inner, closing, _ = rest.partition("</answer>")
    return (inner.strip() or None) if opening and closing else None


_FINDERS: Mapping[AnswerPolicy, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "last_number": last_number,
    "boxed_then_last_number": _boxed_then_last_number,
    "tagged": last_tagged,
}
