"""JSON as a policy must write it: nothing repaired, nothing that JSON does not have, no key twice."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from midcourse.rollout.marks import excerpt


def read_json(text: str) -> Any:
    """Return the value that the whole of `text` is.

    Raises:
        ValueError: it is none; the message tells a language model what is wrong.
    """
    stripped = text.strip()
    value, end = read_first_json(stripped)
    if end < len(stripped):
        raise ValueError(f"invalid JSON at character {end} (Extra data): {excerpt(stripped)}")
    return value


def read_first_json(text: str) -> tuple[Any, int]:
    """Return the value that `text` begins with, and where it ends.

    Raises:
        ValueError: there is none; the message tells a language model what is wrong.
    """
    try:
        value, end = _DECODER.raw_decode(text)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair cannot be sent on
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a string holds half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON at character {error.pos} ({error.msg}): {excerpt(text)}") from None
    return value, end


def write_json(value: Any) -> str:
    """Return the value as JSON on one line. Raises ValueError if it is none (NaN and infinity are none)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"this is no JSON: {error}") from None


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _read_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{excerpt(digits)} is too large for a number")
    return number


def _read_object(pairs: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {excerpt(repeated)!r} stands twice in one object")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_read_float, object_pairs_hook=_read_object)
