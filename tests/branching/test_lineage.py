import pytest

from midcourse.branching.lineage import Lineage

# 0 and 4 begin at the start; 1 goes on from 0 before turn 2, 2 from 1 before turn 3, 3 from 0 before turn 2.
FAMILY = Lineage((None, 0, 1, 0, None), (0, 2, 3, 2, 0))


def test_a_turn_before_the_fork_was_written_by_the_ancestor_that_wrote_it():
    assert [FAMILY.writer(2, turn) for turn in range(5)] == [0, 0, 1, 2, 2]
    assert [FAMILY.writer(3, turn) for turn in range(4)] == [0, 0, 3, 3]
    assert [FAMILY.writer(0, turn) for turn in range(3)] == [0, 0, 0]


def test_the_boundary_at_the_fork_is_the_parents():
    assert [FAMILY.boundary_writer(2, turn) for turn in range(6)] == [0, 0, 0, 1, 2, 2]


def test_a_member_that_began_in_what_its_parent_inherited_goes_back_to_who_wrote_it():
    family = Lineage((None, 0, 1), (0, 3, 1))
    assert [family.writer(2, turn) for turn in range(3)] == [0, 2, 2]
    assert family.boundary_writer(2, 1) == 0
    assert family.is_branched(0, 1)


def test_every_member_belongs_to_the_tree_of_its_root():
    assert [FAMILY.root(member) for member in range(5)] == [0, 0, 0, 0, 4]


def test_a_boundary_is_branched_for_all_who_meet_there_and_for_nobody_else():
    assert [FAMILY.is_branched(member, 2) for member in range(5)] == [True, True, True, True, False]
    assert [FAMILY.is_branched(member, 3) for member in range(5)] == [False, True, True, False, False]


def test_branches_in_a_row_are_counted_up_to_the_boundary_before():
    assert [FAMILY.consecutive_branches(2, turn) for turn in range(6)] == [0, 0, 0, 1, 2, 0]
    assert FAMILY.consecutive_branches(0, 3) == 1
    assert FAMILY.consecutive_branches(0, 4) == 0
    assert FAMILY.consecutive_branches(4, 3) == 0


@pytest.mark.parametrize(
    ("parents", "forks"),
    [((None,), ()), ((0,), (0,)), ((None, 2, None), (0, 1, 0)), ((None, 0), (0, -1)), ((None,), (1,))],
)
def test_what_is_no_lineage_is_refused(parents, forks):
    with pytest.raises(ValueError, match=r"member"):
        Lineage(parents, forks)
