import json
import math
from dataclasses import replace

import numpy
import pytest
from pydantic import ValidationError
from tests.interventions.scripted_world import TASK
from tests.methods.rival_world import TASKS, attempts, begun, collect, collect_all, engine_of, failures

from midcourse.cli import main
from midcourse.errors import CheckpointError, ConfigError
from midcourse.methods.vip import EMBEDDING_SIZE, VIPConfig, embed_words
from midcourse.types import Group, Member, Origin

IDS = [task.task_id for task in TASKS]


def vip(**settings):
    return VIPConfig(**{"rollouts_per_task": 4, "min_rollouts": 3, "max_rollouts": 6, **settings}).build()


def rewarded(task, rewards):
    """A group of the task with these rewards; None is a rollout that failed."""
    (member,) = collect(vip(), engine_of(), task=task).members[:1]
    (failed,) = collect(vip(), engine_of(fails={(0, 0)}), task=task).members[:1]
    members = [
        failed if reward is None else Member(trajectory=replace(member.trajectory, reward=reward)) for reward in rewards
    ]
    return Group(group_id=task.task_id, task_id=task.task_id, members=members)


def sizes(groups):
    return {group.task_id: len(group.members) for group in groups}


def taught(*rewards, **settings):
    """The method after an update in which the tasks had these rewards."""
    method = begun(vip(**settings))
    method.learn([rewarded(task, each) for task, each in zip(TASKS, rewards, strict=True)], update=2)
    return method


HALF, NEVER, ALWAYS = [1.0, 0.0], [0.0], [1.0]

# Twelve rollouts for three tasks, three for each at least: three are to be given out, each where a (n - 1) / n^2 falls
# most, a = p (1 - p). Where p is near 0 or 1 nothing is to be had.


def test_before_anything_is_known_all_tasks_get_as_many():
    method = begun(vip())
    assert sizes(collect_all(method, engine_of(), TASKS)) == dict.fromkeys(IDS, 4)


def test_rollouts_go_where_the_predictor_is_in_doubt():
    method = taught(HALF, NEVER, ALWAYS)
    method.begin_update(3, TASKS)
    groups = collect_all(method, engine_of(), TASKS)
    assert sizes(groups) == dict(zip(IDS, (6, 3, 3), strict=True))
    assert [attempts(group) for group in groups] == [
        [f"{attempt},0 {attempt},1" for attempt in range(count)] for count in (6, 3, 3)
    ]
    assert {member.origin for group in groups for member in group.members} == {Origin.ROOT}


def test_what_a_task_gets_depends_on_the_update_that_it_is_in():
    method = taught(HALF, HALF, NEVER)

    def given(*places):
        tasks = [TASKS[place] for place in places]
        method.begin_update(3, tasks)
        return list(sizes(collect_all(method, engine_of(), tasks)).values())

    assert given(0, 2) == [5, 3]
    assert sorted(given(0, 1)) == [4, 4]
    assert sorted(given(0, 1, 2)) == [3, 4, 5]
    assert sum(given(0, 1, 2)) == 12
    assert given(2) == [4]


def test_the_order_of_tasks_does_not_matter():
    method = taught([1.0, 0.0, 0.0], NEVER, HALF)
    found = []
    for tasks in (TASKS, TASKS[::-1]):
        method.begin_update(3, tasks)
        groups = collect_all(method, engine_of(), tasks)
        found.append({group.task_id: group.members for group in groups})
    assert found[0] == found[1]


@pytest.mark.parametrize(("estimator", "given"), [("dr_grpo", (6, 3, 3)), ("rloo", (6, 3, 3))])
def test_both_estimators_have_their_advantages(estimator, given):
    method = taught(HALF, NEVER, ALWAYS, estimator=estimator)
    method.begin_update(3, TASKS)
    assert tuple(sizes(collect_all(method, engine_of(), TASKS)).values()) == given
    found = method.advantages(rewarded(TASK, [1.0, 0.0, 0.0, None, 0.0]))
    scale = 1.0 if estimator == "dr_grpo" else 4 / 3  # n / (n - 1)
    assert found == [pytest.approx(0.75 * scale), *[pytest.approx(-0.25 * scale)] * 2, None, found[4]]
    assert found[4] == found[1]
    assert method.advantages(rewarded(TASK, [1.0, 1.0, None])) == [0.0, 0.0, None]


# learning


def predicted(method):
    return method._trained.predict(range(len(TASKS))).tolist()


def test_the_mean_of_the_scored_rewards_is_observed():
    method = taught([1.0, 0.0, 0.0, None, 0.0], HALF, [None, 1.0, 1.0, 1.0, 0.0])
    assert predicted(method) == pytest.approx([0.25, 0.5, 0.75], abs=1e-3)


def test_a_task_whose_rollouts_all_failed_is_not_observed():
    one, two = begun(vip()), begun(vip())
    one.learn([rewarded(TASKS[0], HALF), rewarded(TASKS[1], [None, None])], update=2)
    two.learn([rewarded(TASKS[0], HALF)], update=2)
    assert predicted(one) == predicted(two)
    before = predicted(one)
    assert one.learn([rewarded(TASKS[1], [None])], update=3) == {}
    assert predicted(one) == before


def test_failed_rollouts_are_members_without_an_advantage():
    method = begun(vip())
    group = collect(method, engine_of(fails={(1, 0), (2, 1)}, wins={0}), task=TASKS[0])
    assert failures(group) == [None, "engine_error", "engine_error", None]
    assert method.advantages(group) == [0.5, None, None, -0.5]


@pytest.mark.parametrize(("reward", "end"), [(3.0, 1.0), (-2.0, 0.0), (1.5, 1.0)])
def test_rewards_outside_of_zero_and_one_count_as_the_nearer_end(reward, end):
    outside, inside = begun(vip()), begun(vip())
    for method, value in ((outside, reward), (inside, end)):
        method.learn([rewarded(TASKS[0], [value] * 2)], update=2)
    assert predicted(outside) == predicted(inside)
    error = "intervention/prediction/mean_absolute_error"
    groups = [rewarded(TASKS[0], [reward])]
    assert begun(vip()).statistics(groups)[error] == pytest.approx(abs(end - 1 / (1 + math.e)))


def test_what_was_learned_goes_through_flat_arrays_and_back():
    method = taught(HALF, NEVER, [1.0, 1.0, 0.0])
    other = begun(vip())
    other.load_state_dict(method.state_dict())
    for each in (method, other):
        each.learn([rewarded(TASKS[1], HALF)], update=3)
    assert predicted(other) == predicted(method)
    for name, array in method.state_dict().items():
        assert numpy.array_equal(array, other.state_dict()[name])


def test_a_state_of_other_tasks_is_refused():
    state = begun(vip()).state_dict()
    with pytest.raises(CheckpointError, match="of other tasks, or of their order"):
        begun(vip(), TASKS[::-1]).load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"expected logits \(2,\)"):
        begun(vip(), TASKS[:2]).load_state_dict(state)


def test_statistics_say_how_rollouts_were_given_out_and_how_far_predictions_were_off():
    method = begun(vip())
    groups = [rewarded(TASKS[0], [1.0] * 6), rewarded(TASKS[1], [0.0, None, 0.0])]
    prior = 1 / (1 + math.e)
    assert method.statistics(groups) == pytest.approx(
        {
            "intervention/rollouts_a_task": 4.5,
            "intervention/rollouts_least": 3.0,
            "intervention/rollouts_most": 6.0,
            "intervention/prediction/mean_absolute_error": (1 - prior + prior) / 2,
        }
    )
    assert method.statistics([]) == {}


def test_a_split_that_is_not_trained_on_can_be_rolled_out(capsys, tmp_path):
    file = tmp_path / "run.toml"
    lines = ['method.name = "vip"', "method.rollouts_per_task = 3", "method.min_rollouts = 3"]
    lines += ["environment.train_tasks = 4", "environment.test_tasks = 2"]
    lines += ["rollout.max_turn_tokens = 48", "rollout.max_turns = 1"]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main(["rollout", str(file), "--split", "test", "--tasks", "2", "--json"])
    assert not stopped.value.code
    found = json.loads(capsys.readouterr().out)
    assert [len(group["members"]) for group in found] == [3, 3]
    assert all(member["failure"] is None for group in found for member in group["members"])


def test_before_it_is_begun_nothing_can_be_given_out():
    with pytest.raises(ConfigError, match="vip: rollouts cannot be given out before `begin`"):
        vip().begin_update(1, TASKS)
    assert len(collect(vip(), engine_of()).members) == 4


# embedding


def test_an_embedding_is_a_sum_of_hashed_words_and_pairs_of_length_one():
    one, pair = embed_words("north"), embed_words("north of")
    (place,) = numpy.flatnonzero(one)
    assert one.shape == (EMBEDDING_SIZE,)
    assert abs(one[place]) == 1.0
    # Two words and their pair, at three places.
    assert len(numpy.flatnonzero(pair)) == 3
    assert numpy.abs(pair[numpy.flatnonzero(pair)]) == pytest.approx([3**-0.5] * 3)
    assert pair[place] * one[place] > 0
    assert embed_words(" \n").tolist() == [0.0] * EMBEDDING_SIZE


def test_an_embedding_is_the_same_in_every_process_and_knows_the_order_of_words():
    # By hand from BLAKE2b of 8 bytes, big end first: the last bit is the sign, the others modulo 384 the place.
    (place,) = numpy.flatnonzero(embed_words("north"))
    assert (int(place), embed_words("north")[place]) == (170, 1.0)
    assert embed_words("North  of\tit").tolist() == embed_words("north of it").tolist()
    assert embed_words("of north").tolist() != embed_words("north of").tolist()
    assert embed_words("\ud800").any()  # half a surrogate pair is a word as well


def test_tasks_with_words_in_common_are_alike():
    near = embed_words("find the north") @ embed_words("find the south")
    far = embed_words("find the north") @ embed_words("count all trains")
    assert near > 0.3 > abs(far)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts_per_task": 8}, "rollouts_per_task must lie between min_rollouts and max_rollouts: got 3, 8, 6"),
        ({"min_rollouts": 2}, "min_rollouts must be at least 3 for dr_grpo: got 2"),
        ({"estimator": "grpo"}, r"estimator\n.*'dr_grpo' or 'rloo'"),
        ({"predictor": {"observation_clip": 0.5}}, r"predictor.observation_clip\n.*less than 0.5"),
        ({"predictor": {"observation_clip": 1e-17}}, r"predictor.observation_clip\n.*greater than or equal to 0.00"),
        (
            {"predictor": {"observation_noise": 1e-300}},
            r"predictor.observation_noise\n.*greater than or equal to 0.00",
        ),
        ({"predictor": {"length_scale": 1e-200}}, r"predictor.length_scale\n.*greater than or equal to 0.00"),
        ({"group_size": 4}, "group_size\n.*Extra inputs"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_was_expected(settings, message):
    with pytest.raises(ValidationError, match=message):
        vip(**settings)
