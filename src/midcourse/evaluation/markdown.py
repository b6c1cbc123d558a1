"""Pieces of Markdown: words that are not ours made harmless, tables, shares."""

import html
import re
from collections.abc import Callable, Sequence

Escape = Callable[[str], str]
"""How words that a user or a model wrote are made harmless where a text is read."""
_MARKUP = re.compile(r"[`*~\[\]|\\$#!]|(?<!\w)_+|_+(?!\w)")
"""What Markdown reads as more than a character; an underscore within a word is none."""


def visible(text: str) -> str:
    """Return text on one line, with control characters and half surrogate pairs spelled out: fit for a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def escape_text(text: str) -> str:
    """Return a model's words as they can stand in Markdown and HTML: no markup, no control characters."""
    found = visible(text)
    pieces: list[str] = []
    end = 0
    for mark in _MARKUP.finditer(found):
        pieces.append(html.escape(found[end : mark.start()], quote=False))
        pieces += (f"&#{ord(char)};" for char in mark[0])
        end = mark.end()
    return "".join([*pieces, html.escape(found[end:], quote=False)])


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, escape: Escape = escape_text) -> str:
    """Return a Markdown table, every cell escaped: by default for Markdown, with `visible` for a terminal."""
    lines = [[escape(cell) for cell in line] for line in (headings, *rows)]
    lines.insert(1, ["---"] * len(headings))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(value: float | None) -> str:
    """Return a share as text, "-" where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"
