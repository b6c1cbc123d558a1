"""A tokenizer whose special tokens come from the format alone, never from text that happens to spell them.

Special are all tokens that were added to the vocabulary as wholes, also those (`<think>`, `<tool_call>`) that
tokenizers do not call special and split in no mode.
"""

import re
from collections.abc import Sequence
from typing import Any

TextOrToken = str | int
_SURROGATES = re.compile("[\ud800-\udfff]")


class PlainTextTokenizer:
    """Wraps a Hugging Face tokenizer. Spellings of one character and of white space alone stay as they are."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special_ids = {
            spelling: token_id
            for spelling, token_id in tokenizer.get_added_vocab().items()
            if len(spelling) > 1 and spelling.strip()
        }
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def special_id(self, spelling: str) -> int | None:
        """Return the token that is `spelling` as a whole, or None where the tokenizer has none."""
        return self._special_ids.get(spelling)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of plain text: no special token, whatever is spelled. Half surrogate pairs are replaced."""
        text = _SURROGATES.sub("\ufffd", text)
        token_ids: list[int] = []
        start = 0
        match = self._special.search(text) if self._special else None
        while match is not None and self._special is not None:
            # A spelling that is cut behind its first character is not found by the tokenizer.
            token_ids += self._encode(text[start : match.start() + 1])
            start = match.start() + 1
            match = self._special.search(text, start)
        return token_ids + self._encode(text[start:])

    def encode_pieces(self, pieces: Sequence[TextOrToken]) -> list[int]:
        """Return the tokens of texts and of tokens that are given. Neighbouring texts are tokenised as one."""
        token_ids: list[int] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
            else:
                token_ids += [*self.encode(text), piece]
                text = ""
        return token_ids + self.encode(text)

    def split_special(self, text: str) -> list[TextOrToken]:
        """Return text that the format wrote itself, with special tokens in place of their spellings."""
        if self._special is None:
            return [text]
        pieces: list[TextOrToken] = []
        start = 0
        for match in self._special.finditer(text):
            pieces += [text[start : match.start()], self._special_ids[match.group()]]
            start = match.end()
        return [*pieces, text[start:]]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens spelled out. Bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []
