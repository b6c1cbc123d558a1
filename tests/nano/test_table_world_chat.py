import random

import pytest

from midcourse.environments.table_world import draw_request
from midcourse.nano.table_world.chat import VOCABULARY, TableChatFormat
from midcourse.nano.tokenizer import PAD, UNKNOWN
from midcourse.types import AssistantTurn, ToolCall, ToolResult

CHAT = TableChatFormat()


def pieces(token_ids: list[int]) -> list[str]:
    return [VOCABULARY[token_id] for token_id in token_ids]


def sql(statement: str) -> AssistantTurn:
    return AssistantTurn(tool_calls=(ToolCall("sql_query", {"query": statement}),))


def test_padding_is_first_and_no_token_stands_twice():
    assert VOCABULARY[0] == PAD
    assert len(set(VOCABULARY)) == len(VOCABULARY)


def test_a_conversation_is_the_query_and_the_generation_prompt():
    token_ids = CHAT.open(system_prompt="not shown", tools=(), query="tables stock . in north , add cup")
    assert pieces(token_ids) == [
        *("<|user|>", "tables", "stock", ".", "in", "north", ",", "add", "cup", "<|end|>", "<|assistant|>")
    ]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "UPDATE stock SET size = '34' WHERE name = 'cup'",
            ["UPDATE ", "stock", " SET ", "size", " = '", "34", "' WHERE name = '", "cup", "'"],
        ),
        (
            "SELECT name FROM stock ORDER BY size DESC LIMIT 1",
            ["SELECT name FROM ", "stock", " ORDER BY ", "size", " DESC LIMIT 1"],
        ),
        ("SELECT means FROM guide WHERE word = 'north'", ["SELECT means FROM guide WHERE word = '", "north", "'"]),
        (
            "SELECT name FROM pragma_table_info('stock') ORDER BY name",
            ["SELECT name FROM pragma_table_info('", "stock", "') ORDER BY name"],
        ),
    ],
)
def test_a_statement_is_written_to_the_letter_in_few_tokens(statement, expected):
    token_ids = CHAT.render(sql(statement))
    assert pieces(token_ids) == [*expected, "<|end|>"]
    assert CHAT.parse(token_ids) == sql(statement)
    assert CHAT.parse(token_ids[:-1]) == sql(statement)  # cut short: no end


def test_an_answer_is_a_word_and_a_value():
    turn = AssistantTurn(tool_calls=(ToolCall("answer_action", {"answer": "34"}),))
    token_ids = CHAT.render(turn)
    assert pieces(token_ids) == ["answer", "34", "<|end|>"]
    assert CHAT.parse(token_ids) == turn
    nothing = CHAT.parse(CHAT.tokenizer.encode_marked("answer<|end|>"))
    assert nothing.tool_calls == (ToolCall("answer_action", {"answer": ""}),)


def test_an_empty_turn_is_named_and_any_other_text_is_a_statement():
    assert CHAT.parse([CHAT.stop_ids[0]]).parse_error == "a turn is a statement, or answer and a value"
    assert CHAT.parse(CHAT.tokenizer.encode_marked("stock stock<|end|>")) == sql("stock stock")


def test_results_are_shown_as_they_are_and_errors_as_one_word():
    rows = ToolResult(name="sql_query", content="[('name',), ('size',)]")
    assert pieces(CHAT.observe([rows])) == [
        *("<|tool|>", "[('", "name", "',), ('", "size", "',)]", "<|end|>", "<|assistant|>")
    ]
    change = ToolResult(name="sql_query", content="ok, 0 rows affected")
    assert pieces(CHAT.observe([change]))[1] == "ok, 0 rows affected"
    wrong = ToolResult(name="sql_query", content="Error: no such column: north", is_error=True)
    assert pieces(CHAT.observe([wrong])) == ["<|tool|>", "error", "<|end|>", "<|assistant|>"]


def test_a_message_is_put_before_the_generation_prompt():
    history = CHAT.open(system_prompt="", tools=(), query="tables stock")
    text = CHAT.decode(CHAT.with_message(history, "north"))
    assert text == "<|user|>tables stock<|end|><|user|>north<|end|><|assistant|>"


def test_every_query_comes_back_and_what_is_not_known_is_one_unknown_token_a_character():
    rng = random.Random(1)
    for unseen in (False, True):
        for num_traps in range(4):
            query = draw_request(rng, num_traps=num_traps, unseen=unseen).query
            token_ids = CHAT.encode(query)
            assert CHAT.tokenizer.ids[UNKNOWN] not in token_ids
            assert CHAT.encode(CHAT.decode(token_ids)) == token_ids
    assert pieces(CHAT.encode("cup x1")) == ["cup", UNKNOWN, UNKNOWN]
