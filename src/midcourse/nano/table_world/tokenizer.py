"""A closed vocabulary of words, numbers and pieces of SQL, which may hold spaces: what is always written together."""

import re
from collections.abc import Sequence

from midcourse.nano.tokenizer import UNKNOWN


class PieceTokenizer:
    """Text <-> ids: cut into the longest pieces that there are; white space that belongs to none is dropped.

    Args:
        vocabulary: the pieces.
        marks: those of them that a chat format writes and no text of others' may hold.
    """

    def __init__(self, vocabulary: Sequence[str], *, marks: Sequence[str]) -> None:
        self.vocabulary = tuple(vocabulary)
        self.ids = {piece: index for index, piece in enumerate(self.vocabulary)}
        longest_first = sorted(self.vocabulary, key=len, reverse=True)
        self._pieces = re.compile("|".join((*map(re.escape, longest_first), r"\s+", ".")), re.DOTALL)

        self.unknown_id = self.ids[UNKNOWN]
        self._marks = frozenset(self.ids[mark] for mark in marks)

    def encode(self, text: str) -> list[int]:
        """Return ids; a character that no piece holds becomes the unknown token, and so does a mark that is spelled."""
        return [self.unknown_id if token_id in self._marks else token_id for token_id in self.encode_marked(text)]

    def encode_marked(self, text: str) -> list[int]:
        """Return ids of text that a chat format put together: marks become tokens."""
        pieces = self._pieces.findall(text)
        return [self.ids.get(piece, self.unknown_id) for piece in pieces if piece in self.ids or not piece.isspace()]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text, with a space between two pieces that touch with letters or digits.

        `encode(decode(ids)) == ids` for every sequence without two pieces that would merge.
        """
        text = ""
        for token_id in token_ids:
            piece = self.vocabulary[token_id]
            spaced = text[-1:].isalnum() and piece[0].isalnum()
            text += f" {piece}" if spaced else piece
        return text
