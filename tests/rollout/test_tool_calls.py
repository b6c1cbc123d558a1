import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.rollout.call_forms.json_body import JsonBody
from midcourse.rollout.marks import Mark, split_marks
from midcourse.rollout.tool_calls import read_turn, write_turn
from midcourse.types import AssistantTurn, ToolCall

JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
        st.sampled_from(["</tool_call>", "<think>", "<|im_end|>"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
CALLS = st.builds(
    ToolCall, st.text(min_size=1, max_size=8), st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3)
)


def read(text: str, **kwargs) -> AssistantTurn:
    return read_turn(split_marks(text, Mark), **kwargs)


def test_a_turn_has_reasoning_content_and_several_calls():
    turn = read(
        "<think>\nfirst look\n</think>\n\nSearching.\n"
        '<tool_call>\n{"name": "search", "arguments": {"query": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "route", "arguments": {}}\n</tool_call>'
    )
    assert turn == AssistantTurn(
        reasoning="first look",
        content="Searching.",
        tool_calls=(ToolCall("search", {"query": "Oslo"}), ToolCall("route", {})),
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{'name': 'search'}", "invalid JSON at character"),
        ('{"name": "search", "arguments": {"query": "Oslo"}', "invalid JSON at character"),
        ('{"name": "search", "arguments": {}} and more', "Extra data"),
        ("", "invalid JSON"),
        ("[1]", "must be a JSON object with name and arguments"),
        ('{"arguments": {}}', "must have a name"),
        ('{"name": 3, "arguments": {}}', "must have a name, a string: got 3"),
        ('{"name": "", "arguments": {}}', "must have a name"),
        ('{"name": "search"}', "'search' has no arguments"),
        ('{"name": "search", "arguments": "Oslo"}', "arguments of 'search' must be a JSON object"),
        ('{"name": "search", "parameters": {}}', "got also 'parameters'"),
        ('{"name": "search", "arguments": {"a": 1, "a": 2}}', "'a' stands twice"),
        ('{"name": "search", "arguments": {"a": NaN}}', "NaN is no JSON number"),
        ('{"name": "search", "arguments": {"a": 1e999}}', "too large"),
        ('{"name": "search", "arguments": {"a": "\\ud83d"}}', "surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": "search", "arguments": {"a": ' + "9" * 5000 + "}}", "tool call 1 cannot be read"),
    ],
)
def test_a_call_that_is_no_strict_json_is_an_error_that_says_why(body, reason):
    turn = read(f"<tool_call>{body}</tool_call>")
    assert turn.tool_calls == ()
    assert reason in turn.parse_error


def test_the_readable_calls_of_a_turn_stay_beside_an_unreadable_one():
    turn = read(
        '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{</tool_call>'
        '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    )
    assert [call.name for call in turn.tool_calls] == ["a", "b"]
    assert turn.parse_error.startswith("tool call 2 cannot be read")


def test_an_unclosed_call_is_an_error_even_where_its_json_is_whole():
    turn = read('<tool_call>\n{"name": "a", "arguments": {}}')
    assert turn.tool_calls == ()
    assert "not closed by </tool_call>" in turn.parse_error


def test_a_call_that_begins_within_a_call_is_an_error_and_the_inner_one_is_read():
    turn = read('<tool_call>{"name": <tool_call>{"name": "a", "arguments": {}}</tool_call>')
    assert [call.name for call in turn.tool_calls] == ["a"]
    assert "tool call 1 is not closed" in turn.parse_error


def test_a_closing_mark_alone_is_an_error():
    assert "without <tool_call>" in read("done</tool_call>").parse_error


def test_unclosed_reasoning_is_an_error_and_its_calls_do_not_run():
    turn = read('<think>\nlet me see <tool_call>{"name": "a", "arguments": {}}</tool_call>')
    assert turn.tool_calls == ()
    assert turn.reasoning.startswith("let me see <tool_call>")
    assert "not closed by </think>" in turn.parse_error


def test_calls_inside_closed_reasoning_are_text_and_no_error():
    turn = read("<think>maybe <tool_call>{</tool_call></think>\n\nYes.")
    assert turn == AssistantTurn(reasoning="maybe <tool_call>{</tool_call>", content="Yes.")


def test_reasoning_that_was_never_opened_is_still_reasoning():
    assert read("thinking</think>Yes.") == AssistantTurn(reasoning="thinking", content="Yes.")


def test_text_around_calls_joins_the_content():
    call = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    assert read(f"before\n{call}\nbetween\n{call} after").content == "before\nbetween\nafter"


def test_a_prompt_that_opens_the_reasoning_makes_the_turn_begin_within_it():
    turn = AssistantTurn(reasoning="\nso", content="Yes.")
    pieces = write_turn(turn, opens_in_reasoning=True)
    assert pieces == ["\nso\n", Mark.THINK_END, "\n\nYes."]
    assert read_turn(pieces, opens_in_reasoning=True) == turn


@given(call=CALLS)
def test_a_written_call_is_read_back_and_spells_no_mark(call):
    text = JsonBody().write(call)
    assert not any(mark.value in text for mark in Mark)
    read_back = JsonBody().read(text)
    assert read_back.name == call.name
    assert json.dumps(read_back.arguments) == json.dumps(call.arguments)  # 1, 1.0 and true are told apart


def test_arguments_that_are_no_json_cannot_be_written():
    with pytest.raises(ValueError, match="no JSON"):
        JsonBody().write(ToolCall("a", {"b": {1, 2}}))
    with pytest.raises(ValueError, match="Out of range"):
        JsonBody().write(ToolCall("a", {"b": float("nan")}))


@given(
    pieces=st.lists(st.one_of(st.sampled_from(Mark), st.text(max_size=10), st.just('{"name": "a", "arguments": {}}')))
)
def test_reading_never_raises_whatever_the_marks(pieces):
    turn = read("".join(str(piece) for piece in pieces))
    assert turn.parse_error is None or turn.parse_error


@given(
    reasoning=st.text(alphabet="ab \n", max_size=6),
    content=st.text(alphabet="ab \n", max_size=6),
    calls=st.lists(CALLS, max_size=2),
    opens=st.booleans(),
)
def test_a_written_turn_is_read_back(reasoning, content, calls, opens):
    turn = AssistantTurn(reasoning=reasoning, content=content, tool_calls=tuple(calls))
    assert read_turn(write_turn(turn, opens_in_reasoning=opens), opens_in_reasoning=opens) == turn
