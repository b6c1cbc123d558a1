"""Calls that are right, and calls that are wrong in every way."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.environments.navigation import NANO_NAMES, NANO_REGIONS, make_atlas, make_task
from midcourse.environments.navigation.episode import MAX_TURNS, NavigationEpisode
from midcourse.environments.navigation.places import parse_point
from midcourse.environments.navigation.rendering import read_places, render_places
from midcourse.environments.navigation.tools import TOOLS, run_call
from midcourse.types import AssistantTurn, ToolCall

NANO = make_atlas("nano", 1)
FULL = make_atlas("full", 1)
SHOWN = ["12.5,41.9", "12.6,41.8", "12.4,41.7"]
VISIBLE = frozenset(parse_point(text, profile="full") for text in SHOWN)


def run(name, arguments):
    return run_call(ToolCall(name, arguments), world=FULL, profile="full", visible=VISIBLE)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("teleport", {}, "expected one of poi_search"),
        ("poi_search", {}, "missing ['address']"),
        ("poi_search", {"address": 5}, "non-empty string"),
        ("poi_search", {"address": " "}, "non-empty string"),
        ("poi_search", {"address": "Jade Park", "city": "Rome"}, "unknown ['city']"),
        ("poi_search", {"address": "Nowhere At All"}, "No POI data available"),
        ("poi_search", ["address"], "JSON object"),
        ("around_search", {"location": "somewhere", "radius": 10}, "longitude,latitude"),
        ("around_search", {"location": "12.5,41.9", "radius": 50_001}, "[0, 50000]"),
        ("around_search", {"location": "12.5,41.9", "radius": float("nan")}, "[0, 50000]"),
        ("around_search", {"location": "12.5,41.9", "radius": True}, "[0, 50000]"),
        ("direction", {"origin": SHOWN[0]}, "missing ['destination']"),
        ("direction", {"origin": SHOWN[0], "destination": "41.8,112.6"}, "latitude"),
        ("direction", {"origin": SHOWN[0], "destination": SHOWN[1], "mode": "flying"}, "one of driving"),
        ("direction", {"origin": SHOWN[0], "destination": SHOWN[1], "waypoints": [1]}, "array"),
        ("direction", {"origin": SHOWN[0], "destination": SHOWN[1], "waypoints": {"a": 1}}, "array"),
        ("direction", {"origin": SHOWN[0], "destination": SHOWN[1], "waypoints": SHOWN * 6}, "at most 16"),
        ("direction", {"origin": SHOWN[0], "destination": "12.6,41.800001"}, "earlier turn"),
    ],
)
def test_a_bad_call_is_answered_with_what_was_expected(name, arguments, expected):
    outcome = run(name, arguments)
    assert outcome.result.is_error
    assert expected in outcome.result.content
    assert not outcome.route


@given(
    name=st.sampled_from([tool.name for tool in TOOLS]),
    arguments=st.dictionaries(
        st.sampled_from(["address", "region", "location", "radius", "origin", "destination", "waypoints", "mode"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(SHOWN),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
            max_leaves=4,
        ),
    ),
)
@settings(max_examples=150, deadline=None)
def test_no_arguments_make_a_tool_raise(name, arguments):
    assert run(name, arguments).result.content


def test_waypoints_may_be_one_string_and_mode_has_a_default():
    as_list = run("direction", {"origin": SHOWN[0], "destination": SHOWN[1], "waypoints": [SHOWN[2]], "mode": None})
    as_text = run("direction", {"origin": SHOWN[0], "destination": SHOWN[1], "waypoints": SHOWN[2]})
    assert as_list.route == as_text.route == tuple(parse_point(SHOWN[i], profile="full") for i in (0, 2, 1))
    assert "driving" in as_list.result.content


def test_a_quoted_radius_is_taken():
    place = FULL.places[0]
    outcome = run("around_search", {"location": place.coordinates, "radius": "5000"})
    assert outcome.places[0] == place


@pytest.mark.parametrize(("atlas", "limit"), [(NANO, 1), (FULL, 3)])
def test_what_is_rendered_can_be_read_back(atlas, limit):
    found = atlas.search(atlas.places[0].name)
    read = read_places(render_places(found, profile=atlas.profile, limit=limit), profile=atlas.profile)
    assert [(place.name, place.coordinates, place.region) for place in read] == [
        (place.name, place.coordinates, place.region) for place in found[:limit]
    ]


def test_nano_answers_are_the_agreed_words():
    episode = NavigationEpisode(make_task(NANO, random.Random(0)), world=NANO, profile="nano")
    place = NANO.places[0]
    calls = [
        ToolCall("poi_search", {"address": place.name}),
        ToolCall("poi_search", {"address": place.name, "region": "Nowhere"}),
        ToolCall("poi_search", {}),
    ]
    results = episode.act(AssistantTurn(tool_calls=calls)).results
    assert [result.content for result in results] == [
        f"{place.name} {place.coordinates} {place.region}",
        "none",
        "error",
    ]


def test_a_bare_nano_search_returns_the_most_prominent_of_three_regions():
    assert len(NANO.places) == len(NANO_NAMES) * 3
    assert len({place.coordinates for place in NANO.places}) == len(NANO.places)
    for name in NANO_NAMES:
        found = NANO.search(name)
        assert [place.prominence for place in found] == [3, 2, 1]
        for place in found:
            assert NANO.search(name, place.region) == [place]
    assert {place.region for place in NANO.places} == set(NANO_REGIONS)


def test_coordinates_of_the_same_turn_do_not_count_for_direction():
    place, other = NANO.places[0], NANO.places[3]
    searches = [ToolCall("poi_search", {"address": p.name, "region": p.region}) for p in (place, other)]
    route = ToolCall("direction", {"origin": place.coordinates, "destination": other.coordinates})
    episode = NavigationEpisode(make_task(NANO, random.Random(0)), world=NANO, profile="nano")
    first = episode.act(AssistantTurn(tool_calls=[*searches, route]))
    assert (first.results[2].content, first.results[2].is_error, first.done) == ("error", True, False)
    second = episode.act(AssistantTurn(tool_calls=[route]))
    assert second.done
    assert second.results[0].content == "done"
    assert episode.act(AssistantTurn(tool_calls=searches)).results == ()


def test_nothing_counts_after_the_last_turn():
    task = make_task(NANO, random.Random(0), num_places=2, order_level=0)
    episode = NavigationEpisode(task, world=NANO, profile="nano")
    route = task.evidence.facts["route"]
    for _ in range(MAX_TURNS):
        episode.act(AssistantTurn(tool_calls=[ToolCall("poi_search", {"address": place["name"]}) for place in route]))
    gold = ToolCall("direction", task.evidence.facts["gold_call"]["arguments"])
    twin = NavigationEpisode(task, world=NANO, profile="nano")
    twin.act(AssistantTurn(tool_calls=[ToolCall("poi_search", {"address": place["name"]}) for place in route]))
    for played in (episode, twin):
        assert played.act(AssistantTurn(tool_calls=[gold])).done
    assert (episode.score(), twin.score()) == (0.0, 1.0)


def test_words_without_a_call_end_the_episode_but_an_unreadable_call_does_not():
    task = make_task(NANO, random.Random(0))
    assert NavigationEpisode(task, world=NANO, profile="nano").act(AssistantTurn(content="there")).done
    unreadable = AssistantTurn(parse_error="no closing brace")
    assert not NavigationEpisode(task, world=NANO, profile="nano").act(unreadable).done
