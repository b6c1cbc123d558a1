"""What chat formats with `<think>` and `<tool_call>` marks share: the turn itself, to tokens and back."""

from collections.abc import Iterable, Sequence

from midcourse.rollout.plain_text import PlainTextTokenizer, TextOrToken
from midcourse.rollout.tool_calls import Mark, Piece, join_texts, read_turn, split_marks, write_turn
from midcourse.types import AssistantTurn


class MarkedTurns:
    """Encodes, decodes, parses and renders turns.

    A mark that is a token of its own counts only as that token: the same spelling in plain tokens is text. A mark
    that the tokenizer does not have counts as spelled; text cannot hold it then without being read as the mark.

    Args:
        tokenizer: whose special tokens these are.
        stop_ids: tokens that end a turn; `render` writes the first.
        opens_in_reasoning: the generation prompt ends in `<think>`, so a turn begins within its reasoning.
    """

    def __init__(
        self, tokenizer: PlainTextTokenizer, *, stop_ids: Sequence[int], opens_in_reasoning: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = tuple(stop_ids)
        self._opens_in_reasoning = opens_in_reasoning
        self._marks = {token_id: mark for mark in Mark if (token_id := tokenizer.special_id(mark.value)) is not None}
        self._spelled_marks = tuple(mark for mark in Mark if mark not in self._marks.values())

    prompt_style = "standard"

    @property
    def stop_ids(self) -> Sequence[int]:
        """Tokens that end a turn; the turn's last token where it ended by itself."""
        return self._stop_ids

    def encode(self, text: str) -> list[int]:
        """Tokenise text as plain content: special-token spellings in it do not become special tokens."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens spelled out."""
        return self._tokenizer.decode(token_ids)

    def parse(self, turn_ids: Sequence[int]) -> AssistantTurn:
        """Read a turn. Never raises: what cannot be read is named in `parse_error`."""
        token_ids = list(turn_ids)
        if token_ids and token_ids[-1] in self._stop_ids:
            token_ids.pop()
        return read_turn(self._pieces(token_ids), opens_in_reasoning=self._opens_in_reasoning)

    def render(self, turn: AssistantTurn) -> list[int]:
        """Return the tokens of a turn as the policy would write it, stop token included.

        Raises:
            ValueError: a tool call's arguments are no JSON.
        """
        pieces = write_turn(turn, opens_in_reasoning=self._opens_in_reasoning)
        return [*self._encode_marked(pieces), self._stop_ids[0]]

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
