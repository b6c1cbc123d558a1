"""What chat formats with `<think>` and tool call marks share: the turn itself, to tokens and back."""

from collections.abc import Iterable, Sequence

from midcourse.environments.base import Tool
from midcourse.rollout.call_forms import CallForm
from midcourse.rollout.call_forms.marked import HERMES
from midcourse.rollout.marks import THINK_MARKS, Mark, Piece, join_texts, split_marks
from midcourse.rollout.plain_text import PlainTextTokenizer, TextOrToken
from midcourse.rollout.tool_calls import read_turn, write_turn
from midcourse.types import AssistantTurn


class MarkedTurns:
    """Encodes, decodes, parses and renders turns.

    A mark that is a token of its own counts only as that token: the same spelling in plain tokens is text. A mark
    that the tokenizer does not have counts as spelled; text cannot hold it then without being read as the mark.

    Args:
        tokenizer: whose special tokens these are.
        stop_ids: tokens that end a turn; `render` writes the first.
        call_stop_id: what `render` writes behind a turn with calls, where that is another.
        form: how calls are written.
        opens_in_reasoning: the generation prompt ends in `<think>`, so a turn begins within its reasoning.
    """

    def __init__(
        self,
        tokenizer: PlainTextTokenizer,
        *,
        stop_ids: Sequence[int],
        call_stop_id: int | None = None,
        form: CallForm = HERMES,
        opens_in_reasoning: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = tuple(stop_ids)
        self._call_stop_id = self._stop_ids[0] if call_stop_id is None else call_stop_id
        self._form = form
        self._opens_in_reasoning = opens_in_reasoning
        marks = (*THINK_MARKS, *form.marks)
        self._marks = {token_id: mark for mark in marks if (token_id := tokenizer.special_id(mark.value)) is not None}
        self._spelled_marks = tuple(mark for mark in marks if mark not in self._marks.values())

    prompt_style = "standard"
    unknown_id = None

    @property
    def stop_ids(self) -> Sequence[int]:
        """Tokens that end a turn; the turn's last token where it ended by itself."""
        return self._stop_ids

    @property
    def call_form(self) -> CallForm:
        """How calls are written."""
        return self._form

    def encode(self, text: str) -> list[int]:
        """Tokenise text as plain content: special-token spellings in it do not become special tokens."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens spelled out."""
        return self._tokenizer.decode(token_ids)

    def parse(self, turn_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> AssistantTurn:
        """Read a turn. Never raises: what cannot be read is named in `parse_error`."""
        token_ids = list(turn_ids)
        if token_ids and token_ids[-1] in self._stop_ids:
            token_ids.pop()
        return read_turn(
            self._pieces(token_ids), form=self._form, tools=tools, opens_in_reasoning=self._opens_in_reasoning
        )

    def render(self, turn: AssistantTurn) -> list[int]:
        """Return the tokens of a turn as the policy would write it, stop token included.

        Raises:
            ValueError: a tool call's arguments are no JSON, or the form cannot hold the turn: text that spells a mark
                which this tokenizer has no token for would be read as the mark.
        """
        pieces = write_turn(turn, form=self._form, opens_in_reasoning=self._opens_in_reasoning)
        texts = [piece for piece in pieces if not isinstance(piece, Mark)]
        spelled = next((mark for mark in self._spelled_marks for text in texts if mark.value in text), None)
        if spelled is not None:
            raise ValueError(f"a turn whose text spells {spelled.value} would be read as if it held that mark")
        return [*self._encode_marked(pieces), self._call_stop_id if turn.tool_calls else self._stop_ids[0]]

    def _pieces(self, token_ids: Sequence[int]) -> list[Piece]:
        pieces: list[Piece] = []
        start = 0
        for position, token_id in enumerate(token_ids):
            mark = self._marks.get(token_id)
            if mark is not None:
                pieces += [*self._text_pieces(token_ids[start:position]), mark]
                start = position + 1
        return join_texts([*pieces, *self._text_pieces(token_ids[start:])])

    def _text_pieces(self, token_ids: Sequence[int]) -> list[Piece]:
        return split_marks(self._tokenizer.decode(token_ids), self._spelled_marks) if token_ids else []

    def _encode_marked(self, pieces: Iterable[Piece]) -> list[int]:
        token_of = {mark: token_id for token_id, mark in self._marks.items()}
        parts: list[TextOrToken] = []
        for piece in pieces:
            parts.append(token_of.get(piece, piece.value) if isinstance(piece, Mark) else piece)
        return self._tokenizer.encode_pieces(parts)
