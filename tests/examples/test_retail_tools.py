"""The example of an environment of one's own, loaded as a user loads it and played by scripted engines."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.interventions.scripted_world import INVALID, OK, STOP, LetterChat

from midcourse.config import load_config
from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments.base import ForkableEpisode
from midcourse.errors import ConfigError
from midcourse.evaluation.evaluate import evaluate_policy
from midcourse.interventions.audit import OffersCounterfactuals
from midcourse.methods.base import RolloutTools
from midcourse.methods.rti import RTIConfig
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, InterventionOutcome, Origin, ToolCall

EXAMPLE = Path(__file__).parents[2] / "examples" / "retail_tools"
ROLLOUT = RolloutConfig(max_turn_tokens=2000)
pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")


class JsonChat(LetterChat):
    """A turn is a JSON list of [name, arguments], or words."""

    def parse(self, turn_ids, *, tools=()):
        text = self.decode(turn_ids).removesuffix(";")
        if not text.startswith("["):
            return AssistantTurn(content=text)
        return AssistantTurn(tool_calls=tuple(ToolCall(name, arguments) for name, arguments in json.loads(text)))

    def render(self, turn):
        calls = json.dumps([[call.name, call.arguments] for call in turn.tool_calls])
        return [*self.encode(calls if turn.tool_calls else turn.content), STOP]


@pytest.fixture
def world(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f'plugins = ["retail_tools"]\nplugins_folder = "{EXAMPLE}"\n[environment]\nname = "retail_tools"\n',
        encoding="utf-8",
    )
    return load_config(path).environment.build()


def actions_of(task):
    return [ToolCall(action["name"], action["arguments"]) for action in task.evidence.facts["actions"]]


def play(world, task, calls):
    """Return the episode after each of the calls in a turn of its own, and all answers."""
    episode = world.start(task, seed=0)
    results = [result for call in calls for result in episode.act(AssistantTurn(tool_calls=(call,))).results]
    return episode, results


def task_of(world, kind, split="train"):
    return next(task for task in world.tasks(split) if kind in task.tags)


def all_tasks(world):
    return [*world.tasks("train"), *world.tasks("test")]


def gold_script(world, *, change=lambda calls: calls):
    """Return an engine script that does a task's expected calls, one a turn, and then says so."""
    by_query = {f"[{task.query.replace(';', ',')}]": change(actions_of(task)) for task in all_tasks(world)}

    def say(prompt_ids, sampling):
        text = "".join(map(chr, prompt_ids))
        calls = by_query[text[: text.index("]") + 1]]
        turn = text.count(";")
        said = json.dumps([[calls[turn].name, calls[turn].arguments]]) if turn < len(calls) else "done"
        return [*map(ord, said), STOP]

    return say


def score_sheet(world, script, split):
    engine = ScriptedEngine(script)
    tasks = world.tasks(split)
    played = evaluate_policy(world, engine, JsonChat(), ROLLOUT, tasks, attempts=1, seed=0, temperature=1.0)
    return asyncio.run(played).splits[split]


def test_the_expected_calls_get_the_reward_on_every_task(world):
    for task in all_tasks(world):
        episode, results = play(world, task, actions_of(task))
        assert [result.content for result in results if result.is_error] == []
        assert episode.score() == 1.0
        assert world.start(task, seed=0).score() == 0.0  # every task asks for a write


@pytest.mark.parametrize("split", ["train", "test"])
def test_rollouts_of_a_scripted_engine_get_the_reward_end_to_end(split, world):
    right = score_sheet(world, gold_script(world), split)
    assert (right.num_scored, right.reward_mean, dict(right.failures)) == (len(world.tasks(split)), 1.0, {})
    # Every task's last call is a write.
    wrong = score_sheet(world, gold_script(world, change=lambda calls: calls[:-1]), split)
    assert (wrong.num_scored, wrong.reward_mean, dict(wrong.failures)) == (len(world.tasks(split)), 0.0, {})


def test_other_writes_get_no_reward(world):
    task = task_of(world, "exchange")
    *reads, exchange = actions_of(task)
    wrong = world.counterfactual(task).evidence.facts["actions"][-1]["arguments"]
    facts = task.evidence.facts
    for variants in (product["variants"] for product in facts["database"]["products"].values()):
        if wrong["new_item_ids"][0] in variants:
            variants[wrong["new_item_ids"][0]]["available"] = True
    episode, results = play(world, task, [*reads, ToolCall("exchange_items", wrong)])
    assert (results[-1].is_error, episode.score()) == (False, 0.0)
    order = exchange.arguments["order_id"]
    returned = ToolCall("return_items", {"order_id": order, "item_ids": exchange.arguments["item_ids"]})
    assert play(world, task, [*reads, returned])[0].score() == 0.0
    episode, results = play(world, task, [*reads, exchange, returned])
    assert results[-1].is_error  # once for each order
    assert episode.score() == 1.0


def test_a_write_that_the_rules_forbid_gets_no_reward_though_the_tool_allows_it(world):
    task = task_of(world, "late_return_and_address")
    calls = actions_of(task)
    late = task.evidence.facts["database"]["orders"][calls[1].arguments["order_id"]]
    assert late["delivered_days_ago"] > 30
    arguments = {**calls[1].arguments, "item_ids": [late["items"][0]["item_id"]]}
    episode, results = play(world, task, [*calls, ToolCall("return_items", arguments)])
    assert (results[-1].is_error, episode.score()) == (False, 0.0)


def test_a_forbidden_write_that_leaves_no_trace_gets_no_reward(world):
    task = task_of(world, "address")
    facts = task.evidence.facts
    order_id, other = next(
        (key, order)
        for key, order in facts["database"]["orders"].items()
        if order["user_id"] != facts["user_id"] and order["status"] == "pending"
    )
    same = ToolCall("change_address", {"order_id": order_id, "address": other["address"]})
    episode, results = play(world, task, [*actions_of(task), same])
    assert (results[-1].is_error, episode.score()) == (False, 0.0)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (ToolCall("sell_shop", {}), "unknown tool 'sell_shop'; expected one of find_user, "),
        (ToolCall("get_order", {"id": "W1"}), "get_order expects exactly the arguments order_id: got id"),
        (ToolCall("get_order", ["W1"]), "get_order expects exactly the arguments order_id: got none"),
        (ToolCall("get_order", {"order_id": 7}), "order_id must be text: got int"),
        (ToolCall("get_order", {"order_id": "W0"}), "there is no 'W0' among the orders"),
        (ToolCall("find_user", {"email": "x@y"}), "no customer has the email address 'x@y'"),
        (ToolCall("return_items", {"order_id": "W1", "item_ids": []}), "item_ids must be a list of texts, with one"),
        (ToolCall("return_items", {"order_id": "{pending}", "item_ids": ["I1"]}), "is not delivered: it is pending"),
        (ToolCall("return_items", {"order_id": "{recent}", "item_ids": ["I1"]}), "expected items of the order, each"),
        (ToolCall("change_address", {"order_id": "{recent}", "address": "x"}), "is not pending: it is delivered"),
    ],
)
def test_a_bad_call_is_told_and_changes_nothing(call, expected, world):
    task = task_of(world, "address")
    orders = task.evidence.facts["database"]["orders"]
    places = {"{pending}": None, "{recent}": 1}
    if isinstance(call.arguments, dict):
        wanted = places.get(call.arguments.get("order_id"), 0)
        ids = [key for key, order in orders.items() if bool(order["delivered_days_ago"]) is bool(wanted)]
        arguments = {**call.arguments, "order_id": ids[0]} if wanted != 0 else call.arguments
        call = ToolCall(call.name, arguments)
    episode, results = play(world, task, [call])
    assert results[0].is_error
    assert results[0].content.startswith("Error: ")
    assert expected in results[0].content
    for right in actions_of(task):
        episode.act(AssistantTurn(tool_calls=(right,)))
    assert episode.score() == 1.0


def test_an_exchange_is_for_an_available_variant_of_the_same_product(world):
    task = task_of(world, "exchange")
    *_, exchange = actions_of(task)
    products = task.evidence.facts["database"]["products"].values()
    item_id = exchange.arguments["item_ids"][0]
    foreign = next(key for product in products for key in product["variants"] if item_id not in product["variants"])
    for new_ids, expected in (
        ([item_id], "no other available variant"),
        ([foreign], "no other available variant"),
        ([foreign, foreign], "expected one new item for each: got 2 for 1"),
    ):
        call = ToolCall("exchange_items", {**exchange.arguments, "new_item_ids": new_ids})
        assert expected in play(world, task, [call])[1][0].content


def test_a_fork_goes_its_own_way(world):
    task = task_of(world, "exchange_and_address")
    *most, last = actions_of(task)
    episode, _ = play(world, task, most)
    assert isinstance(episode, ForkableEpisode)
    twin = episode.fork()
    twin.act(AssistantTurn(tool_calls=(last,)))
    assert (episode.score(), twin.score()) == (0.0, 1.0)
    twin.act(AssistantTurn(content="done"))
    episode.act(AssistantTurn(tool_calls=(last,)))
    assert episode.score() == 1.0


def test_words_end_the_conversation_and_so_do_twelve_turns(world):
    task = task_of(world, "address")
    episode = world.start(task, seed=0)
    assert episode.act(AssistantTurn(parse_error="no JSON")).done is False
    assert episode.act(AssistantTurn(content="I am sorry.")).done is True
    assert episode.act(AssistantTurn(tool_calls=tuple(actions_of(task)))).done is True
    assert episode.score() == 0.0
    _, results = play(world, task, [ToolCall("find_user", {"email": "x"})] * 13)
    assert len(results) == 12


def test_tasks_are_drawn_by_the_seed_and_name_no_ids(world):
    assert [len(world.tasks(split)) for split in ("train", "test")] == [24, 12]
    again = type(world)(world.config)
    other = type(world)(world.config.model_copy(update={"seed": 1}))
    assert again.tasks("train") == world.tasks("train")
    assert other.tasks("train") != world.tasks("train")
    assert len({task.query for task in all_tasks(world)}) == 36
    for task in all_tasks(world):
        assert not any(value in task.query for value in task.evidence.private_values)
        assert set(task.tags) & {"easy", "hard"}
    assert world.tasks("train")[0].query == (
        "Hello, this is Ben Ortiz (ben.ortiz@mail.example). My request: the order that has not been sent yet should go "
        "to 89 Garden Street, 80134."
    )
    with pytest.raises(ConfigError, match="unknown split 'dev' of retail_tools; known: train, test"):
        world.tasks("dev")


def test_other_evidence_names_another_variant_for_the_same_request(world):
    assert isinstance(world, OffersCounterfactuals)
    assert world.counterfactual(task_of(world, "return")) is None
    task = task_of(world, "exchange")
    twin = world.counterfactual(task)
    assert twin.query == task.query
    (new_id,), (other_id,) = (each.evidence.facts["actions"][-1]["arguments"]["new_item_ids"] for each in (task, twin))
    assert new_id != other_id
    assert other_id in twin.evidence.text
    assert new_id not in twin.evidence.text
    assert (other_id in twin.evidence.private_values, new_id in twin.evidence.private_values) == (True, False)
    assert any(
        {new_id, other_id} <= product["variants"].keys()
        for product in task.evidence.facts["database"]["products"].values()
    )


def test_other_evidence_never_exchanges_an_item_for_itself(world):
    twins = filter(None, map(world.counterfactual, world.tasks("train")))
    actions = [action for twin in twins for action in twin.evidence.facts["actions"]]
    exchanges = [action["arguments"] for action in actions if action["name"] == "exchange_items"]
    assert len(exchanges) > 1
    assert all(given["item_ids"] != given["new_item_ids"] for given in exchanges)


def test_rti_repairs_a_group_with_the_evidence_and_refuses_ids_that_nothing_showed(world):
    task = task_of(world, "exchange")
    calls = actions_of(task)

    def roles(corrected):
        asked = {"validator": 0, "corrector": 0, "verifier": 0}

        def say(prompt_ids, sampling):
            text = "".join(map(chr, prompt_ids))
            if not text.startswith("@"):
                return [*map(ord, "sorry"), STOP]
            role = text.split("@")[1]
            turn = asked[role]
            asked[role] += 1
            if role == "validator":
                return [*map(ord, INVALID if turn < len(corrected) else '{"is_valid": true}'), STOP]
            if role == "verifier":
                return [*map(ord, OK), STOP]
            call = {"name": corrected[turn].name, "arguments": corrected[turn].arguments}
            return [*map(ord, json.dumps({"reasoning": "", "tool_calls": [call], "content": ""})), STOP]

        tools = RolloutTools(engine=ScriptedEngine(say), chat=JsonChat(), environment=world, rollout=ROLLOUT)
        method = RTIConfig(group_size=2, attempts=1).build()
        return asyncio.run(method.collect(task, tools, seed=0, update=0))

    group = roles(calls)
    assert sorted(group.rewards) == [0.0, 1.0]
    rescued = next(member for member in group.members if member.origin is Origin.INTERVENED)
    assert rescued.trajectory.accepted_interventions == len(calls)
    group = roles([calls[-1]])  # the write at once, with ids that no tool has answered with yet
    assert list(group.rewards) == [0.0, 0.0]
    assert group.extra[0].turns[0].intervention.outcome is InterventionOutcome.LEAK
