"""Which tokens of some rows are computed, where rows begin alike: each shared beginning once. No tensors here.

Rows are laid into a tree by their token ids. A segment is a run of tokens that the same rows go through; it hangs on
the segment that holds the tokens before it. The segments, one behind the other, are the packed sequence, and a slot is
a place in it. Letters: B rows, T tokens of one row.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

SEGMENT_TOKENS = 16
"""What one more segment costs, in tokens: a call of attention in every layer. Measured: benchmarks/shared_prefix.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens [start, end) of `row`, the same in every row that goes through it, behind those of `parent`."""

    row: int
    start: int
    end: int
    parent: int | None  # None: the tokens are the first of their rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """The segments of some rows, and where each row ends. Example: rows [5, 6, 7] and [5, 6, 8, 9], any gain counted:

    segments [5, 6], [7] and [8, 9], the last two behind the first; 5 slots for 7 tokens; slots [0, 1, 2] and
    [0, 1, 3, 4].
    """

    rows: Sequence[Sequence[int]]  # [B] token ids
    segments: Sequence[Segment]  # a parent before its children
    ends: Sequence[int]  # [B] the segment that a row ends in; a row that begins another one may end within its path

    @property
    def num_tokens(self) -> int:
        """Slots: tokens that are computed."""
        return sum(segment.end - segment.start for segment in self.segments)

    @property
    def saved_tokens(self) -> int:
        """Tokens of the rows that are not computed again."""
        return sum(len(row) for row in self.rows) - self.num_tokens

    @property
    def pays(self) -> bool:
        """Whether sharing saves more than calling attention once a segment costs."""
        return self.saved_tokens > SEGMENT_TOKENS * len(self.segments)

    @property
    def families(self) -> list[list[int]]:
        """Rows that share a first segment, family by family; rows in the order of their tokens."""
        members: dict[int, list[int]] = {}
        for row in sorted(range(len(self.rows)), key=lambda row: tuple(self.rows[row])):
            members.setdefault(self.path(self.ends[row])[0], []).append(row)
        return list(members.values())

    def path(self, index: int) -> list[int]:
        """Return the segments from a root to segment `index`, itself included."""
        steps: list[int] = []
        step: int | None = index
        while step is not None:
            steps.append(step)
            step = self.segments[step].parent
        return steps[::-1]

    def slots(self) -> list[list[int]]:
        """Return [B][T] the slot of each token of each row."""
        lengths = [segment.end - segment.start for segment in self.segments]
        first = [0, *itertools.accumulate(lengths)]
        return [
            [slot for step in self.path(end) for slot in range(first[step], first[step] + lengths[step])]
            for end in self.ends
        ]


def grow_tree(rows: Sequence[Sequence[int]], *, segment_tokens: int = SEGMENT_TOKENS) -> PrefixTree:
    """Return the tree of the rows. A beginning is shared where that saves more than `segment_tokens` tokens.

    k rows that share n tokens beyond those before them save (k - 1) * n. A stretch that saves less is computed for
    each of its rows; what follows in it may be shared again, then together with the stretch.

    Args:
        rows: [B] token ids, at least one each.
        segment_tokens: what a segment costs; 0 shares every token that can be.
    """
    order = sorted(range(len(rows)), key=lambda row: tuple(rows[row]))
    alike = [_common_length(tuple(rows[left]), tuple(rows[right])) for left, right in itertools.pairwise(order)]
    segments: list[Segment] = []
    ends = [-1] * len(rows)
    # Runs [low, high) of `order` whose rows have their tokens before `start` in the segments up to `parent`.
    waiting: list[tuple[int, int, int, int | None]] = [(0, len(order), 0, None)]
    while waiting:
        low, high, start, parent = waiting.pop()
        row, is_alone = order[low], high - low == 1
        stop = len(rows[row]) if is_alone else min(alike[low : high - 1])
        if stop > start and (is_alone or (high - low - 1) * (stop - start) > segment_tokens):
            segments.append(Segment(row=row, start=start, end=stop, parent=parent))
            start, parent = stop, len(segments) - 1
        if is_alone:
            assert parent is not None  # its tokens are in segments now
            ends[row] = parent
            continue
        edges = [low, *(place + 1 for place in range(low, high - 1) if alike[place] == stop), high]
        waiting += [(left, right, start, parent) for left, right in reversed(list(itertools.pairwise(edges)))]
    return PrefixTree(rows=rows, segments=segments, ends=ends)


def _common_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    lengths = range(1, min(len(first), len(second)) + 1)
    # Slices are compared at the speed of C; once they differ, longer ones do.
    return bisect.bisect_left(lengths, True, key=lambda length: first[:length] != second[:length])
