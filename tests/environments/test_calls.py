import pytest

from midcourse.environments.base import Tool
from midcourse.environments.calls import BadCall, Turns, argument_names, one_argument
from midcourse.types import AssistantTurn, ToolCall, ToolResult

NAMES = argument_names(
    [Tool(name="ask", description="", parameters={"type": "object", "properties": {"what": {"type": "string"}}})]
)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (ToolCall("a" * 90, {}), f"unknown tool '{'a' * 40}'; expected one of ask$"),
        (ToolCall("ask", {}), "ask expects the argument what and no other: got none"),
        (ToolCall("ask", {"what": 1, "more": 2}), "no other: got what, more"),
        (ToolCall("ask", ["what"]), "got none"),
    ],
)
def test_a_call_has_its_one_argument_and_no_other(call, reason):
    with pytest.raises(BadCall, match=reason):
        one_argument(call, NAMES)


def test_an_argument_may_be_of_any_kind():
    assert one_argument(ToolCall("ask", {"what": [1]}), NAMES) == [1]


def turn(*names: str, error: str | None = None) -> AssistantTurn:
    return AssistantTurn(tool_calls=[ToolCall(name, {}) for name in names], parse_error=error)


def test_calls_run_in_order_until_one_ends_the_episode():
    turns, ran = Turns(5), []

    def run(call: ToolCall) -> ToolResult:
        ran.append(call.name)
        turns.is_done = call.name == "end"
        return ToolResult(name=call.name, content="")

    assert not turns.run(turn("one", "two"), run).done
    observation = turns.run(turn("three", "end", "never"), run)
    assert observation.done
    assert [result.name for result in observation.results] == ["three", "end"]
    assert turns.run(turn("late"), run).results == ()
    assert ran == ["one", "two", "three", "end"]


def test_a_turn_without_calls_ends_it_unless_a_call_could_not_be_read():
    turns = Turns(5)
    assert not turns.run(turn(error="what?"), pytest.fail).done
    assert turns.run(turn(), pytest.fail).done


def test_one_turn_over_the_limit_is_not_run_and_a_copy_counts_on_its_own():
    turns = Turns(2)
    answer = ToolResult(name="one", content="")
    turns.run(turn("one"), lambda call: answer)
    copied = turns.copy()
    assert not turns.run(turn("one"), lambda call: answer).done
    assert turns.run(turn("one"), pytest.fail).done
    assert not copied.is_done
    assert copied.run(turn("one"), lambda call: answer).results == (answer,)
