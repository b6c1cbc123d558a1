from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midcourse.branching.lineage import Lineage
from midcourse.branching.rivals.branches import Branch
from midcourse.branching.rivals.tree import TreeRolloutConfig, trained_leaves, tree_branches, tree_nodes

KEY = (0, 1, "task")


def test_the_defaults_are_the_scripts_six_rollouts():
    assert TreeRolloutConfig().rollout_budget == 6
    assert TreeRolloutConfig(trees=4, nodes=3, rounds=2, leaves=7).rollout_budget == 28


def test_nodes_are_the_start_and_every_turn_boundary_of_the_tree_once():
    # Rollout 2 goes on from rollout 0 before turn 1 and wrote turns 1 and 2: boundary 2 is its own, 0 and 1 are not.
    lineage, num_turns = Lineage((None, None, 0), (0, 0, 1)), [2, 3, 3]
    assert tree_nodes(lineage, num_turns, 0) == [(0, 0), (0, 1), (2, 2)]
    assert tree_nodes(lineage, num_turns, 1) == [(1, 0), (1, 1), (1, 2)]


def test_a_tree_whose_trunk_wrote_nothing_grows_from_the_start():
    found = tree_branches(Lineage((None,), (0,)), [0], round_index=0, config=TreeRolloutConfig(), key=KEY)
    assert found == [Branch(rollout=0, turn=0)] * 2


def test_each_tree_is_expanded_at_different_nodes_while_there_are_enough():
    lineage = Lineage((None, None), (0, 0))
    config = TreeRolloutConfig(nodes=3, leaves=4)
    found = tree_branches(lineage, [3, 2], round_index=0, config=config, key=KEY)
    assert sorted((branch.rollout, branch.turn) for branch in found[:3]) == [(0, 0), (0, 1), (0, 2)]
    assert [branch.rollout for branch in found[3:]] == [1, 1, 1]
    assert sorted(Counter(branch.turn for branch in found[3:]).values()) == [1, 2]


def test_nodes_are_chosen_uniformly():
    lineage, config = Lineage((None,), (0,)), TreeRolloutConfig(trees=1, nodes=1, leaves=2)
    turns = Counter(
        tree_branches(lineage, [4], round_index=0, config=config, key=(seed,))[0].turn for seed in range(2000)
    )
    assert sorted(turns) == [0, 1, 2, 3]
    assert all(abs(count - 500) < 3 * 19.4 for count in turns.values())  # deviation sqrt(2000 * 3/16)


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.lists(st.integers(0, 6), min_size=60, max_size=60))
def test_a_grown_forest_has_the_size_of_its_shape(trees, nodes, rounds, lengths):
    config = TreeRolloutConfig(trees=trees, nodes=nodes, rounds=rounds, leaves=1 + nodes * rounds)
    parents, forks, num_turns = [None] * trees, [0] * trees, lengths[:trees]
    for round_index in range(rounds):
        lineage = Lineage(tuple(parents), tuple(forks))
        branches = tree_branches(lineage, num_turns, round_index=round_index, config=config, key=KEY)
        assert branches == tree_branches(lineage, num_turns, round_index=round_index, config=config, key=KEY)
        for branch in branches:
            assert branch.turn < max(num_turns[branch.rollout], 1)
            num_turns.append(branch.turn + lengths[len(parents)])
            parents.append(branch.rollout)
            forks.append(branch.turn)
    lineage = Lineage(tuple(parents), tuple(forks))
    assert len(parents) == config.rollout_budget
    assert Counter(lineage.root(member) for member in range(len(parents))) == dict.fromkeys(
        range(trees), 1 + nodes * rounds
    )
    assert trained_leaves(lineage, config=config, key=KEY) == list(range(len(parents)))


def test_fewer_leaves_are_a_keyed_choice_of_each_tree():
    lineage = Lineage((None, None, 0, 0, 1, 1), (0, 0, 1, 0, 1, 0))
    config = TreeRolloutConfig(leaves=2)
    found = {tuple(trained_leaves(lineage, config=config, key=(seed,))) for seed in range(30)}
    assert len(found) == 9  # 3 * 3 choices
    assert all(Counter(lineage.root(member) for member in chosen) == {0: 2, 1: 2} for chosen in found)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValidationError, match=r"leaves must be at most 1 \+ nodes \* rounds = 3: got 4"):
        TreeRolloutConfig(leaves=4)
    with pytest.raises(ValueError, match="number of turns"):
        tree_branches(Lineage((None,), (0,)), [], round_index=0, config=TreeRolloutConfig(), key=KEY)
