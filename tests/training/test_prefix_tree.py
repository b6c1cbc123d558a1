import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.training.prefix_tree import SEGMENT_TOKENS, Segment, grow_tree

TOKENS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8)


def packed(tree):
    return [token for part in tree.segments for token in tree.rows[part.row][part.start : part.end]]


def test_a_shared_beginning_is_one_segment_with_its_branches_behind_it():
    tree = grow_tree([[5, 6, 7], [5, 6, 8, 9]], segment_tokens=0)
    assert tree.segments == [
        Segment(row=0, start=0, end=2, parent=None),
        Segment(row=0, start=2, end=3, parent=0),
        Segment(row=1, start=2, end=4, parent=0),
    ]
    assert tree.slots() == [[0, 1, 2], [0, 1, 3, 4]]
    assert (packed(tree), tree.num_tokens, tree.saved_tokens) == ([5, 6, 7, 8, 9], 5, 2)


def test_branches_of_branches_hang_on_their_branch():
    rows = [[1, 2, 3, 4], [1, 9], [1, 2, 3, 5], [7]]
    tree = grow_tree(rows, segment_tokens=0)
    assert [tree.path(end) for end in tree.ends] == [[0, 1, 2], [0, 4], [0, 1, 3], [5]]
    assert packed(tree) == [1, 2, 3, 4, 5, 9, 7]
    assert tree.families == [[0, 2, 1], [3]]


def test_a_row_that_begins_another_ends_within_its_path():
    tree = grow_tree([[1, 2, 3], [1, 2], [1, 2]], segment_tokens=0)
    assert (tree.ends, packed(tree)) == ([1, 0, 0], [1, 2, 3])
    assert tree.slots() == [[0, 1, 2], [0, 1], [0, 1]]


def test_a_stretch_is_shared_only_where_that_saves_more_than_a_segment_costs():
    pair = [[1, 2, 3, 4], [1, 2, 3, 5]]
    assert grow_tree(pair, segment_tokens=2).num_tokens == 5  # 3 saved
    assert grow_tree(pair, segment_tokens=3).num_tokens == 8
    assert grow_tree([*pair, [1, 2, 3, 6]], segment_tokens=3).num_tokens == 6  # 2 * 3 saved


def test_a_stretch_that_is_too_short_is_shared_together_with_what_follows():
    # Three rows share 1 token (2 saved); two of them 3 more. The third computes the first token again.
    tree = grow_tree([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 9]], segment_tokens=2)
    assert packed(tree) == [1, 2, 3, 4, 5, 6, 1, 9]
    assert tree.families == [[0, 1], [2]]


def test_sharing_pays_by_what_it_saves_for_a_segment():
    # k rows with one token of their own behind n shared ones: k + 1 segments, (k - 1) * n saved.
    limit = 3 * SEGMENT_TOKENS
    assert not grow_tree([[*[1] * limit, 2], [*[1] * limit, 3]]).pays
    assert grow_tree([[*[1] * (limit + 1), 2], [*[1] * (limit + 1), 3]]).pays
    assert not grow_tree([[1], [2]]).pays


@given(TOKENS, st.integers(0, 4))
def test_every_row_reads_its_own_tokens_from_its_path(rows, segment_tokens):
    tree = grow_tree(rows, segment_tokens=segment_tokens)
    tokens = packed(tree)
    positions = [position for part in tree.segments for position in range(part.start, part.end)]
    for row, slots in zip(rows, tree.slots(), strict=True):
        assert [tokens[slot] for slot in slots] == row
        assert [positions[slot] for slot in slots] == list(range(len(row)))
    for index, part in enumerate(tree.segments):
        assert part.end > part.start
        assert part.parent is None or part.parent < index
    assert sorted(row for family in tree.families for row in family) == list(range(len(rows)))


@given(TOKENS)
def test_without_a_price_no_beginning_is_computed_twice(rows):
    beginnings = {tuple(row[: end + 1]) for row in rows for end in range(len(row))}
    assert grow_tree(rows, segment_tokens=0).num_tokens == len(beginnings)


def test_a_comb_of_many_rows_is_laid_out():
    rows = [[1] * length + [2] for length in range(1, 1200)]
    tree = grow_tree(rows, segment_tokens=0)
    assert tree.num_tokens == 1199 + 1199
    assert len(tree.path(tree.ends[-1])) == pytest.approx(1200, abs=1)
