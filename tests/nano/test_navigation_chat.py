import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.environments.navigation.vocabulary import NANO_NAMES, NANO_NUMBERS, NANO_REGIONS
from midcourse.nano.navigation.chat import CompactChatFormat
from midcourse.nano.navigation.tokenizer import VOCABULARY, NanoTokenizer
from midcourse.types import AssistantTurn, ToolCall, ToolResult

TOKENIZER = NanoTokenizer()
CHAT = CompactChatFormat(TOKENIZER)

coordinates = st.tuples(st.sampled_from(NANO_NUMBERS), st.sampled_from(NANO_NUMBERS)).map(",".join)
searches = st.builds(
    lambda name, region: ToolCall("poi_search", {"address": name} | ({"region": region} if region else {})),
    st.sampled_from(NANO_NAMES),
    st.none() | st.sampled_from(NANO_REGIONS),
)
routes = st.lists(coordinates, min_size=2, max_size=5).map(
    lambda stops: ToolCall(
        "direction",
        {"origin": stops[0]} | ({"waypoints": stops[1:-1]} if len(stops) > 2 else {}) | {"destination": stops[-1]},
    )
)
turns = st.builds(
    AssistantTurn,
    reasoning=st.lists(st.tuples(st.sampled_from(NANO_NAMES), coordinates).map(" ".join), max_size=3).map(" ".join),
    tool_calls=st.lists(searches | routes, min_size=1, max_size=4).map(tuple),
)


@given(turns)
def test_a_rendered_turn_is_read_back_as_it_was(turn):
    assert CHAT.parse(CHAT.render(turn)) == turn


@given(turns)
def test_a_turns_text_tokenises_to_its_own_tokens(turn):
    token_ids = CHAT.render(turn)
    assert TOKENIZER.ids["<unk>"] not in token_ids
    assert TOKENIZER.encode_marked(CHAT.decode(token_ids)) == token_ids


@given(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=30))
def test_reading_a_turn_never_raises(token_ids):
    turn = CHAT.parse(token_ids)
    assert turn.parse_error is not None or turn.tool_calls


def test_an_answer_follows_a_turn_without_touching_it():
    results = [
        ToolResult(name="poi_search", content="Azure 31,07 Oslo"),
        ToolResult(name="", content="x", is_error=True),
    ]
    assert CHAT.decode(CHAT.observe(results)) == "<|tool|>Azure 31,07 Oslo;error<|end|><|assistant|>"


def test_a_message_comes_before_the_generation_prompt():
    history = CHAT.open(system_prompt="", tools=(), query="visit Azure Birch")
    assert (
        CHAT.decode(CHAT.with_message(history, "Azure Oslo;direction"))
        == "<|user|>visit Azure Birch<|end|><|user|>Azure Oslo;direction<|end|><|assistant|>"
    )


def test_a_role_prompt_begins_with_the_tokens_the_policy_saw():
    history = CHAT.open(system_prompt="", tools=(), query="visit Azure Birch")
    prompt = CHAT.role_prompt(role="validator", instructions="", request=CHAT.decode(history) + "poi_search Azure")
    assert prompt[: len(history)] == history
    assert prompt[-1] == TOKENIZER.ids["<|validator|>"]


@pytest.mark.parametrize("text", ["", "poi_search", "Azure", "direction 31,07 Azure", "poi_search Azure@Oslo@Lima"])
def test_what_is_no_call_is_named_or_left_to_the_environment(text):
    turn = CHAT.parse(CHAT.encode(text))
    assert turn.parse_error or turn.tool_calls[0].name in ("direction", "poi_search")
