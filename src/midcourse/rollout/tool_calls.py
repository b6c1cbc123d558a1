"""The text of a turn: `<think>` reasoning, then content and tool calls in the family's form (call_forms/).

A turn is a list of pieces: plain text, and marks. Tokens are somebody else's matter (marked.py).
"""

from collections.abc import Sequence

from midcourse.environments.base import Tool
from midcourse.rollout.call_forms import CallForm
from midcourse.rollout.call_forms.marked import HERMES
from midcourse.rollout.marks import Mark, Piece, join_texts
from midcourse.types import AssistantTurn


def read_turn(
    pieces: Sequence[Piece],
    *,
    form: CallForm = HERMES,
    tools: Sequence[Tool] = (),
    opens_in_reasoning: bool = False,
) -> AssistantTurn:
    """Return the turn. Never raises: what cannot be read is named in `parse_error`, and the readable calls stay.

    One newline inside each end of the reasoning, two behind it and what the form writes before the first call belong
    to the form; all other white space is the policy's.

    Args:
        pieces: the turn without its stop token; no two texts in a row.
        form: how calls are written.
        tools: their schemas say of which type an argument is, where the form does not.
        opens_in_reasoning: the generation prompt has written `<think>` already.
    """
    errors: list[str] = []
    reasoning, rest = split_reasoning(list(pieces), opens_in_reasoning, errors)
    content, calls = form.read(rest, tools=tools, errors=errors)
    return AssistantTurn(
        reasoning=reasoning, content=content, tool_calls=tuple(calls), parse_error="; ".join(errors) or None
    )


def split_reasoning(pieces: list[Piece], opens_in_reasoning: bool, errors: list[str]) -> tuple[str, list[Piece]]:
    """Return the reasoning and the pieces behind it. Marks of calls inside the reasoning are text there."""
    start = 0
    if pieces and pieces[0] is Mark.THINK:
        start = 1
    elif len(pieces) > 1 and pieces[1] is Mark.THINK and not pieces[0].strip():
        start = 2
    elif not opens_in_reasoning and Mark.THINK_END not in pieces:
        return "", pieces
    if Mark.THINK_END not in pieces[start:]:
        errors.append(f"the reasoning is not closed by {Mark.THINK_END.value}, so nothing behind it was read")
        return "".join(pieces[start:]).removeprefix("\n"), []
    end = pieces.index(Mark.THINK_END, start)
    reasoning = "".join(pieces[start:end]).removesuffix("\n")
    if start > 0:  # else the generation prompt wrote the newline
        reasoning = reasoning.removeprefix("\n")
    rest = pieces[end + 1 :]
    if rest and not isinstance(rest[0], Mark):
        rest[0] = rest[0].removeprefix("\n").removeprefix("\n")
        rest = rest if rest[0] else rest[1:]
    return reasoning, rest


def write_turn(turn: AssistantTurn, *, form: CallForm = HERMES, opens_in_reasoning: bool = False) -> list[Piece]:
    """Return the pieces of a turn, without stop token; `read_turn` reads back the same turn.

    Not so where text holds a mark that is no token of its own: that text is then read as the mark.

    Raises:
        ValueError: an argument is no JSON, or the form cannot hold the turn.
    """
    pieces: list[Piece] = []
    if turn.reasoning or opens_in_reasoning:
        opening: list[Piece] = [] if opens_in_reasoning else [Mark.THINK, "\n"]
        pieces += [*opening, f"{turn.reasoning}\n", Mark.THINK_END, "\n\n"]
    return join_texts([*pieces, *form.write(turn.content, turn.tool_calls)])
