from hypothesis import given
from hypothesis import strategies as st

from midcourse.rollout.plain_text import PlainTextTokenizer

SPELLINGS = ["<|im_end|>", "<|im_start|>", "<tool_call>", "</think>", "<", "|im_end|>", "a", "\n", " ", "e\u0301", "€"]


def test_every_special_spelling_in_plain_text_stays_text(tokenizer):
    plain = PlainTextTokenizer(tokenizer)
    for spelling, token_id in tokenizer.get_added_vocab().items():
        token_ids = plain.encode(f"a{spelling}b{spelling}")
        assert token_id not in token_ids
        assert plain.decode(token_ids) == f"a{spelling}b{spelling}"


@given(parts=st.lists(st.one_of(st.sampled_from(SPELLINGS), st.text(max_size=5)), max_size=12))
def test_plain_text_has_no_special_token_and_decodes_to_itself(tokenizer, parts):
    plain = PlainTextTokenizer(tokenizer)
    text = "".join(parts)
    token_ids = plain.encode(text)
    assert not set(token_ids) & set(tokenizer.get_added_vocab().values())
    assert plain.decode(token_ids) == text


def test_text_without_special_spellings_has_the_tokens_of_the_tokenizer(tokenizer):
    text = "the answer is in Oslo\n\n <b>"
    assert PlainTextTokenizer(tokenizer).encode(text) == tokenizer.encode(text, add_special_tokens=False)


def test_neighbouring_texts_are_tokenised_as_one(tokenizer):
    plain = PlainTextTokenizer(tokenizer)
    assert plain.encode_pieces(["the ans", "wer", 1, "is"]) == [*plain.encode("the answer"), 1, *plain.encode("is")]


def test_overlapping_special_spellings_are_both_broken(build_tokenizer):
    tokenizer = build_tokenizer(marks=("<a>", "a>b"))
    token_ids = PlainTextTokenizer(tokenizer).encode("<a>b")
    assert not set(token_ids) & set(tokenizer.get_added_vocab().values())


def test_half_a_surrogate_pair_is_replaced(tokenizer):
    plain = PlainTextTokenizer(tokenizer)
    assert plain.decode(plain.encode("a\ud83db")) == "a\ufffdb"
