import pytest

from midcourse.advantages.attributed import Segment, attributed_advantages, spread
from midcourse.advantages.group import group_advantages
from midcourse.branching.lineage import Lineage

# 1 goes on from 0 at position 2, 2 from 1 at position 3; 3 is another root.
LINEAGE = Lineage((None, 0, 1, None), (0, 2, 3, 0))


def test_shared_tokens_have_the_mean_advantage_of_the_rollouts_through_them():
    found = attributed_advantages([3.0, 0.0, -1.5, 2.0], LINEAGE)
    # Positions 0 and 1 are of 0, 1 and 2: 1.5 / 3. Position 2 of 1 and 2: -0.75; from 3 on each its own.
    assert [spread(segments, 5) for segments in found] == [
        [0.5, 0.5, 3.0, 3.0, 3.0],
        [0.5, 0.5, -0.75, 0.0, 0.0],
        [0.5, 0.5, -0.75, -1.5, -1.5],
        [2.0] * 5,
    ]
    assert found[2] == [Segment(0, 0.5), Segment(2, -0.75), Segment(3, -1.5)]


def test_a_rollout_shorter_than_the_forks_of_others_has_what_it_has():
    found = attributed_advantages([3.0, 0.0, -1.5, 2.0], LINEAGE)
    assert spread(found[3], 1) == [2.0]
    assert spread(found[0], 2) == [0.5, 0.5]
    assert spread(found[0], 0) == []


def test_without_branches_every_token_has_its_rollouts_advantage():
    advantages = [0.1, -0.7, 0.6]
    found = attributed_advantages(advantages, Lineage((None,) * 3, (0,) * 3))
    assert [spread(segments, 3) for segments in found] == [[value] * 3 for value in advantages]


def test_an_unscored_member_moves_no_mean():
    found = attributed_advantages([None, 1.0, 0.5, None], LINEAGE)
    assert found[0] is None
    assert found[3] is None
    assert spread(found[1], 4) == [0.75, 0.75, 0.75, 1.0]


def test_the_copies_of_a_token_add_up_to_what_soft_attribution_gives():
    advantages = [3.0, 0.0, -1.5, 2.0]
    hard = [spread(segments, 5) for segments in attributed_advantages(advantages, LINEAGE)]
    for position in range(5):
        for writer in {LINEAGE.writer(member, position) for member in range(4)}:
            copies = [member for member in range(4) if LINEAGE.writer(member, position) == writer]
            assert sum(hard[member][position] for member in copies) == sum(advantages[member] for member in copies)


def test_equal_rewards_give_exactly_zero():
    found = attributed_advantages(group_advantages([0.1] * 4), LINEAGE)
    assert [spread(segments, 4) for segments in found] == [[0.0] * 4] * 4


def test_the_order_of_siblings_changes_no_bit():
    lineage = Lineage((None, 0, 0, 0), (0, 1, 1, 1))
    one = attributed_advantages([0.3, 0.1, 0.7, 0.2], lineage)
    two = attributed_advantages([0.3, 0.7, 0.2, 0.1], lineage)
    assert two == [one[0], one[2], one[3], one[1]]


def test_each_member_needs_its_lineage():
    with pytest.raises(ValueError, match="lineage"):
        attributed_advantages([1.0], LINEAGE)
