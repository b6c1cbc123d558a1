import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from midcourse.interventions.locate import chunk_text, locate_character, locate_quote

TEXTS = (
    "the sum of the first ten numbers is fifty five",
    "so x = 12 and y = 12 + 3 = 15.",
    "答案是四十二。答案是",
    "😀 😀 naïve café",
)
PIECES = ("the ", "sum", " 12", " = ", "12", "aaa", "é", "答案是", "四", "😀", "👩‍👩‍👧", "\n", "\u0301", "x")


def build(vocabulary_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


BYTES, MERGED = build(256), build(330)
TOKENIZERS = {"bytes": BYTES, "merged": MERGED}
BYTE_OF = {  # the byte-level alphabet: printable bytes stand for themselves, the others follow from 256 on
    **{chr(byte): byte for byte in (*range(33, 127), *range(161, 173), *range(174, 256))},
    **{
        chr(256 + index): byte
        for index, byte in enumerate(b for b in range(256) if not (33 <= b < 127 or 161 <= b < 173 or b >= 174))
    },
}


def bytes_of(tokenizer: Tokenizer, token_id: int) -> bytes:
    return bytes(BYTE_OF[character] for character in tokenizer.id_to_token(token_id))


def expected_cut(tokenizer: Tokenizer, accepted, chunk, whole: str, position: int) -> int:
    """The answer by bytes: the last border of a token that is a border of a character at or before `position`."""
    borders, length = set(), 0
    for character in whole[:position]:
        borders.add(length)
        length += len(character.encode())
    borders.add(length)
    at = sum(len(bytes_of(tokenizer, token)) for token in accepted)
    best = 0
    for count, token in enumerate(chunk, start=1):
        at += len(bytes_of(tokenizer, token))
        if at in borders:
            best = count
    return best


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    text=st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), min_size=1, max_size=12).map("".join),
    data=st.data(),
)
def test_the_cut_is_the_last_whole_character_border_at_or_before_the_quote(name, text, data):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).ids
    assume(ids)
    split = data.draw(st.integers(0, len(ids) - 1))
    accepted, chunk = ids[:split], ids[split:]
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    found = chunk_text(tokenizer.decode, accepted, chunk)
    assert found.accepted + found.chunk == whole == text
    assume(found.chunk)
    begin = data.draw(st.integers(0, len(found.chunk) - 1))
    quote = found.chunk[begin : data.draw(st.integers(begin + 1, len(found.chunk)))]
    first = found.start + found.chunk.find(quote)
    assert locate_quote(tokenizer.decode, accepted, chunk, quote) == expected_cut(
        tokenizer, accepted, chunk, text, first
    )
    assert locate_character(tokenizer.decode, accepted, chunk, begin) == expected_cut(
        tokenizer, accepted, chunk, text, found.start + begin
    )


def locate(text: str, quote: str, *, tokenizer: Tokenizer = MERGED, accepted: int = 0) -> tuple[int | None, str]:
    """Return the cut, and the text that stays of the chunk."""
    ids = tokenizer.encode(text).ids
    chunk = ids[accepted:]
    at = locate_quote(tokenizer.decode, ids[:accepted], chunk, quote)
    return at, tokenizer.decode([*ids[:accepted], *chunk[: at or 0]])


def test_the_earliest_of_several_occurrences_counts():
    assert locate("so x = 12 and y = 12 + 3 = 15.", "12")[1] == "so x ="


def test_a_token_that_begins_before_the_quote_goes_too():
    tokens = [MERGED.id_to_token(token) for token in MERGED.encode("the sum of the first").ids]
    assert "Ġthe" in tokens or "Ġfirst" in tokens  # the space and the word are one token
    at, kept = locate("the sum of the first", "the first")
    assert kept == "the sum of"
    assert at == len(MERGED.encode("the sum of").ids)


def test_a_character_over_several_tokens_is_removed_whole():
    ids = BYTES.encode("a😀b").ids
    assert len(ids) == 6
    assert locate_quote(BYTES.decode, [], ids, "😀") == 1
    assert locate_quote(BYTES.decode, [], ids, "b") == 5


def test_a_chunk_that_begins_within_a_character_owns_it_and_is_cut_at_its_own_start():
    ids = BYTES.encode("a😀b").ids
    accepted, chunk = ids[:3], ids[3:]
    assert chunk_text(BYTES.decode, accepted, chunk).chunk == "😀b"
    assert locate_quote(BYTES.decode, accepted, chunk, "😀") == 0
    assert locate_quote(BYTES.decode, accepted, chunk, "b") == 2


def test_what_is_only_in_the_accepted_part_or_reaches_into_it_is_not_found():
    ids = BYTES.encode("ab cd ab").ids
    assert locate_quote(BYTES.decode, ids[:5], ids[5:], "cd") is None
    assert locate_quote(BYTES.decode, ids[:4], ids[4:], "cd ab") is None
    assert locate_quote(BYTES.decode, ids[:5], ids[5:], "ab") == 1  # the occurrence in the chunk, not the first of all


def test_an_empty_quote_and_one_that_is_nowhere_name_no_place():
    ids = BYTES.encode("ab").ids
    assert locate_quote(BYTES.decode, [], ids, "") is None
    assert locate_quote(BYTES.decode, [], ids, "c") is None


def test_unfinished_characters_at_the_end_are_not_shown():
    ids = BYTES.encode("a😀").ids[:3]
    text = chunk_text(BYTES.decode, [], ids)
    assert text.chunk.startswith("a\ufffd")
    assert text.shown == "a"


def test_bytes_that_are_no_character_keep_their_place():
    ids = [*BYTES.encode("a").ids, BYTES.encode("😀").ids[0], *BYTES.encode("bc").ids]
    assert locate_quote(BYTES.decode, [], ids, "bc") == 2


def test_a_character_outside_the_chunk_is_refused():
    with pytest.raises(ValueError, match="characters 0 to 1"):
        locate_character(BYTES.decode, [], BYTES.encode("ab").ids, 2)


def test_long_chunks_need_few_decodes():
    ids = BYTES.encode("abcd" * 200).ids
    calls = []

    def decode(token_ids):
        calls.append(len(token_ids))
        return BYTES.decode(token_ids)

    assert locate_quote(decode, ids[:100], ids[100:], "abcd") == 0
    assert len(calls) < 30
