"""A closed vocabulary: text is cut into the longest tokens that it holds, and tokens are joined to text by a rule."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split

PAD, UNKNOWN = "<pad>", "<unk>"


class MarkedVocabulary(ABC):
    """Text -> ids of a vocabulary that holds UNKNOWN.

    Args:
        vocabulary: the tokens.
        marks: those of them that a chat format writes and no text of others' may hold.
    """

    def __init__(self, vocabulary: Sequence[str], *, marks: Sequence[str]) -> None:
        self.vocabulary = tuple(vocabulary)
        self.ids = {token: index for index, token in enumerate(self.vocabulary)}
        self.unknown_id = self.ids[UNKNOWN]
        self._marks = frozenset(self.ids[mark] for mark in marks)

    @property
    def longest_first(self) -> list[str]:
        """The tokens, in the order in which a text is cut into them."""
        return sorted(self.vocabulary, key=len, reverse=True)

    def encode(self, text: str) -> list[int]:
        """Return ids; what the vocabulary does not hold becomes the unknown token, and so do marks that are spelled."""
        return [self.unknown_id if token_id in self._marks else token_id for token_id in self.encode_marked(text)]

    @abstractmethod
    def encode_marked(self, text: str) -> list[int]:
        """Return ids of text that a chat format put together: marks become tokens."""


class ClosedTokenizer(MarkedVocabulary):
    """Text <-> ids. White space is dropped, also around tokens."""

    def __init__(self, vocabulary: Sequence[str], *, marks: Sequence[str]) -> None:
        super().__init__(vocabulary, marks=marks)
        self._tokenizer = Tokenizer(WordLevel(self.ids, unk_token=UNKNOWN))
        tokens = Regex("|".join(map(re.escape, self.longest_first)))
        self._tokenizer.pre_tokenizer = PreTokenizers([Split(tokens, "isolated"), Split(Regex(r"\s+"), "removed")])

    def encode_marked(self, text: str) -> list[int]:
        """Return ids; marks become tokens."""
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair, which a server can send, is no text
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens. `encode(decode(ids)) == ids` where no two neighbours spell a longer token."""
        return "".join(self.vocabulary[token_id] for token_id in token_ids)


def spaced(tokens: Iterable[str]) -> str:
    """Return the tokens as text, with a space between two that touch with letters or digits."""
    text = ""
    for token in tokens:
        text += f" {token}" if text[-1:].isalnum() and token[0].isalnum() else token
    return text
