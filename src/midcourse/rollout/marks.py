"""What structures the text of a turn: marks, and the plain text between them.

Which of the marks are tokens of their own, and are therefore never confused with text that spells them, is up to the
tokenizer (plain_text.py).
"""

import re
from collections.abc import Iterable
from enum import StrEnum

EXCERPT_CHARACTERS = 80


class Mark(StrEnum):
    """What structures a turn. A family uses some of them."""

    THINK = "<think>"
    THINK_END = "</think>"
    CALL = "<tool_call>"
    CALL_END = "</tool_call>"
    PYTHON_TAG = "<|python_tag|>"


THINK_MARKS = (Mark.THINK, Mark.THINK_END)
Piece = str | Mark


def split_marks(text: str, marks: Iterable[Mark]) -> list[Piece]:
    """Return `text` cut at every spelling of `marks`, without empty pieces."""
    spelled = {mark.value: mark for mark in marks}
    if not spelled:
        return [text] if text else []
    parts = re.split(f"({'|'.join(map(re.escape, spelled))})", text)
    return [spelled.get(part, part) for part in parts if part]


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


def excerpt(text: str) -> str:
    """Return the beginning of a text, for a message to a language model."""
    text = text.strip()
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]}..."
