"""Tasks, splits, forks, and the scripted expert."""

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.environments import ENVIRONMENTS, navigation
from midcourse.environments.navigation import NavigationConfig, make_atlas, make_task
from midcourse.environments.navigation.oracle import PastTurn, next_turn, review, solve
from midcourse.environments.navigation.queries import FULL_TEMPLATES, NANO_TEMPLATES
from midcourse.errors import ConfigError
from midcourse.types import AssistantTurn, ToolCall

SMALL = {
    profile: NavigationConfig(profile=profile, train_tasks=40, test_tasks=20).build() for profile in ("nano", "full")
}
PROFILES = pytest.mark.parametrize("environment", SMALL.values(), ids=SMALL)


def play(environment, task, skill):
    episode = environment.start(task, seed=0)
    turns = list(solve(episode, task, skill=skill))
    return episode.score(), turns


@PROFILES
def test_searching_again_solves_every_task_and_plain_search_exactly_the_easy_ones(environment):
    for split in ("train", "test", "ood"):
        for task in environment.tasks(split):
            assert play(environment, task, "requery")[0] == 1.0
            assert play(environment, task, "plain")[0] == float("easy" in task.tags)


@PROFILES
def test_splits_are_reproducible_and_share_no_trip(environment):
    again = NavigationConfig(profile=environment.config.profile, train_tasks=40, test_tasks=20).build()
    keys = set()
    for split in ("train", "test", "ood"):
        tasks = environment.tasks(split)
        assert [task.query for task in tasks] == [task.query for task in again.tasks(split)]
        assert {task.split for task in tasks} == {split}
        keys |= {
            (frozenset(place["coordinates"] for place in task.evidence.facts["route"]), task.tags) for task in tasks
        }
    assert len(keys) == 80
    assert len({task.task_id for split in ("train", "test", "ood") for task in environment.tasks(split)}) == 80
    with pytest.raises(ConfigError, match="ood, test, train"):
        environment.tasks("dev")


def test_the_default_sizes_are_those_of_the_paper_and_queries_never_change():
    environment = NavigationConfig(profile="nano").build()
    assert [len(environment.tasks(split)) for split in ("train", "test", "ood")] == [600, 150, 150]
    code = (
        "from midcourse.environments.navigation import NavigationConfig;"
        "print('|'.join(t.query for t in NavigationConfig(profile='nano').build().tasks('ood')))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert other.stdout.strip() == "|".join(task.query for task in environment.tasks("ood"))


def test_the_unseen_full_map_has_other_cities():
    seen, unseen = make_atlas("full", 0), make_atlas("full", 0, held_out=True)
    assert not {place.region for place in seen.places} & {place.region for place in unseen.places}


@PROFILES
def test_evidence_and_hidden_values_stay_out_of_repr_and_query(environment):
    for task in environment.tasks("train"):
        for value in task.evidence.private_values:
            assert value not in repr(task)
            assert value not in task.query


def test_nano_evidence_is_the_route_in_order():
    task = SMALL["nano"].tasks("train")[0]
    route = task.evidence.facts["route"]
    assert task.evidence.text == ";".join(f"{p['name']} {p['coordinates']} {p['region']}" for p in route)


def test_phrasings_are_at_least_thirty_and_different():
    assert sum(len(set(templates)) for templates in FULL_TEMPLATES.values()) >= 30
    assert len({text for templates in NANO_TEMPLATES.values() for text in templates}) == 15


def test_nano_queries_use_only_the_listed_words():
    words = {*navigation.NANO_WORDS, *navigation.NANO_NAMES}
    for task in SMALL["nano"].tasks("train"):
        assert set(task.query.split()) <= words


@pytest.mark.parametrize("order_level", range(5))
def test_make_task_draws_what_is_asked_for_on_a_fresh_atlas(order_level):
    atlas = make_atlas("nano", 100 + order_level)
    task = make_task(atlas, random.Random(3), "hard", num_places=4, order_level=order_level, max_ambiguous=2)
    assert task.tags == ("hard", f"order:{order_level}", "places:4")
    assert play(SMALL["nano"], task, "requery")[0] == 1.0


@PROFILES
def test_a_counterfactual_changes_evidence_and_nothing_visible(environment):
    for task in environment.tasks("test"):
        other = environment.counterfactual(task)
        if other is not None:
            assert (other.query, other.task_id) == (task.query, task.task_id)
            assert other.evidence.text != task.evidence.text
            assert next_turn(other, []) == next_turn(task, [])


@PROFILES
def test_a_plain_habit_is_corrected_at_its_direction_call_from_visible_values_only(environment):
    for task in environment.tasks("train"):
        episode = environment.start(task, seed=0)
        past, corrections = [], 0
        for _ in range(environment.max_turns):
            draft = next_turn(task, past, skill="plain")
            correction = review(task, past, draft)
            if correction is not None:
                corrections += 1
                assert correction.error_types == ("wrong_region",)
                visible = task.query + " ".join(result.content for turn in past for result in turn.results)
                for call in correction.turn.tool_calls:
                    # The full map shows several candidates, so the right one may already be in sight.
                    assert call.name == "poi_search" or environment.config.profile == "full"
                    values = [value if isinstance(value, list) else [value] for value in call.arguments.values()]
                    assert all(text in visible for texts in values for text in texts)
                draft = correction.turn
            observation = episode.act(draft)
            past.append(PastTurn(message=draft, results=observation.results))
            if observation.done:
                break
            if correction is not None:  # from here on the expert's own turns must pass the review
                assert review(task, past, next_turn(task, past)) is None
                observation = episode.act(next_turn(task, past))
                break
        assert episode.score() == 1.0
        assert corrections == ("hard" in task.tags)


def test_review_names_each_kind_of_error():
    environment = SMALL["nano"]
    task = make_task(make_atlas("nano", 0), random.Random(5), num_places=3, order_level=4)
    search = next_turn(task, [])
    past = [PastTurn(message=search, results=environment.start(task, seed=0).act(search).results)]
    gold = task.evidence.facts["gold_call"]["arguments"]
    swapped = gold | {"origin": gold["destination"], "destination": gold["origin"]}

    def error(turns, *calls):
        correction = review(task, turns, AssistantTurn(tool_calls=calls))
        return None if correction is None else correction.error_types[0]

    assert error(past, ToolCall("direction", gold)) is None
    assert error(past, ToolCall("direction", swapped)) == "wrong_order"
    assert error(past, ToolCall("direction", gold | {"waypoints": []})) == "wrong_stops"
    assert error(past, ToolCall("direction", gold | {"origin": "00,00"})) == "fabricated_coordinates"
    assert error(past, ToolCall("direction", {})) == "fabricated_coordinates"
    assert error([], ToolCall("direction", gold)) == "premature_direction"
    assert error([], search.tool_calls[0], search.tool_calls[0]) == "redundant_search"
    assert error([], search.tool_calls[0]) is None
    assert error(past, search.tool_calls[0]) == "repeated_search"
    found = {"address": task.evidence.facts["route"][0]["name"], "region": task.evidence.facts["route"][0]["region"]}
    assert error(past, ToolCall("poi_search", found)) == "redundant_search"
    assert error([], ToolCall("poi_search", found)) is None
    assert error(past * 5, ToolCall("poi_search", {"address": "Azure", "region": "Oslo"})) == "out_of_turns"
    assert error(past) == "no_call"


@given(data=st.data(), skill=st.sampled_from(["plain", "requery"]))
@settings(max_examples=40, deadline=None)
def test_a_fork_continues_alone_from_the_same_state(data, skill):
    environment = SMALL["nano"]
    task = data.draw(st.sampled_from(environment.tasks("train")))
    turns = [message for message, _ in play(environment, task, skill)[1]]
    cut = data.draw(st.integers(0, len(turns)))
    whole = environment.start(task, seed=0)
    for message in turns[:cut]:
        whole.act(message)
    twin = whole.fork()
    untouched = whole.fork()
    assert [twin.act(message) for message in turns[cut:]] == [whole.act(message) for message in turns[cut:]]
    assert twin.score() == whole.score()
    if cut < len(turns):
        assert untouched.score() == 0.0  # what the others did did not reach it


def test_the_registry_builds_it_and_no_torch_is_imported():
    assert ENVIRONMENTS["navigation"] is NavigationConfig
    code = "import sys, midcourse.environments; print('torch' in sys.modules, 'transformers' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.split() == ["False", "False"]
