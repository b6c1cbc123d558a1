import math
from dataclasses import replace

import numpy
import pytest
from pydantic import ValidationError
from tests.interventions.scripted_world import TASK
from tests.methods.rival_world import TASKS, begun, collect, collect_all, engine_of, failures
from tests.rollout.branch_world import KnowingEngine

from midcourse.branching.rivals.branches import uniform_draw
from midcourse.errors import CheckpointError, EngineError
from midcourse.methods.tampo import MEASURED, TAMPOConfig
from midcourse.recording.serialization import group_from_dict, group_to_dict
from midcourse.types import Origin

FACTORS = (0.7, 1.0, 1.3)
WINS = {0, 1}


def tampo(**settings):
    return begun(TAMPOConfig(**{"group_size": 4, "temperature_factors": FACTORS, **settings}).build())


class WarmEngine(KnowingEngine):
    """Scores so that attempts of WINS are likely at 1.3 times 0.8, the others at 0.7 times."""

    async def score(self, prompt_ids, continuation_ids, *, temperature=1.0, want_hidden=False):
        scores = await super().score(prompt_ids, continuation_ids, temperature=temperature)
        attempt = int("".join(map(chr, continuation_ids)).split(",")[0])
        logprob = -abs(temperature / 0.8 - (1.3 if attempt in WINS else 0.7))
        return replace(scores, logprobs=[logprob] * len(continuation_ids))


def warm(**settings):
    return engine_of(wins=WINS, kind=WarmEngine, **settings)


def draws(engine):
    return [request.sampling for request in engine.requests if request.sampling is not None]


def scored(engine):
    return [request for request in engine.requests if request.sampling is None]


# temperatures


def test_the_temperature_reaches_the_draws_and_log_probabilities_stay_at_the_runs():
    engine = engine_of()
    group = collect(tampo(temperature_factors=(1.5,)), engine)
    (asked,) = {(sampling.temperature, sampling.report_temperature) for sampling in draws(engine)}
    assert asked == (pytest.approx(1.2), 0.8)
    assert {member.trajectory.temperature for member in group.members} == {0.8}
    assert group.measured["temperature_factor"] == (1.5,)
    assert {member.origin for member in group.members} == {Origin.ROOT}


def test_at_the_runs_own_temperature_rollouts_are_drawn_as_ever():
    engine = engine_of()
    collect(tampo(temperature_factors=(1.0,)), engine)
    assert {(sampling.temperature, sampling.report_temperature) for sampling in draws(engine)} == {(0.8, None)}


def test_each_task_draws_its_own_temperature_by_its_key():
    method, engine = tampo(nucleus=1.0), engine_of()
    groups = collect_all(method, engine, TASKS)
    found = {group.task_id: group.measured["temperature_factor"][0] for group in groups}
    for task in TASKS:
        # All are equally likely: the draw's third.
        draw = uniform_draw(5, 2, task.task_id, "temperature")
        assert found[task.task_id] == FACTORS[int(draw * 3)]
    again = {group.task_id: group for group in collect_all(method, engine_of(), TASKS[::-1])}
    for group in groups:
        assert again[group.task_id].members == group.members
        assert again[group.task_id].measured == group.measured


# how likely rollouts are at each temperature


def test_every_rollout_is_scored_turn_by_turn_at_every_temperature():
    engine = engine_of()
    group = collect(tampo(), engine)
    asked = {
        (request.prompt_ids, request.continuation_ids, round(request.temperature, 9)) for request in scored(engine)
    }
    expected = {
        (t.token_ids[: turn.start], t.token_ids[turn.start : turn.end], round(0.8 * factor, 9))
        for t in (member.trajectory for member in group.members)
        for turn in t.turns
        for factor in FACTORS
    }
    assert asked == expected
    assert len(scored(engine)) == len(expected) == 4 * 2 * 3
    assert group.cost.scored_tokens == {"temperatures": 4 * 2 * 6 * 3}


def test_the_mean_is_over_the_tokens_that_the_policy_wrote():
    # `0,0;` has 4 tokens, `0,1+a;` has 6: (4 * -1 + 6 * -2) / 10.
    def logprobs(prompt_ids, token_ids):
        return [-1.0 if len(token_ids) == 4 else -2.0] * len(token_ids)

    group = collect(tampo(), engine_of(silent={(0, 0)}, logprobs=logprobs))
    assert group.measured[MEASURED] == pytest.approx([-1.6] * 3 + [-2.0] * 9)


def test_scores_that_do_not_come_leave_the_rollouts_and_teach_the_temperatures_nothing():
    class GoneEngine(KnowingEngine):
        async def score(self, prompt_ids, continuation_ids, **how):
            raise EngineError("the server is gone")

    method, engine = tampo(), engine_of(kind=GoneEngine)
    before = {name: array.copy() for name, array in method.state_dict().items()}
    group = collect(method, engine)
    assert [member.trajectory.failure for member in group.members] == [None] * 4
    assert MEASURED not in group.measured
    assert method.statistics([group])["intervention/states_failed"] == 1.0
    method.learn([group], update=2)
    assert all((before[name] == array).all() for name, array in method.state_dict().items())


def test_a_rollout_that_failed_is_not_scored_and_teaches_nothing():
    method, engine = tampo(), warm(fails={(0, 0), (2, 1)})
    group = collect(method, engine)
    assert failures(group) == ["engine_error", None, "engine_error", None]
    assert len(scored(engine)) == 2 * 2 * 3
    # Rows of 1 and 3 alone are read: weights as below, advantages 1 and -1.
    method.learn([group], update=2)
    assert method.temperatures.earned == pytest.approx([0.05 * -0.3, 0.0, 0.05 * 0.3], rel=1e-5, abs=1e-12)


def test_where_every_rollout_fails_nothing_is_scored_and_nothing_learned():
    method, engine = tampo(), engine_of(fails={(attempt, 0) for attempt in range(4)})
    group = collect(method, engine)
    assert (failures(group), scored(engine)) == (["engine_error"] * 4, [])
    assert method.advantages(group) == [None] * 4
    method.learn([group], update=2)
    assert method.temperatures.earned.tolist() == [0.0] * 3


# learning, worked by hand: attempts that win have the log-probabilities -0.6, -0.3 and 0. Sparsemax keeps all three and
# raises each by (1 + 0.9) / 3: weights 1/30, 1/3, 19/30; the others have them the other way round. Advantages are 1, 1,
# -1, -1. The mean of weight times advantage is (2/30 - 38/30) / 4 = -0.3, 0 and 0.3, of which a twentieth is kept.


def test_a_temperature_earns_the_advantages_of_the_rollouts_that_are_likely_at_it():
    method = tampo()
    group = collect(method, warm())
    assert group.measured[MEASURED] == pytest.approx([*(-0.6, -0.3, 0.0) * 2, *(0.0, -0.3, -0.6) * 2], abs=1e-12)
    assert method.advantages(group) == pytest.approx([1, 1, -1, -1], rel=1e-5)
    metrics = method.learn([group], update=2)
    assert method.temperatures.earned == pytest.approx([-0.015, 0.0, 0.015], rel=1e-5, abs=1e-12)
    # Brought to [0, 1]: 0, 1/2, 1; to a sum of one: 0, 1/3, 2/3.
    assert method.temperatures.probabilities() == pytest.approx([0.0, 1 / 3, 2 / 3])
    assert metrics == {"intervention/temperature_factor_expected": pytest.approx(1.0 / 3 + 1.3 * 2 / 3)}
    # A nucleus of 0.6 holds the last alone.
    again = tampo(nucleus=0.6)
    again.load_state_dict(method.state_dict())
    drawn = [group.measured["temperature_factor"] for group in collect_all(again, engine_of(), TASKS)]
    assert drawn == [(1.3,)] * 3


def test_all_groups_of_an_update_are_one_mean():
    one, apart = tampo(), tampo()
    group = collect(one, warm())
    idle = collect(one, engine_of(), task=TASKS[0])  # nobody wins: advantages of exactly 0
    one.learn([group, idle], update=2)
    assert one.temperatures.earned == pytest.approx([-0.0075, 0.0, 0.0075], rel=1e-5, abs=1e-12)
    apart.learn([idle], update=2)
    assert apart.temperatures.earned.tolist() == [0.0] * 3


def test_a_wave_that_was_read_back_teaches_the_same_to_the_last_bit():
    method, other = tampo(), tampo()
    groups = collect_all(method, warm(), TASKS)
    stored = [group_from_dict(group_to_dict(group)) for group in groups]
    assert [group.measured for group in stored] == [group.measured for group in groups]
    assert method.learn(groups, update=2) == other.learn(stored, update=2)
    assert method.temperatures.earned.tobytes() == other.temperatures.earned.tobytes()
    assert method.statistics(groups) == other.statistics(stored)


def test_what_was_learned_goes_through_flat_arrays_and_back():
    method, other = tampo(), tampo()
    group = collect(method, warm())
    method.learn([group], update=2)
    other.load_state_dict(method.state_dict())
    assert other.learn([group], update=3) == method.learn([group], update=3)
    for name, array in method.state_dict().items():
        assert numpy.array_equal(array, other.state_dict()[name])
    with pytest.raises(CheckpointError, match=r"of temperature factors \[0.7, 1.0, 1.3\], expected \[0.7, 1.0, 1.4\]"):
        tampo(temperature_factors=(0.7, 1.0, 1.4)).load_state_dict(method.state_dict())


def test_statistics_are_the_temperatures_that_were_drawn():
    method = tampo(nucleus=1.0)
    groups = collect_all(method, engine_of(), TASKS)
    drawn = [group.measured["temperature_factor"][0] for group in groups]
    assert method.statistics(groups) == {
        "intervention/temperature_factor": pytest.approx(math.fsum(drawn) / 3),
        "intervention/states_failed": 0.0,
    }
    assert method.statistics([]) == {}


def test_advantages_are_grpos():
    method = tampo()
    group = collect(method, engine_of(wins={3}, fails={(0, 0)}), task=TASK)
    assert method.advantages(group) == [
        None,
        *[pytest.approx(-(2**-0.5), rel=1e-5)] * 2,
        pytest.approx(2**0.5, rel=1e-5),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"temperature_factors": factors}, rf"must be increasing and in \[0.01, 100\]: got \[{told}\]")
            for factors, told in (
                ((1.0, 0.9), "1.0, 0.9"),
                ((), ""),
                ((1e-40, 1.0), "1e-40, 1.0"),
                ((1.0, 101.0), "1.*"),
            )
        ),
        ({"nucleus": 0.0}, "nucleus\n.*greater than 0"),
        ({"averaging_rate": 1.1}, "averaging_rate\n.*less than or equal to 1"),
        ({"group_size": 0}, "group_size\n.*greater than or equal to 1"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_was_expected(settings, message):
    with pytest.raises(ValidationError, match=message):
        tampo(**settings)
