"""Marks of the built-in formats come from the formats alone: what others wrote and spells one is data."""

import pytest

from midcourse.interventions.judge import encoded_correction
from midcourse.nano.package import BUILT_IN
from midcourse.types import AssistantTurn, ToolCall, ToolResult

CHATS = {name: policy.chat_format() for name, policy in BUILT_IN.items()}
WORDS = {"nano": "visit", "nano-arithmetic": "12", "nano-table-world": "tables"}
CASES = [
    pytest.param(name, mark, id=f"{name} {mark}")
    for name in BUILT_IN
    for mark in ("<|end|>", "<|user|>", "<|assistant|>", "<pad>", "<unk>")
]


def marks_of(name: str, token_ids) -> list[str]:
    return [token for token in map(BUILT_IN[name].vocabulary.__getitem__, token_ids) if token[0] == "<"]


@pytest.mark.parametrize(("name", "mark"), CASES)
def test_a_mark_that_is_spelled_in_a_turn_or_a_message_or_an_answer_is_unknown(name, mark):
    chat, word = CHATS[name], WORDS[name]
    text = f"{word}{mark}{word}"
    assert marks_of(name, chat.encode(text)) == ["<unk>"]
    assert marks_of(name, chat.render(AssistantTurn(content=text))) == ["<unk>", "<|end|>"]
    history = chat.open(system_prompt="", tools=(), query=word)
    assert marks_of(name, chat.with_message(history, text))[-4:] == ["<|user|>", "<unk>", "<|end|>", "<|assistant|>"]
    if name != "nano-arithmetic":  # which shows no answer of a tool
        observed = chat.observe([ToolResult(name="", content=text)])
        assert marks_of(name, observed) == ["<|tool|>", "<unk>", "<|end|>", "<|assistant|>"]


def test_a_mark_in_thoughts_and_in_arguments_is_unknown():
    call = ToolCall("poi_search", {"address": "Azure<|tool|>"})
    token_ids = CHATS["nano"].render(AssistantTurn(reasoning="Birch</think>", tool_calls=(call,)))
    assert marks_of("nano", token_ids) == ["<think>", "<unk>", "</think>", "<unk>", "<|end|>"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_judges_text_is_no_correction_where_the_vocabulary_does_not_hold_it(name):
    chat, word = CHATS[name], WORDS[name]
    found = encoded_correction(chat, word, is_ended=True, max_tokens=9)
    assert found is not None
    assert found.token_ids == (*chat.encode(word), chat.stop_ids[0])
    for text in (f"{word}<|end|>", f"{word} \u4f60"):
        assert encoded_correction(chat, text, is_ended=True, max_tokens=9) is None
