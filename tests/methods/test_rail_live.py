import asyncio
import math
from dataclasses import replace

import numpy
import pytest
from tests.interventions.scripted_world import TASK
from tests.methods.rail_world import (
    LIVE,
    begun,
    collect,
    draws_of,
    engine_of,
    favour,
    live,
    make_config,
    press,
    shadow,
)
from tests.rollout.branch_world import KEY, VOCABULARY, KnowingEngine, SeededWorld, make_tools, text_of

from midcourse.branching.controller import ControllerConfig
from midcourse.branching.exploration import ExplorationConfig
from midcourse.branching.state import unit_rms
from midcourse.engines.scripted import ScriptedEngine
from midcourse.errors import ConfigError, EngineError

# the live phase


def test_before_it_learned_anything_the_gate_stays_shut():
    _, group, engine = live()
    assert (group.branches, group.decisions, len(group.members)) == ((), 1, 4)
    assert sum(request.sampling is not None for request in engine.requests) == 8


def test_the_best_action_at_the_best_turn_is_run():
    favouring = {"anchor_entropy": 1.0, "rollouts": 0.5, "exploit": 0.1, "budget_used_fraction": -4.0}
    _, group, _ = live(favouring=favouring)
    # Entropy 3 of ln 128 is 0.618; 12 exploit add 0.6; 4 of 32 used take 0.5. After it, 16 of 32 take 2.
    (record,) = group.branches
    assert (record.parent, record.turn, len(record.rollouts), record.regime) == (2, 1, 12, "exploit")
    assert record.predicted == pytest.approx(3 / math.log(VOCABULARY) + 0.6 - 0.5, abs=1e-9)
    assert (record.rule, record.is_kept, group.decisions) == ("controller", True, 2)
    # 4, 5 and 8 to 12 of the attempts 4 to 15 succeed: 8 of 16.
    assert record.gained == pytest.approx(1 / 4 - 0.05)


@pytest.mark.parametrize("answers", [0, 1, 9])
def test_a_state_that_does_not_come_ends_the_branching_and_keeps_what_has_grown(answers):
    class FailingEngine(KnowingEngine):
        asked = 0

        async def score(self, prompt_ids, continuation_ids, **how):
            self.asked += 1
            if self.asked > answers:
                raise EngineError("the server is gone")
            return await super().score(prompt_ids, continuation_ids, **how)

    favouring = {"anchor_entropy": 1.0, "rollouts": 0.5, "exploit": 0.1, "budget_used_fraction": -4.0}
    engine = engine_of(kind=FailingEngine)
    method, group, _ = live(favouring=favouring, engine=engine)
    # One answer for the task, eight for the roots' turns; the branch's own turns are asked about behind them.
    assert len(group.branches) == (1 if answers == 9 else 0)
    assert len(group.members) == (16 if answers == 9 else 4)
    assert all(member.trajectory.failure is None for member in group.members)
    assert method.statistics([group])["intervention/states_failed"] == 1.0
    learned = method.learn([group], update=2)
    assert math.isfinite(learned.get("intervention/controller/loss", 0.0))


def test_the_tasks_start_can_be_the_best_place():
    _, group, _ = live(favouring={"anchor_round": -5.0, "bias": 0.5, "rollouts": 0.1, "budget_used_fraction": -1.0})
    assert (group.branches[0].parent, group.branches[0].turn) == (None, 0)
    fresh = group.members[group.branches[0].rollouts[0]].trajectory
    assert text_of(fresh) == "[find it]4,0+l;" + text_of(fresh).split(";", 1)[1]


def test_it_decides_again_until_the_budget_is_spent():
    _, group, _ = live(favouring={"anchor_entropy": 1.0, "rollouts": -0.5, "bias": 1.0}, rollout_budget=18)
    # 4, 4, 4 and what is left: 2, in the cell of the 4.
    assert [(r.parent, r.turn, len(r.rollouts), r.cell) for r in group.branches] == [
        *((2, 1, 4, 0), (2, 1, 4, 0), (2, 1, 4, 0), (2, 1, 2, 0))
    ]
    assert (len(group.members), group.extra, group.decisions) == (18, (), 4)
    assert [record.is_first_trial for record in group.branches] == [True, False, False, False]


def test_what_a_branch_did_not_help_is_kept_all_the_same():
    engine = engine_of(lambda attempt, turn: press(attempt if attempt < 4 else 0, turn))
    _, group, _ = live(engine=engine, favouring={"rollouts": 1.0, "budget_used_fraction": -3.0})
    (record,) = group.branches
    assert record.gained < 0
    assert record.is_kept
    assert len(group.members) == 16


def test_turns_of_branches_are_places_to_branch_too():
    def look_twice(attempt, turn):
        return press(attempt, max(0, turn - 1))

    entropies = {(2, 1): 3.0, **{(attempt, 2): 4.0 for attempt in (5, 9)}}
    engine = engine_of(look_twice, entropies=entropies)
    favouring = {"anchor_entropy": 1.0, "rollouts": -0.1, "bias": 1.0}
    _, group, _ = live(engine=engine, favouring=favouring, rollout_budget=16)
    assert [(record.parent, record.turn) for record in group.branches] == [(2, 1), (5, 2), (5, 2)]
    child, grandchild = group.members[5].trajectory, group.members[8].trajectory
    assert grandchild.turns[:2] == child.turns[:2]
    assert grandchild.failure is None


def test_exploration_takes_the_cells_in_turn_and_asks_no_gate():
    always = ControllerConfig(exploration=ExplorationConfig(initial_rate=1.0))
    method, group, _ = live(controller=always, favouring={"bias": -1.0}, rollout_budget=26)
    assert [(len(record.rollouts), record.regime) for record in group.branches[:3]] == [
        *((4, "exploit"), (4, "mild"), (4, "aggressive"))
    ]
    assert [record.cell for record in group.branches] == [0, 1, 2, 3, 0]  # 8 exploit; 2 are left, in cells of 4
    assert {record.rule for record in group.branches} == {"exploration"}
    assert all(record.predicted == -1.0 for record in group.branches)
    method.learn([group], update=2)
    assert method.controller.traces.coverage().tolist() == [2, 1, 1, 1, 0, 0, 0, 0, 0]
    assert method.controller.decisions == 5


def test_decisions_are_keyed():
    sometimes = ControllerConfig(exploration=ExplorationConfig(initial_rate=0.5))

    def run(task):
        method = favour(begun(make_config(LIVE, controller=sometimes, rollout_budget=20)), bias=0.1, rollouts=-0.1)
        seeds = draws_of(replace(KEY, task_id=task.task_id))
        engine = KnowingEngine(lambda ids, sampling: [*map(ord, press(*seeds[sampling.seed]))])
        tools = make_tools(engine, SeededWorld())
        group = asyncio.run(method.collect(task, tools, seed=KEY.seed, update=KEY.update))
        return [record.rule for record in group.branches]

    tasks = [replace(TASK, task_id=f"t{number}") for number in range(4)]
    rules = list(map(run, tasks))
    assert rules == list(map(run, tasks))
    assert {"controller", "exploration"} == {rule for found in rules for rule in found}
    assert len({tuple(found) for found in rules}) > 1


# what the controller sees and learns


def test_the_hidden_state_is_that_before_the_turn_and_the_task_is_embedded_once():
    _, group = shadow()
    record = group.branches[0]
    start = group.members[2].trajectory.turns[1].start
    assert list(record.hidden) == unit_rms([start, 1.0, 1.0, 1.0]).tolist()
    prompt = len("[find it]")
    assert list(group.task_embedding) == unit_rms([sum(range(1, prompt)) / (prompt - 1), 1, 1, 1]).tolist()


def test_features_that_it_does_not_see_are_not_asked_for():
    def asked(*without):
        method = begun(make_config(controller=ControllerConfig(without_features=without)))
        group, engine = collect(method, engine=engine_of())
        assert len(group.branches) == 4
        return group, [request for request in engine.requests if request.sampling is None]

    group, requests = asked("hidden")
    assert [len(request.prompt_ids) for request in requests] == [1]
    assert {record.hidden for record in group.branches} == {()}
    group, requests = asked("task_embedding")
    assert len(requests) == 2  # anchors
    assert {len(request.continuation_ids) for request in requests} == {1}
    assert group.task_embedding == ()
    method = begun(make_config(controller=ControllerConfig(without_features=("hidden", "task_embedding"))))
    group, engine = collect(method, engine=engine_of(kind=ScriptedEngine))  # which has no hidden states
    assert all(request.sampling is not None for request in engine.requests)
    assert method.learn([group], update=2)["intervention/controller/window_traces"] == len(group.branches)


def test_traces_are_the_branches_as_they_were_predicted_and_encoded():
    method, group = shadow(rollout_budget=10)
    metrics = method.learn([group], update=2)
    traces = method.controller.traces
    places = traces.newest_first()[::-1]
    rows = traces.rows(places)
    assert traces.gained(places).tolist() == [record.gained for record in group.branches]
    assert traces.predicted(places).tolist() == [record.predicted for record in group.branches]
    assert rows.scalars.tolist() == [list(record.scalars) for record in group.branches]
    assert rows.hidden.tolist() == [list(record.hidden) for record in group.branches]
    # 4 aggressive; 2 of 8 mild: rollouts over 12, then which regime
    assert rows.codes.tolist() == [[4 / 12, 0, 0, 1], [2 / 12, 0, 1, 0]]
    assert traces.coverage().tolist() == [0, 0, 1, 0, 1, 0, 0, 0, 0]
    assert metrics["intervention/controller/is_live"] == 0
    assert metrics["intervention/controller/trace_age"] == 0


def test_promotion_looks_at_the_first_trial_of_each_anchor():
    method = favour(begun(make_config()), bias=1.0)  # says yes everywhere
    group, _ = collect(method)
    metrics = method.learn([group], update=2)
    assert [record.gained > 0 for record in group.branches] == [True, True, False, False]
    assert metrics["intervention/controller/rolling_agreement"] == 1 / 2  # of the trials 0 and 3
    assert metrics["intervention/controller/window_sign_agreement"] == 1 / 2


def test_who_decides_holds_for_a_whole_update_and_changes_as_the_rule_says():
    method = begun(make_config(promotion={"shadow_fraction": 0.2}), update=1, updates=10)
    lived = []
    for update in range(1, 5):
        method.begin_update(update, [TASK])
        group, _ = collect(method)
        lived.append(method.learn([group], update=update)["intervention/controller/is_live"])
    assert lived == [0, 0, 1, 1]


@pytest.mark.parametrize("online", [True, False])
def test_a_frozen_controller_does_not_change_once_it_is_live(online):
    explore = ControllerConfig(exploration=ExplorationConfig(initial_rate=1.0))
    config = make_config(online=online, promotion={"shadow_fraction": 0.1}, controller=explore)
    method = begun(config, update=1)
    method.learn([collect(method)[0]], update=1)
    learned = method.controller.network.parameters.copy()
    assert learned[-1] != 0  # in shadow both learn
    method.begin_update(2, [TASK])
    group, _ = collect(method)
    assert {record.rule for record in group.branches} == {"exploration"}
    metrics = method.learn([group], update=2)
    assert ("intervention/controller/loss" in metrics) == online
    assert (method.controller.network.parameters == learned).all() == (not online)


def test_before_it_is_begun_nothing_can_be_branched():
    with pytest.raises(ConfigError, match="before `begin`"):
        collect(make_config().build())
    # A budget of the initial rollouts alone needs no controller.
    assert len(collect(make_config(rollout_budget=4).build())[0].members) == 4


def test_state_goes_through_flat_arrays_and_back():
    method, group = shadow()
    method.learn([group], update=2)
    other = begun(make_config())
    other.load_state_dict(method.state_dict())
    for name, array in method.state_dict().items():
        assert numpy.array_equal(array, other.state_dict()[name]), name
    assert other.learn([group], update=3) == method.learn([group], update=3)
