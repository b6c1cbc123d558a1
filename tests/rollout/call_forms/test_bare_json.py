import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.rollout.call_forms.bare_json import BareJsonCalls
from midcourse.rollout.marks import Mark, split_marks
from midcourse.rollout.tool_calls import read_turn, write_turn
from midcourse.types import AssistantTurn, ToolCall

FORM = BareJsonCalls()


def read(text: str) -> AssistantTurn:
    return read_turn(split_marks(text, Mark), form=FORM)


CALL = '{"name": "search", "parameters": {"query": "Oslo"}}'
SEARCH = ToolCall("search", {"query": "Oslo"})


@pytest.mark.parametrize("text", [CALL, f" \n{CALL}\n", f"<|python_tag|>{CALL}"])
def test_a_turn_that_is_a_call_is_read_as_one(text):
    assert read(text) == AssistantTurn(tool_calls=(SEARCH,))


def test_several_calls_are_parted_by_semicolons():
    assert read(f"{CALL}; {CALL};{CALL}").tool_calls == (SEARCH,) * 3


def test_text_beside_a_call_stands_before_the_tag():
    turn = AssistantTurn(reasoning="so", content="Looking.", tool_calls=(SEARCH, SEARCH))
    pieces = write_turn(turn, form=FORM)
    assert "".join(pieces) == f"<think>\nso\n</think>\n\nLooking.<|python_tag|>{CALL}; {CALL}"
    assert read_turn(pieces, form=FORM) == turn


@pytest.mark.parametrize("text", ['{"verdict": true}', '{"name": "Oslo"}', "[1]", "{", "I call search.", f"So: {CALL}"])
def test_other_text_is_an_answer_json_too(text):
    assert read(text) == AssistantTurn(content=text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"name": "search", "parameters": {"query": "Oslo"}', "invalid JSON at character"),
        ('{"name": "search", "arguments": {}}', "name and parameters only: got also 'arguments'"),
        ('{"type": "function", "name": "search", "parameters": {}}', "got also 'type'"),
        ('{"name": 3, "parameters": {}}', "must have a name, a string: got 3"),
        ('{"name": "search", "parameters": "Oslo"}', "parameters of 'search' must be a JSON object"),
        (f"{CALL} and more", "behind tool call 1"),
        (f"{CALL};", "tool call 2 cannot be read"),
        ("<|python_tag|>search.call(query='Oslo')", "tool call 1 cannot be read: invalid JSON"),
        ('<|python_tag|>{"name": "search"}', "has no parameters"),
        (f"<|python_tag|>{CALL}<|python_tag|>{CALL}", "behind tool call 1"),
        ('{"name": "search", "parameters": {"a": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_call_that_cannot_be_read_is_an_error_that_says_why(text, reason):
    turn = read(text)
    assert reason in turn.parse_error
    assert turn.content == ""


def test_the_readable_calls_stay_beside_an_unreadable_one():
    turn = read(f'{CALL}; {{"name": "x"}}; {CALL}')
    assert turn.tool_calls == (SEARCH, SEARCH)
    assert turn.parse_error is not None
    assert turn.parse_error.startswith("tool call 2 cannot be read")


def test_an_answer_that_reads_like_a_call_cannot_be_written():
    with pytest.raises(ValueError, match="reads like a call"):
        write_turn(AssistantTurn(content=CALL), form=FORM)


@given(text=st.lists(st.one_of(st.sampled_from([CALL, ";", "<|python_tag|>", "{", '"name"', "</think>"]), st.text())))
def test_reading_never_raises(text):
    turn = read("".join(text))
    assert turn.parse_error is None or turn.parse_error
