"""Pieces of Markdown: words that are not ours made harmless, tables, shares."""

import html
from collections.abc import Sequence


def escape_text(text: str) -> str:
    """Return a model's words as they can stand in Markdown and HTML: no markup, no control characters."""
    visible = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    escaped = html.escape(visible)
    return "".join(f"&#{ord(char)};" if char in "`*_[]|\\" else char for char in escaped)


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; bars and line ends in cells are escaped."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def percent(value: float | None) -> str:
    """Return a share as text, "-" where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"
