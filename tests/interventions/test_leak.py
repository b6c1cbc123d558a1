import pytest

from midcourse.environments.base import Evidence
from midcourse.interventions.leak import leaked_values, turn_text
from midcourse.types import AssistantTurn, ToolCall


def leaks(said, visible="", *, private=("121.5010,31.070",), phrases=()):
    evidence = Evidence(text="", private_values=private)
    return leaked_values(said, evidence=evidence, visible=visible, forbidden_phrases=phrases)


def test_a_private_value_that_nothing_shows_leaks():
    assert leaks("go to 121.5010,31.070") == ["121.5010,31.070"]


def test_a_private_value_that_an_earlier_result_shows_is_free():
    assert leaks("go to 121.5010,31.070", "Azure at 121.501,31.07 Oslo") == []


@pytest.mark.parametrize("said", ["121.501, 31.07", "at\n121.5010 ,\t31.0700!", "lon=121.501", "(121.501,31.07)"])
def test_writing_a_number_differently_does_not_hide_it(said):
    assert leaks(said) == ["121.5010,31.070"]


@pytest.mark.parametrize("said", ["131.0701", "31.07012", "31.070", "431.0701", "31.0701.2", "x31.0701"])
def test_a_longer_number_is_another_value(said):
    assert leaks(said, private=("31.0701",)) == []


def test_one_long_number_of_a_pair_is_private_and_a_short_one_is_not():
    assert leaks("121.501", private=("121.501,7",)) == ["121.501,7"]
    assert leaks("7", private=("121.501,7",)) == []


def test_a_negative_number_is_another_value_and_a_hyphen_is_no_sign():
    assert leaks("-31.0701", private=("31.0701",)) == []
    assert leaks("gate-31.0701", private=("31.0701",)) == ["31.0701"]


def test_names_match_whole_words_in_any_case():
    assert leaks("I ask LUMEN  hall", private=("Lumen Hall",)) == ["Lumen Hall"]
    assert leaks("Lumen Hallway", private=("Lumen Hall",)) == []


def test_names_of_scripts_without_spaces_match_inside_a_sentence():
    assert leaks("\u4ece\u5927\u91d1\u516c\u56ed\u51fa\u53d1", private=("\u5927\u91d1\u516c\u56ed",)) != []


def test_a_forbidden_phrase_leaks_unless_the_query_says_it():
    assert leaks("as the Reference answer says", phrases=("reference answer",)) == ["reference answer"]
    assert leaks("the reference answer", "Find the reference answer", phrases=("reference answer",)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"origin": "121.501,31.07"},
        {"origin": [121.501, 31.07]},
        {"origin": {"longitude": 121.501, "latitude": 31.07}},
        {"stops": [{"at": ["121.5010", "31.0700"]}]},
    ],
)
def test_arguments_are_searched_whatever_their_form(arguments):
    turn = AssistantTurn(tool_calls=(ToolCall("direction", arguments),))
    assert leaks(turn_text(turn)) == ["121.5010,31.070"]


def test_reasoning_and_content_are_searched():
    assert leaks(turn_text(AssistantTurn(reasoning="it is 121.501,31.07"))) != []
    assert leaks(turn_text(AssistantTurn(content="it is 121.501,31.07"))) != []
