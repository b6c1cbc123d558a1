import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.advantages.group import group_advantages
from midcourse.advantages.tree import tree_advantages

MEMBERS = st.lists(st.tuples(st.none() | st.floats(-10, 10), st.integers(0, 3)), min_size=1, max_size=12)


def test_within_and_between_trees_add_up():
    # Tree a: mean 1/2, deviation 1/2. Tree b: all equal. All: mean 3/4, deviation sqrt(3)/4.
    found = tree_advantages([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"], epsilon=0.0)
    high, low = (1 / 4) / (3**0.5 / 4), (-3 / 4) / (3**0.5 / 4)
    assert found == pytest.approx([1 + high, -1 + low, high, high], rel=1e-14)


def test_the_sample_deviation_is_the_codes():
    found = tree_advantages([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], std_ddof=1, epsilon=0.0)
    # Within tree 0: deviation sqrt(1/2); all: sqrt(3/4 / 3) = 1/2.
    assert found == pytest.approx([0.5**0.5 + 0.5, -(0.5**0.5) - 1.5, 0.5, 0.5], rel=1e-14)


def test_one_tree_alone_counts_twice_and_trees_of_one_member_once():
    rewards = [1.0, 0.0, 0.0]
    once = group_advantages(rewards)
    assert tree_advantages(rewards, [0, 0, 0]) == [2 * value for value in once]
    assert tree_advantages(rewards, [0, 1, 2]) == once


def test_equal_rewards_give_exactly_zero():
    assert tree_advantages([0.1] * 5, [0, 0, 1, 1, 2]) == [0.0] * 5


def test_an_unscored_member_stays_out_of_its_tree_and_of_all():
    found = tree_advantages([None, 1.0, 0.0], [0, 0, 1])
    assert found == [None, *tree_advantages([1.0, 0.0], [0, 1])]


@given(MEMBERS, st.randoms(use_true_random=False))
def test_permuting_members_permutes_their_advantages_bit_for_bit(members, random):
    order = list(range(len(members)))
    random.shuffle(order)
    rewards, trees = [one for one, _ in members], [tree for _, tree in members]
    found = tree_advantages(rewards, trees)
    permuted = tree_advantages([rewards[place] for place in order], [trees[place] for place in order])
    assert permuted == [found[place] for place in order]


def test_each_member_needs_its_tree():
    with pytest.raises(ValueError, match="its tree"):
        tree_advantages([1.0], [])
