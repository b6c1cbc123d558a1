import pytest
from pydantic import ValidationError
from tests.methods.rival_world import (
    TASK,
    TASKS,
    attempts,
    branches,
    collect,
    collect_all,
    engine_of,
    failures,
    world_seed,
)
from tests.rollout.branch_world import SeededWorld

from midcourse.methods.arpo import ARPOConfig
from midcourse.types import Origin

UNCERTAIN = {(0, 1): 0.5, (2, 1): 0.3, (1, 2): 0.4, (3, 2): 0.6}
"""(attempt, turn) that begin more uncertain than rollouts do, at 1/4."""


def arpo(**settings):
    return ARPOConfig(**{"rollout_budget": 8, "initial_rollouts": 3, **settings}).build()


def three_turns(**settings):
    return engine_of(turns=lambda attempt: 3, **{"entropies": UNCERTAIN, **settings})


# worked by hand: of three rollouts from the start, 0 and 2 begin turn 1 over 1/4: attempts 3 and 4. Of the five then,
# 1 and 3 begin turn 2 over it: attempts 5 and 6. One of eight is left: attempt 7, from the start.


def test_rollouts_branch_where_they_grow_uncertain_and_branches_branch_too():
    group = collect(arpo(), three_turns())
    assert branches(group) == [(0, 1, (3,)), (2, 1, (4,)), (1, 2, (5,)), (3, 2, (6,))]
    assert attempts(group) == [
        *("0,0 0,1 0,2", "1,0 1,1 1,2", "2,0 2,1 2,2"),
        *("0,0 3,1 3,2", "2,0 4,1 4,2", "1,0 1,1 5,2", "0,0 3,1 6,2"),
        "7,0 7,1 7,2",
    ]
    assert [member.origin for member in group.members] == [Origin.ROOT] * 3 + [Origin.BRANCH] * 4 + [Origin.ROOT]
    assert [record.entropy for record in group.branches] == pytest.approx([0.5, 0.3, 0.4, 0.6], abs=1e-4)
    assert {(record.rule, record.temperature, record.is_kept) for record in group.branches} == {("arpo", 0.8, True)}


def test_every_branch_is_led_through_the_world_of_the_rollout_that_it_goes_back_to():
    world = SeededWorld()
    group = collect(arpo(), three_turns(), world=world)
    assert failures(group) == [None] * 8
    rounds = [world.episodes[:3], world.episodes[3:5], world.episodes[5:7], world.episodes[7:]]
    assert [{episode.seed for episode in episodes} for episodes in rounds] == [
        {world_seed(root) for root in roots} for roots in ((0, 1, 2), (0, 2), (1, 0), (7,))
    ]
    child, grandchild = group.members[3].trajectory, group.members[6].trajectory
    at = child.turns[2].start
    assert grandchild.token_ids[:at] == child.token_ids[:at]
    assert grandchild.behavior_logprobs[:at] == child.behavior_logprobs[:at]


@pytest.mark.parametrize(
    ("budget", "beam_size", "drawn"),
    [
        (3, 2, []),
        (4, 2, [1]),  # the first to ask takes the last
        (6, 2, [1, 1, 1]),
        (8, 3, [2, 2, 1]),  # cut to what is left
        (20, 2, [1, 1, 1, 1]),  # 13 more from the start
    ],
)
def test_the_budget_is_spent_to_the_last_rollout_and_never_exceeded(budget, beam_size, drawn):
    trigger = {"beam_size": beam_size}
    # Of other branches no turn is uncertain, whichever attempts they are.
    group = collect(arpo(rollout_budget=budget, trigger=trigger), three_turns())
    assert [len(record.rollouts) for record in group.branches] == drawn
    assert len(group.members) == budget
    assert sum(member.origin is Origin.ROOT for member in group.members) == budget - sum(drawn)


def test_no_more_uncertain_than_at_the_start_is_not_uncertain():
    assert collect(arpo(), three_turns(entropies={})).branches == ()
    high = {(attempt, turn): 0.9 for attempt in range(8) for turn in range(3)}
    assert collect(arpo(), three_turns(entropies=high)).branches == ()


def test_behind_a_turn_that_nothing_answered_there_is_no_branch():
    group = collect(arpo(), three_turns(silent={(0, 0)}))
    assert (0, 1) not in [(record.parent, record.turn) for record in group.branches]
    assert branches(group)[0] == (2, 1, (3,))


def test_the_rule_of_chance_draws_for_each_turn_by_itself():
    def drawn(probability):
        trigger = {"rule": "probability", "base_probability": probability, "entropy_weight": 0.0}
        group = collect(arpo(rollout_budget=30, initial_rollouts=6, trigger=trigger), three_turns())
        return {(parent, turn) for parent, turn, _ in branches(group) if parent < 6}

    everywhere = {(rollout, turn) for rollout in range(6) for turn in (1, 2)}
    assert (drawn(0.0), drawn(1.0)) == (set(), everywhere)
    assert drawn(0.2) <= drawn(0.5) <= drawn(0.8) <= everywhere
    assert set() < drawn(0.5) < everywhere


# failures


def test_a_rollout_that_failed_branches_at_the_turns_that_it_wrote():
    group = collect(arpo(), three_turns(fails={(0, 2), (1, 0), (2, 1)}))
    # 0 has its turn 1, 1 has no turn, 2 has its turn 0 alone.
    assert branches(group) == [(0, 1, (3,)), (3, 2, (4,))]
    assert failures(group)[:3] == ["engine_error"] * 3
    assert [len(member.trajectory.turns) for member in group.members] == [2, 0, 1, 3, 3, 3, 3, 3]
    assert len(group.members) == 8


def test_a_branch_that_failed_before_a_turn_of_its_own_counts_and_is_not_gone_on_from():
    group = collect(arpo(), three_turns(fails={(3, 1)}))
    assert branches(group) == [(0, 1, (3,)), (2, 1, (4,)), (1, 2, (5,))]
    assert attempts(group)[3] == "0,0"
    assert failures(group) == [None] * 3 + ["engine_error"] + [None] * 4


def test_where_every_rollout_fails_the_budget_is_spent_at_the_start():
    method = arpo()
    group = collect(method, three_turns(fails={(attempt, 0) for attempt in range(8)}))
    assert (group.branches, failures(group)) == ((), ["engine_error"] * 8)
    assert method.advantages(group) == [None] * 8


def test_a_world_that_does_not_answer_as_it_had_fails_its_branches_alone():
    class Forgetful(SeededWorld):
        def start(self, task, *, seed):
            self.shift = int(len(self.episodes) >= 3)
            return super().start(task, seed=seed)

    group = collect(arpo(), three_turns(), world=Forgetful())
    # Of 3, 4 and 5, which never reached a turn behind the one that they drafted, nothing branches.
    assert branches(group) == [(0, 1, (3,)), (2, 1, (4,)), (1, 2, (5,))]
    assert failures(group) == [None] * 3 + ["replay_mismatch"] * 3 + [None] * 2


# keys and order


def test_a_key_draws_its_group_again_and_the_order_of_tasks_does_not_matter():
    trigger = {"rule": "probability"}

    def grown(tasks):
        groups = collect_all(arpo(trigger=trigger, initial_rollouts=4), three_turns(), tasks)
        return {group.task_id: (group.members, group.branches) for group in groups}

    found = grown(TASKS)
    assert found == grown(TASKS[::-1])
    assert found[TASKS[1].task_id] == grown([TASKS[1]])[TASKS[1].task_id]
    where = {tuple((record.parent, record.turn) for record in records) for _, records in found.values()}
    assert len(where) > 1  # draws are the task's own


def test_advantages_are_grpos_over_all_rollouts():
    method = arpo()
    group = collect(method, three_turns(wins={0, 3}))
    # 2 of 8: mean 1/4, deviation sqrt(3) / 4
    assert method.advantages(group) == pytest.approx(
        [3**0.5 if index in (0, 3) else -(3**-0.5) for index in range(8)], rel=1e-5
    )
    assert group.task_id == TASK.task_id


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial_rollouts": 9}, "initial_rollouts must be at most rollout_budget: got 9 of 8"),
        ({"trigger": {"beam_size": 1}}, r"trigger.beam_size\n.*greater than or equal to 2"),
        ({"trigger": {"rule": "chance"}}, r"trigger.rule\n.*'threshold' or 'probability'"),
        ({"group_size": 8}, "group_size\n.*Extra inputs"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_was_expected(settings, message):
    with pytest.raises(ValidationError, match=message):
        arpo(**settings)
