"""A closed vocabulary of words, numbers and pieces of SQL, which may hold spaces: what is always written together."""

import re
from collections.abc import Sequence

from midcourse.nano.tokenizer import MarkedVocabulary, spaced


class PieceTokenizer(MarkedVocabulary):
    """Text <-> ids: cut into the longest pieces that there are; white space that belongs to none is dropped."""

    def __init__(self, vocabulary: Sequence[str], *, marks: Sequence[str]) -> None:
        super().__init__(vocabulary, marks=marks)
        self._pieces = re.compile("|".join((*map(re.escape, self.longest_first), r"\s+", ".")), re.DOTALL)

    def encode_marked(self, text: str) -> list[int]:
        """Return ids; marks become tokens, and each character that no piece holds an unknown one."""
        pieces = self._pieces.findall(text)
        return [self.ids.get(piece, self.unknown_id) for piece in pieces if piece in self.ids or not piece.isspace()]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text, with a space between two pieces that touch with letters or digits.

        `encode(decode(ids)) == ids` for every sequence without two pieces that would merge.
        """
        return spaced(self.vocabulary[token_id] for token_id in token_ids)
