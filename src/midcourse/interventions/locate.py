"""A place in a chunk's text -> the first token of the chunk that has to go. Letters: N tokens of the chunk.

Tokens are not characters: a character may be spread over several tokens, one token may hold the end of one word and
the beginning of the next, and a decoder may treat the first token of a text differently. So nothing is mapped token
by token: texts of growing prefixes are compared with the text of the whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"
"""What decoders write for bytes that are no character (yet)."""
LONGEST_UNFINISHED = 3
"""Characters that a decoder may write for the bytes of a character whose end is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkText:
    """A chunk as text. `whole` is the turn so far, the chunk's own text begins at character `start`."""

    whole: str
    start: int

    @property
    def accepted(self) -> str:
        """The text before the chunk. A character that the chunk completes belongs to the chunk."""
        return self.whole[: self.start]

    @property
    def chunk(self) -> str:
        """The chunk's own text."""
        return self.whole[self.start :]

    @property
    def shown(self) -> str:
        """The chunk's own text without a character at its end whose other bytes are still to come."""
        return self.chunk.rstrip(REPLACEMENT)


def chunk_text(
    decode: Callable[[Sequence[int]], str], accepted_ids: Sequence[int], chunk_ids: Sequence[int]
) -> ChunkText:
    """Return the text of a chunk within its turn.

    Args:
        decode: tokens -> text, the chat format's.
        accepted_ids: the turn's tokens before the chunk.
        chunk_ids: [N] the chunk.
    """
    whole = decode([*accepted_ids, *chunk_ids])
    return ChunkText(whole=whole, start=_common_length(decode(accepted_ids) if accepted_ids else "", whole))


def locate_quote(
    decode: Callable[[Sequence[int]], str], accepted_ids: Sequence[int], chunk_ids: Sequence[int], quote: str
) -> int | None:
    """Return the token of the chunk at which the quote's earliest occurrence in it begins; None where it has none.

    The first character of the quote is then in no token before that one, not even in part, and what stands before is
    whole characters: it reads as a prefix of the text. So the cut may lie before the quote's first character where
    the token that holds it begins earlier. An occurrence that begins before the chunk is none. An empty quote names
    no place.

    Args:
        decode: tokens -> text, the chat format's.
        accepted_ids: the turn's tokens before the chunk.
        chunk_ids: [N] the chunk.
        quote: copied from the chunk.
    """
    text = chunk_text(decode, accepted_ids, chunk_ids)
    position = text.chunk.find(quote) if quote else -1
    return None if position < 0 else _token_before(decode, accepted_ids, chunk_ids, text.whole, text.start + position)


def locate_character(
    decode: Callable[[Sequence[int]], str], accepted_ids: Sequence[int], chunk_ids: Sequence[int], character: int
) -> int:
    """Return the token of the chunk at which character `character` of its own text begins; else as `locate_quote`.

    Raises:
        ValueError: the chunk's text has no such character.
    """
    text = chunk_text(decode, accepted_ids, chunk_ids)
    if not 0 <= character < len(text.chunk):
        raise ValueError(f"the chunk has characters 0 to {len(text.chunk) - 1}: got {character}")
    return _token_before(decode, accepted_ids, chunk_ids, text.whole, text.start + character)


def _token_before(
    decode: Callable[[Sequence[int]], str],
    accepted_ids: Sequence[int],
    chunk_ids: Sequence[int],
    whole: str,
    position: int,
) -> int:
    """Return the most tokens of the chunk whose text, after the accepted, ends at or before `position` of `whole`."""

    def text_of(count: int) -> str:
        return decode([*accepted_ids, *chunk_ids[:count]])

    # Whole characters before `count` only grow with it, and the text is longer than them by LONGEST_UNFINISHED at
    # most: past that every count, and all after it, hold the character at `position`.
    low, high = 0, len(chunk_ids)
    while low < high:
        middle = (low + high + 1) // 2
        if len(text_of(middle)) > position + LONGEST_UNFINISHED:
            high = middle - 1
        else:
            low = middle
    for count in range(high, 0, -1):
        text = text_of(count)
        if len(text) <= position and whole.startswith(text):
            return count
    return 0


def _common_length(left: str, right: str) -> int:
    """Return how many characters two texts begin with together."""
    if right.startswith(left):  # nearly always; the loop is slow
        return len(left)
    for position, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return position
    return min(len(left), len(right))
