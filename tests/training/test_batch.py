import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_building import ENVIRONMENT, INTERVENTION, POLICY, PROMPT, make_group, make_trajectory

from midcourse.training.batch import MicroBatch, Row, build_batch, micro_batches, split_groups
from midcourse.types import Group, Member


def make_rows(lengths):
    return [Row(trajectory=make_trajectory([3] * length), advantage=float(length)) for length in lengths]


def test_groups_without_signal_and_failed_members_are_left_out_and_counted():
    groups = [make_group([1.0, 0.0, None]), make_group([1.0, 1.0]), make_group([None, None])]
    batch = build_batch(groups, [[1.0, -1.0, None], [0.0, 0.0], [None, None]])
    assert [[row.advantage for row in rows] for rows in batch.groups] == [[1.0, -1.0]]
    assert (batch.groups_without_signal, batch.members_failed, batch.members_left_out) == (2, 3, 0)


def test_a_member_without_advantage_that_has_a_reward_is_left_out_and_counted_apart():
    batch = build_batch([make_group([1.0, 0.0, None])], [[1.0, None, None]])
    assert [len(rows) for rows in batch.groups] == [1]
    assert (batch.members_failed, batch.members_left_out) == (1, 1)


def test_a_group_that_a_teacher_scored_has_signal_without_any_advantage():
    group = make_group([0.0, 0.0])
    first, second = (member.trajectory for member in group.members)
    taught = replace(second, teacher_logprobs=(None, None, *[-1.0] * (len(second.token_ids) - 2)))
    groups = [group, replace(group, members=(Member(trajectory=first), Member(trajectory=taught)))]
    batch = build_batch(groups, [[0.0, 0.0], [None, 0.0]])
    assert [[row.trajectory for row in rows] for rows in batch.groups] == [[taught]]
    assert (batch.groups_without_signal, batch.members_left_out) == (1, 1)


def test_a_teacher_of_nothing_is_no_signal():
    empty = replace(make_trajectory([3, 4]), teacher_logprobs=(None, None))
    group = Group(group_id="g", task_id="task", members=(Member(trajectory=empty),))
    assert build_batch([group], [[0.0]]).groups_without_signal == 1


def test_a_member_at_the_mean_of_a_group_with_signal_stays():
    batch = build_batch([make_group([1.0, 0.5, 0.0])], [[1.0, 0.0, -1.0]])
    assert [row.advantage for row in batch.groups[0]] == [1.0, 0.0, -1.0]


def test_policy_and_intervention_train_and_nobody_else():
    row = Row(
        trajectory=make_trajectory([3, 4, 5, 6, 7], sources=[PROMPT, POLICY, ENVIRONMENT, INTERVENTION, POLICY]),
        advantage=1.0,
    )
    assert row.trained == [False, True, False, True, True]
    assert row.sampled == [False, True, False, False, True]
    assert row.num_trained_tokens == 3


@pytest.mark.parametrize("values", [[1.0], [1.0, math.nan], [1.0, -math.inf]])
def test_advantages_that_do_not_fit_are_refused(values):
    with pytest.raises(ValueError, match="advantage"):
        build_batch([make_group([1.0, 0.0])], [values])


@given(st.lists(st.integers(3, 40), max_size=20), st.integers(1, 120))
def test_micro_batches_hold_each_row_once_within_the_budget(lengths, max_tokens):
    rows = make_rows(lengths)
    batches = micro_batches(rows, max_tokens=max_tokens)
    assert sorted(id(row) for batch in batches for row in batch.rows) == sorted(id(row) for row in rows)
    for batch in batches:
        assert batch.tree is None
        assert batch.computed_tokens == len(batch.rows) * max(len(row.trajectory.token_ids) for row in batch.rows)
        assert batch.computed_tokens <= max_tokens or len(batch.rows) == 1


def test_rows_go_longest_first_and_keep_their_order_within_a_length():
    rows = make_rows([4, 6, 4, 6])
    batches = micro_batches(rows, max_tokens=12)
    assert [batch.rows for batch in batches] == [[rows[1], rows[3]], [rows[0], rows[2]]]


def test_a_row_without_trained_tokens_takes_no_pass():
    rows = [Row(trajectory=make_trajectory([3, 4]), advantage=1.0), *make_rows([5])]
    assert micro_batches(rows, max_tokens=100) == [MicroBatch(rows=[rows[1]])]


@pytest.mark.parametrize(
    ("num_groups", "num_minibatches", "sizes"), [(7, 3, [2, 2, 3]), (2, 5, [1, 1]), (0, 2, []), (4, 1, [4])]
)
def test_groups_are_split_whole_and_evenly(num_groups, num_minibatches, sizes):
    groups = [make_rows([4]) for _ in range(num_groups)]
    parts = split_groups(groups, num_minibatches)
    assert [len(part) for part in parts] == sizes
    assert [group for part in parts for group in part] == groups
