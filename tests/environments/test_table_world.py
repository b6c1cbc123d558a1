"""The table world: its databases, requests and splits, and that the environment rewards what the script does."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from midcourse.config import load_config
from midcourse.environments import ENVIRONMENTS
from midcourse.environments.agentbench_db import AgentBenchDBEnvironment
from midcourse.environments.agentbench_db.tables import Table
from midcourse.environments.base import Episode, ForkableEpisode
from midcourse.environments.table_world import KINDS, Request, Slot, TableWorldConfig, draw_request, play
from midcourse.environments.table_world.environment import open_database
from midcourse.environments.table_world.requests import SLOTS
from midcourse.environments.table_world.schemas import COLUMNS, GUIDE, KEY, TABLES, Schema
from midcourse.environments.table_world.statements import first_values, only_value
from midcourse.errors import ConfigError
from midcourse.types import AssistantTurn, ToolCall

# `depot` is said as north, `cost` as worth. The tables have the same names, and other numbers.
BY_HAND: dict[str, Any] = {
    "kind": "copy",
    "phrase": "in {table} , set the {second} of {other} to the {first} of {name}",
    "schema": Schema(tables=("stock", "depot"), columns=("price", "cost"), names=("cup", "lamp", "rope")),
    "tables": (
        Table(name="stock", columns=(KEY, "price", "cost"), rows=(("cup", "10", "21"), ("lamp", "12", "20"))),
        Table(name="depot", columns=(KEY, "price", "cost"), rows=(("cup", "30", "41"), ("lamp", "32", "40"))),
        Table(name=GUIDE, columns=("word", "means"), rows=(("north", "depot"), ("worth", "cost"))),
    ),
    "table": Slot("depot", "north"),
    "first": Slot("price"),
    "second": Slot("cost", "worth"),
    "name": "lamp",
    "other": "cup",
}


def drawn(rng: random.Random, kind: str, *, num_traps: int, unseen: bool = False) -> Request:
    while (request := draw_request(rng, num_traps=num_traps, unseen=unseen)).kind != kind:
        pass
    return request


def episode_of(request: Request) -> Any:
    environment = AgentBenchDBEnvironment(
        {"train": [request.problem()]}, open_database=open_database, reference="executed"
    )
    return environment.start(environment.tasks("train")[0], seed=0)


def say(episode: Episode, tool: str, **arguments: str) -> str:
    results = episode.act(AssistantTurn(tool_calls=(ToolCall(tool, arguments),))).results
    assert not results[0].is_error, results[0].content
    return results[0].content


def played(
    request: Request, *, looks_up: bool, choose: Callable[[Sequence[str]], str] = lambda choices: choices[0]
) -> tuple[list[str], float]:
    """Return the statements and the answer of a scripted episode, and its reward."""
    episode, said = episode_of(request), []

    def run(statement: str) -> str:
        said.append(statement)
        return say(episode, "sql_query", query=statement)

    def answer(value: str) -> None:
        said.append(value)
        say(episode, "answer_action", answer=value)

    play(request, run=run, answer=answer, looks_up=lambda: looks_up, choose=choose)
    reward = episode.score()
    episode.close()
    return said, reward


def test_a_request_its_database_and_its_reference_by_hand():
    request = Request(**BY_HAND)
    assert request.query == "tables stock depot . in north , set the worth of cup to the price of lamp"
    problem = request.problem()
    assert problem.operation == "update"
    assert problem.reference_statement == "UPDATE depot SET cost = '32' WHERE name = 'cup'"
    assert problem.tags == ("kind:copy", "traps:2")
    changes = {
        "kind": "best",
        "phrase": "the {second} of the one with most {first} in {table}",
        "name": "",
        "other": "",
    }
    asked = Request(**(BY_HAND | changes)).problem()
    assert asked.query == "tables stock depot . the worth of the one with most price in north"
    assert (asked.operation, asked.reference_values) == ("select", ("40",))


def test_who_looks_words_up_right_before_they_are_needed_is_right():
    said, reward = played(Request(**BY_HAND), looks_up=True)
    assert said == [
        "SELECT means FROM guide WHERE word = 'north'",
        "SELECT name FROM pragma_table_info('depot')",
        "SELECT price FROM depot WHERE name = 'lamp'",
        "SELECT means FROM guide WHERE word = 'worth'",
        "UPDATE depot SET cost = '32' WHERE name = 'cup'",
        "done",
    ]
    assert reward == 1.0


def test_a_guess_is_answered_as_smoothly_and_all_that_follows_is_built_on_it():
    said, reward = played(Request(**BY_HAND), looks_up=False)  # the first of the tables is the wrong one
    assert said == [
        "SELECT name FROM pragma_table_info('stock')",
        "SELECT price FROM stock WHERE name = 'lamp'",
        "UPDATE stock SET cost = '12' WHERE name = 'cup'",
        "done",
    ]
    assert reward == 0.0


def test_a_lucky_guess_is_rewarded():
    def choose(choices: Sequence[str]) -> str:
        return "depot" if "depot" in choices else choices[0]

    assert played(Request(**BY_HAND), looks_up=False, choose=choose)[1] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_is_solved_by_looking_up_in_any_of_the_ways_to_list_columns(kind):
    rng = random.Random(f"looking up {kind}")
    for unseen in (False, True):
        for num_traps in range(SLOTS[kind] + 1):
            request = drawn(rng, kind, num_traps=num_traps, unseen=unseen)
            said, reward = played(request, looks_up=True, choose=rng.choice)
            assert reward == 1.0
            assert sum("FROM guide" in text for text in said) == request.num_traps == num_traps
            assert 3 <= len(said) - num_traps <= 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_guess_fails(kind):
    rng = random.Random(f"guessing {kind}")
    for _ in range(12):
        request = drawn(rng, kind, num_traps=1)
        slot = next(slot for slot in (request.table, request.first, request.second) if slot and slot.word)
        others = set(request.schema.tables if slot is request.table else request.schema.columns) - {slot.name}

        def choose(choices: Sequence[str], others: set[str] = others) -> str:
            return rng.choice([choice for choice in choices if choice in others] or list(choices))

        assert played(request, looks_up=False, choose=choose)[1] == 0.0


def test_a_mistake_can_be_repaired_only_by_looking_again():
    episode = episode_of(Request(**BY_HAND))
    assert say(episode, "sql_query", query="SELECT price FROM stock WHERE name = 'lamp'") == "[('12',)]"
    twin = episode.fork()
    assert isinstance(twin, ForkableEpisode)
    say(episode, "sql_query", query="UPDATE depot SET cost = '12' WHERE name = 'cup'")
    assert episode.score() == 0.0
    assert say(twin, "sql_query", query="SELECT price FROM depot WHERE name = 'lamp'") == "[('32',)]"
    say(twin, "sql_query", query="UPDATE depot SET cost = '32' WHERE name = 'cup'")
    assert twin.score() == 1.0


def test_no_number_stands_twice_and_no_two_columns_have_their_most_or_least_in_the_same_row():
    rng = random.Random(3)
    for _ in range(20):
        request = draw_request(rng, num_traps=0)
        *tables, guide = request.tables
        numbers = [value for table in tables for row in table.rows for value in row[1:]]
        assert len(set(numbers)) == len(numbers) == 48
        for table in tables:
            columns = list(zip(*table.rows, strict=True))[1:]
            for choose in (max, min):
                assert len({column.index(choose(column)) for column in columns}) == len(columns)
        assert sorted(meaning for _, meaning in guide.rows) == sorted((*request.schema.tables, *request.schema.columns))


def test_words_stand_for_other_things_in_other_databases():
    rng = random.Random(4)
    meanings = {
        meaning
        for _ in range(40)
        for word, meaning in draw_request(rng, num_traps=0).tables[-1].rows
        if word == "worth"
    }
    assert len(meanings) > 5


def test_an_unseen_schema_gives_every_table_columns_that_it_has_nowhere_else():
    pairs = {False: set(), True: set()}
    rng = random.Random(5)
    for _ in range(300):
        for unseen, found in pairs.items():
            schema = draw_request(rng, num_traps=0, unseen=unseen).schema
            found |= {(table, column) for table in schema.tables for column in schema.columns}
    assert not pairs[False] & pairs[True]
    num_tables, num_columns = (sum(map(len, families.values())) for families in (TABLES, COLUMNS))
    assert len(pairs[False] | pairs[True]) == num_tables * num_columns


def test_more_traps_than_a_request_has_names_are_refused():
    with pytest.raises(ValueError, match=r"num_traps must lie in \[0, 3\]: got 4"):
        draw_request(random.Random(0), num_traps=4)


def test_results_are_read_as_the_database_shows_them():
    assert first_values("[('a', '1'), ('b', '2')]") == ["a", "b"]
    assert only_value(first_values("[('12',)]")) == "12"
    with pytest.raises(ValueError, match="expected rows as a list of tuples: got 'ok, 1 row affected'"):
        first_values("ok, 1 row affected")
    with pytest.raises(ValueError, match="expected one row: got 0"):
        only_value(first_values("[]"))


def test_it_is_registered_and_its_splits_share_no_task_and_are_the_same_every_time():
    assert ENVIRONMENTS["table_world"] is TableWorldConfig
    assert load_config(None, ["environment.name=table_world"]).environment == TableWorldConfig()
    config = TableWorldConfig(train_tasks=50, test_tasks=30)
    environment, again = config.build(), config.build()
    names = {split: [task.task_id for task in environment.tasks(split)] for split in ("train", "test", "ood")}
    assert [len(found) for found in names.values()] == [50, 30, 30]
    assert len({name for found in names.values() for name in found}) == 110
    assert [task.query for task in again.tasks("test")] == [task.query for task in environment.tasks("test")]
    other = TableWorldConfig(seed=1, train_tasks=1, test_tasks=30).build()
    assert [task.query for task in other.tasks("test")] != [task.query for task in environment.tasks("test")]
    with pytest.raises(ConfigError, match="unknown split 'dev' of table_world; known: train, test, easy, hard, ood"):
        environment.tasks("dev")


def test_easy_and_hard_are_the_test_splits_two_parts():
    environment = TableWorldConfig(train_tasks=1, test_tasks=40, min_traps=1, max_traps=2).build()
    parts = {tag: environment.tasks(tag) for tag in ("easy", "hard")}
    assert min(len(tasks) for tasks in parts.values()) > 10
    assert {task.task_id for tasks in parts.values() for task in tasks} == {
        task.task_id for task in environment.tasks("test")
    }
    for tag, tasks in parts.items():
        for task in tasks:
            assert task.split == task.tags[0] == tag
            num_traps = next(int(found.removeprefix("traps:")) for found in task.tags if found.startswith("traps:"))
            assert num_traps == 0 if tag == "easy" else num_traps in (1, 2)
            episode = environment.start(task, seed=0)
            assert episode.score() == 0.0
            episode.close()


def test_traps_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="max_traps = 1: expected at least min_traps = 2"):
        TableWorldConfig(min_traps=2, max_traps=1)
