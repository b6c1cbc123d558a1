from dataclasses import replace

import pytest
from pydantic import ValidationError
from tests.methods.rival_world import TASKS, attempts, branches, collect, collect_all, engine_of, failures, world_seed
from tests.rollout.branch_world import KEY, SeededWorld

from midcourse.advantages.tree import tree_advantages
from midcourse.branching.rivals.tree import tree_branches
from midcourse.methods.branched import lineage_of
from midcourse.methods.tree_grpo import TreeGRPOConfig
from midcourse.types import Origin


def tree_grpo(**settings):
    return TreeGRPOConfig(**settings).build()


def roots(group):
    lineage = lineage_of(group)
    return [lineage.root(member) for member in range(len(lineage))]


# Two trunks of two turns have two nodes each, the start and the boundary before turn 1; two of each are expanded.


def test_every_tree_grows_at_its_own_nodes():
    group = collect(tree_grpo(), engine_of())
    places = [(parent, turn) for parent, turn, _ in branches(group)]
    assert [parent for parent, _ in places] == [0, 0, 1, 1]
    assert {*places[:2]} == {(0, 0), (0, 1)}
    assert {*places[2:]} == {(1, 0), (1, 1)}
    assert [rollouts for _, _, rollouts in branches(group)] == [(2,), (3,), (4,), (5,)]
    written = {
        place: attempts(group)[rollouts[0]] for place, (_, _, rollouts) in zip(places, branches(group), strict=True)
    }
    number = {place: rollouts[0] for place, (_, _, rollouts) in zip(places, branches(group), strict=True)}
    for trunk in (0, 1):
        fresh, later = number[trunk, 0], number[trunk, 1]
        assert written[trunk, 0] == f"{fresh},0 {fresh},1"
        assert written[trunk, 1] == f"{trunk},0 {later},1"
    assert {(record.rule, record.is_kept) for record in group.branches} == {("tree_grpo", True)}
    assert [member.origin for member in group.members] == [Origin.ROOT] * 2 + [Origin.BRANCH] * 4


def test_a_continuation_from_the_trunks_start_belongs_to_the_trunks_tree_and_plays_in_its_world():
    world = SeededWorld()
    group = collect(tree_grpo(), engine_of(), world=world)
    assert roots(group) == [0, 1, 0, 0, 1, 1]
    assert failures(group) == [None] * 6
    assert sorted(episode.seed for episode in world.episodes[2:]) == sorted([world_seed(0)] * 2 + [world_seed(1)] * 2)


def test_later_rounds_expand_branches_too_and_each_is_led_through_its_trunks_world():
    world = SeededWorld()
    config = {"trees": 1, "nodes": 3, "rounds": 3, "leaves": 10}
    group = collect(tree_grpo(**config), engine_of(turns=lambda attempt: 3), world=world)
    assert len(group.members) == 10
    assert failures(group) == [None] * 10
    assert roots(group) == [0] * 10
    assert {episode.seed for episode in world.episodes} == {world_seed(0)}
    assert any(record.parent not in (0, None) for record in group.branches)
    for record in group.branches:
        parent, child = group.members[record.parent].trajectory, group.members[record.rollouts[0]].trajectory
        at = parent.turns[record.turn].start
        assert child.token_ids[:at] == parent.token_ids[:at]
        assert child.turns[: record.turn] == parent.turns[: record.turn]
        assert child.token_ids[at:] != parent.token_ids[at:]
    for start in (0, 3, 6):  # within a round no node is taken twice while there are others
        taken = [(record.parent, record.turn) for record in group.branches[start : start + 3]]
        assert len(set(taken)) == 3


def test_each_round_draws_its_nodes_anew():
    config = TreeGRPOConfig(trees=1, nodes=1, rounds=2, leaves=1)
    drawn = []
    for task in TASKS:
        group = collect(config.build(), engine_of(turns=lambda attempt: 3), task=task)
        first = lineage_of(replace(group, members=group.members[:2], branches=group.branches[:1]))
        for round_index in (0, 1):
            (branch,) = tree_branches(
                first, [3, 3], round_index=round_index, config=config, key=(KEY.seed, KEY.update, task.task_id)
            )
            drawn.append((branch.rollout, branch.turn))
        assert (group.branches[1].parent, group.branches[1].turn) == drawn[-1]
    assert drawn[::2] != drawn[1::2]  # else the rounds could not be told apart


@pytest.mark.parametrize(
    ("trees", "nodes", "rounds", "rollouts"), [(2, 2, 1, 6), (1, 1, 4, 5), (3, 0, 2, 3), (2, 3, 0, 2)]
)
def test_the_shape_says_how_many_rollouts_there_are(trees, nodes, rounds, rollouts):
    config = TreeGRPOConfig(trees=trees, nodes=nodes, rounds=rounds, leaves=1)
    group = collect(config.build(), engine_of())
    assert len(group.members) == config.group_size == rollouts
    assert len(group.branches) == rollouts - trees


# failures


def test_a_trunk_that_failed_before_its_first_turn_is_not_gone_on_from():
    method = tree_grpo()
    group = collect(method, engine_of(fails={(0, 0)}, wins={1}))
    assert roots(group) == [0, 1, 1, 1]
    assert failures(group) == ["engine_error", None, None, None]
    assert method.advantages(group)[0] is None
    # The failed one moves nothing: 1 of 3 within its tree and over all.
    assert method.advantages(group)[1:] == pytest.approx([2 * 2**0.5, -(2**0.5), -(2**0.5)], rel=1e-5)


def test_a_trunk_that_failed_on_its_way_is_gone_on_from_where_it_was():
    group = collect(tree_grpo(), engine_of(fails={(0, 1)}))
    # Its start is the only node left: it is taken again.
    assert [(parent, turn) for parent, turn, _ in branches(group)][:2] == [(0, 0), (0, 0)]
    assert failures(group) == ["engine_error"] + [None] * 5


def test_where_every_rollout_fails_there_is_nothing_to_grow():
    method = tree_grpo()
    group = collect(method, engine_of(fails={(attempt, 0) for attempt in range(6)}))
    assert (len(group.members), group.branches) == (2, ())
    assert method.advantages(group) == [None, None]


# advantages, worked by hand: the trees are 0, 2, 3 and 1, 4, 5; of the first 0 succeeds, of the second 1 and 4.


def test_advantages_are_those_within_the_tree_and_those_between_trees():
    method = tree_grpo()
    group = collect(method, engine_of(wins={0, 1, 4}))
    assert group.rewards == [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    # Within: sqrt(2), -1/sqrt(2), -1/sqrt(2) and 1/sqrt(2), -sqrt(2), 1/sqrt(2); over all six 1 or -1.
    high, low = 2**0.5, 2**-0.5
    expected = [high + 1, low + 1, -low - 1, -low - 1, low + 1, -high - 1]
    assert method.advantages(group) == pytest.approx(expected, rel=1e-4)


def test_advantages_go_with_their_members():
    method = tree_grpo()
    group = collect(method, engine_of(wins={0, 1, 4}))
    order = [1, 0, 4, 5, 2, 3]  # the other tree first
    swapped = replace(
        group,
        members=tuple(group.members[member] for member in order),
        branches=tuple(
            replace(record, parent=order.index(record.parent), rollouts=tuple(map(order.index, record.rollouts)))
            for record in group.branches
        ),
    )
    advantages = method.advantages(group)
    assert method.advantages(swapped) == [advantages[member] for member in order]


def test_leaves_that_are_not_trained_on_have_no_advantage_and_move_none():
    method = tree_grpo(leaves=2)
    left_out = set()
    for task in TASKS:
        group = collect(method, engine_of(wins={0, 1, 4}), task=task)
        advantages = method.advantages(group)
        trained = [member for member, value in enumerate(advantages) if value is not None]
        trees = [roots(group)[member] for member in trained]
        assert sorted(trees) == [0, 0, 1, 1]
        assert [advantages[member] for member in trained] == tree_advantages(
            [group.rewards[member] for member in trained], trees
        )
        assert method.advantages(group) == advantages
        left_out.add(frozenset(range(6)) - frozenset(trained))
    assert len(left_out) > 1  # drawn for each task


def test_equal_rewards_give_exactly_nothing():
    method = tree_grpo()
    for wins in (set(), set(range(6))):
        assert method.advantages(collect(method, engine_of(wins=wins))) == [0.0] * 6


def test_the_sample_deviation_can_be_asked_for():
    method = tree_grpo(trees=1, std_ddof=1)
    group = collect(method, engine_of(wins={0}))
    # 2/3 over sqrt(1/3), twice: the tree is all there is.
    assert method.advantages(group)[0] == pytest.approx(2 * (2 / 3) * 3**0.5, rel=1e-5)


# keys and order


def test_a_key_draws_its_group_again_and_the_order_of_tasks_does_not_matter():
    def grown(tasks):
        groups = collect_all(tree_grpo(nodes=1, rounds=2), engine_of(turns=lambda attempt: 3), tasks)
        return {group.task_id: (group.members, group.branches) for group in groups}

    found = grown(TASKS)
    assert found == grown(TASKS[::-1])
    assert len({tuple((r.parent, r.turn) for r in records) for _, records in found.values()}) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"leaves": 4}, r"leaves must be at most 1 \+ nodes \* rounds = 3: got 4"),
        ({"trees": 0}, "trees\n.*greater than or equal to 1"),
        ({"rollout_budget": 6}, "rollout_budget\n.*Extra inputs"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_was_expected(settings, message):
    with pytest.raises(ValidationError, match=message):
        tree_grpo(**settings)
