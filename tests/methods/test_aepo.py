import math

import pytest
from pydantic import ValidationError
from tests.methods.rival_world import TASKS, attempts, branches, collect, collect_all, engine_of, failures
from tests.objectives.test_clipped import make_inputs
from tests.rollout.branch_world import SeededWorld

from midcourse.methods.aepo import AEPOConfig
from midcourse.objectives.clipped import ClippedConfig
from midcourse.types import Origin, TokenSource


def aepo(**settings):
    return AEPOConfig(**{"rollout_budget": 8, "entropy_sensitivity": 5.0, **settings}).build()


def three_turns(**settings):
    return engine_of(turns=lambda attempt: 3, **settings)


def num_starts(group):
    """Rollouts that began before any branch was made."""
    first = min((record.rollouts[0] for record in group.branches), default=len(group.members))
    return sum(member.origin is Origin.ROOT for member in group.members[:first])


# how many begin at the start: m = floor(8 sigmoid(5 gap)) + 1


@pytest.mark.parametrize(
    ("first", "starts"),
    [
        ({(0, 1): 0.5, (0, 2): 0.5}, 2),  # gap -1/4: sigmoid 0.223, 1.78
        ({(0, 1): 0.5}, 3),  # the mean of 1/2 and 1/4, gap -1/8: 0.349, 2.79
        ({(0, 0): 0.0, (0, 1): 0.9, (0, 2): 0.9}, 1),  # gap -0.9: 0.011, 0.09
    ],
)
def test_the_first_rollout_says_how_many_begin_at_the_start(first, starts):
    group = collect(aepo(), three_turns(entropies=first))
    assert num_starts(group) == starts
    assert len(group.members) == 8


def test_a_rollout_that_is_less_certain_at_the_start_than_later_begins_all_there():
    # gap 1/4: sigmoid 0.777, 6.2, so 7; with a sensitivity of 10 0.924, 7.4, so 8
    late = {(6, 1): 0.9, (7, 1): 0.9}
    seven = collect(aepo(), three_turns(entropies={(0, 0): 0.5, **late}))
    assert branches(seven) == [(6, 1, (7,))]
    assert collect(aepo(entropy_sensitivity=10.0), three_turns(entropies={(0, 0): 0.5, **late})).branches == ()


@pytest.mark.parametrize("fails", [{(0, 0)}, {(0, 1)}])
def test_a_first_rollout_that_failed_before_a_tool_answered_measures_no_gap(fails):
    uncertain = {(attempt, 1): 0.9 for attempt in range(8)}
    group = collect(aepo(), three_turns(fails=fails, entropies=uncertain))
    # 8 / 2 + 1; of the five the first has no turn 1.
    assert branches(group) == [(1, 1, (5,)), (2, 1, (6,)), (3, 1, (7,))]
    assert failures(group) == ["engine_error"] + [None] * 7


def test_where_every_rollout_fails_the_budget_is_spent_at_the_start():
    method = aepo()
    group = collect(method, three_turns(fails={(attempt, 0) for attempt in range(8)}))
    assert (group.branches, failures(group)) == ((), ["engine_error"] * 8)
    assert method.advantages(group) == [None] * 8


# branches in a row, worked by hand: two begin at the start. Turn 1 of 0 is over 1/4: attempt 2. With a penalty of 1/2
# P = (1/2 + 4 dH) / 2 at turn 2 of both: of 0 dH is 1/4, 3/4, over 1/2; of 2 dH is 1/10, 0.45, under it.

IN_A_ROW = {(0, 1): 0.5, (0, 2): 0.5, (2, 2): 0.35}


def test_turns_behind_a_branch_must_be_more_uncertain():
    group = collect(aepo(branch_penalty=0.5), three_turns(entropies=IN_A_ROW))
    assert branches(group) == [(0, 1, (2,)), (0, 2, (3,))]
    assert attempts(group)[2:5] == ["0,0 2,1 2,2", "0,0 0,1 3,2", "4,0 4,1 4,2"]
    unpunished = collect(aepo(branch_penalty=0.0), three_turns(entropies=IN_A_ROW))
    assert branches(unpunished) == [(0, 1, (2,)), (0, 2, (3,)), (2, 2, (4,))]
    assert attempts(unpunished)[4] == "0,0 2,1 4,2"
    for grown in (group, unpunished):
        assert len(grown.members) == 8
        assert {record.rule for record in grown.branches} == {"aepo"}
        assert failures(grown) == [None] * 8


@pytest.mark.parametrize(("budget", "drawn"), [(1, []), (2, [1]), (3, [1, 1]), (4, [1, 1, 1]), (12, [1, 1, 1])])
def test_the_budget_is_spent_to_the_last_rollout_and_never_exceeded(budget, drawn):
    # One begins at the start, whatever the budget: gap -0.9.
    entropies = {(0, 0): 0.0, (0, 1): 0.9, (0, 2): 0.9, (1, 2): 0.9}
    group = collect(aepo(rollout_budget=budget), three_turns(entropies=entropies))
    assert len(group.members) == budget
    assert [len(record.rollouts) for record in group.branches] == drawn


def test_a_key_draws_its_group_again_and_the_order_of_tasks_does_not_matter():
    trigger = {"rule": "probability"}

    def grown(tasks):
        groups = collect_all(aepo(trigger=trigger), three_turns(entropies=IN_A_ROW), tasks)
        return {group.task_id: (group.members, group.branches) for group in groups}

    assert grown(TASKS) == grown(TASKS[::-1])
    assert grown(TASKS) == {**grown(TASKS[:1]), **grown(TASKS[1:2]), **grown(TASKS[2:])}


# weights


def weights_by_turn(member):
    """The weights of each turn's tokens as a set, and of all other tokens."""
    trajectory = member.trajectory
    inside = [set(trajectory.weights[turn.start : turn.end]) for turn in trajectory.turns]
    written = {position for turn in trajectory.turns for position in range(turn.start, turn.end)}
    outside = {weight for position, weight in enumerate(trajectory.weights) if position not in written}
    return inside, outside


def test_uncertain_tokens_weigh_more_by_a_share_of_their_deviations():
    group = collect(aepo(rollout_budget=2), engine_of(entropies={(1, 1): 0.5}))
    # Two rollouts of two turns of six tokens: of 24 six lie over the mean by 3/4 of the step and the others under it
    # by 1/4; the deviation is sqrt(3)/4 of the step. So z is sqrt(3) and -1/sqrt(3).
    (first, nothing), (second, _) = map(weights_by_turn, group.members)
    common = 1 - 0.2 / math.sqrt(3)
    assert [sorted(weights) for weights in first] == [pytest.approx([common])] * 2
    assert [sorted(weights) for weights in second] == [
        pytest.approx([common]),
        pytest.approx([1 + 0.2 * math.sqrt(3)]),
    ]
    assert nothing == {1.0}


def test_where_all_entropies_are_equal_every_weight_is_exactly_one():
    group = collect(aepo(), three_turns())
    assert {weight for member in group.members for weight in member.trajectory.weights} == {1.0}
    without = collect(aepo(entropy_share=0.0), three_turns(entropies=IN_A_ROW))
    assert {weight for member in without.members for weight in member.trajectory.weights} == {1.0}


def test_only_what_the_policy_drew_is_weighed():
    group = collect(aepo(branch_penalty=0.0), three_turns(entropies=IN_A_ROW))
    for member in group.members:
        trajectory = member.trajectory
        for source, weight in zip(trajectory.sources, trajectory.weights, strict=True):
            assert (weight == 1.0) == (source is not TokenSource.POLICY)
    # A copy of a shared token weighs as the token.
    parent, branch = group.members[2].trajectory, group.members[4].trajectory
    at = parent.turns[2].start
    assert branch.weights[:at] == parent.weights[:at]


def test_a_rollout_that_failed_is_not_weighed_and_moves_no_mean():
    # What is uncertain is the failed one's alone.
    group = collect(aepo(rollout_budget=2), engine_of(entropies={(1, 0): 0.9}, fails={(1, 1)}))
    assert failures(group) == [None, "engine_error"]
    assert {weight for member in group.members for weight in member.trajectory.weights} == {1.0}
    broken = SeededWorld(judge=lambda keys: 1.0 / 0.0 if keys.endswith("a") else 1.0)
    group = collect(aepo(rollout_budget=2), engine_of(wins={0}, entropies={(0, 1): 0.5, (1, 1): 0.9}), world=broken)
    assert failures(group) == [None, "reward_error"]
    ((known, _), (failed, _)) = map(weights_by_turn, group.members)
    # Six of twelve tokens lie a deviation over the mean, six under it.
    assert [sorted(weights) for weights in known] == [pytest.approx([0.8]), pytest.approx([1.2])]
    assert failed == [{1.0}, {1.0}]


# objective and settings


def test_the_upper_clip_keeps_its_gradient_times_the_tokens_weight():
    objective = aepo(objective=ClippedConfig(clip_low=0.2, clip_high=0.3)).objective
    inputs = make_inputs([[math.log(1.5)]], [[0.0]], [[2.0]], weights=[[1.2]], coefficients=[[0.5]])
    output = objective(inputs)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-0.5 * 1.2 * 1.3 * 2.0)
    assert inputs.logprobs_BT.grad.item() == pytest.approx(-0.5 * 1.2 * 1.3 * 2.0)


def test_advantages_are_grpos_over_all_rollouts():
    method = aepo(rollout_budget=4)
    group = collect(method, engine_of(wins={0}, entropies={(1, 1): 0.5}))
    assert method.advantages(group) == pytest.approx([3**0.5, *[-(3**-0.5)] * 3], rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_budget": 0}, "rollout_budget\n.*greater than or equal to 1"),
        ({"branch_penalty": 1.5}, "branch_penalty\n.*less than or equal to 1"),
        ({"entropy_share": -0.1}, "entropy_share\n.*greater than or equal to 0"),
        ({"initial_rollouts": 4}, "initial_rollouts\n.*Extra inputs"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_was_expected(settings, message):
    with pytest.raises(ValidationError, match=message):
        aepo(**settings)
