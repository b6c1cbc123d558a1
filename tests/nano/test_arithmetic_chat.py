import pytest

from midcourse.nano.arithmetic.chat import END, VOCABULARY, ArithmeticChatFormat
from midcourse.nano.tokenizer import UNKNOWN
from midcourse.types import AssistantTurn

CHAT = ArithmeticChatFormat()


def test_a_conversation_is_the_query_and_the_generation_prompt():
    token_ids = CHAT.open(system_prompt="not shown", tools=(), query="047+138*7")
    assert [VOCABULARY[token] for token in token_ids] == ["<|user|>", *"047+138*7", "<|end|>", "<|assistant|>"]


def test_a_turn_is_its_content_and_comes_back_as_written():
    turn = AssistantTurn(content="047+138:78051,43180,01010=185;#185")
    token_ids = CHAT.render(turn)
    assert len(token_ids) == len(turn.content) + 1  # a token a character, and the end
    assert token_ids[-1] == CHAT.stop_ids[0] == CHAT.tokenizer.ids[END]
    assert CHAT.parse(token_ids) == turn
    assert CHAT.parse(token_ids[:-1]) == turn  # cut short: no end


def test_a_message_is_put_before_the_generation_prompt():
    history = CHAT.open(system_prompt="", tools=(), query="1+2")
    text = CHAT.decode(CHAT.with_message(history, "3"))
    assert text == "<|user|>1+2<|end|><|user|>3<|end|><|assistant|>"


def test_the_judge_has_a_generation_prompt_and_other_roles_are_unknown():
    assert CHAT.decode(CHAT.role_prompt(role="judge", instructions="", request="1+2")) == "1+2<|judge|>"
    unknown = CHAT.tokenizer.ids[UNKNOWN]
    assert unknown in CHAT.role_prompt(role="validator", instructions="", request="1+2")


@pytest.mark.parametrize(
    "text", ['{"reason":"12","verdict":"keep"}', '{"reason":"1","verdict":"revise","quote":"2345"}']
)
def test_verdicts_are_few_tokens(text):
    token_ids = CHAT.encode(text)
    assert CHAT.decode(token_ids) == text
    assert len(token_ids) <= 8
    assert CHAT.tokenizer.ids[UNKNOWN] not in token_ids


def test_half_a_surrogate_pair_is_an_unknown_token():
    assert [VOCABULARY[token] for token in CHAT.encode("1\ud8002")] == ["1", UNKNOWN, "2"]
