"""Groups with advantages -> rows to train on -> micro-batches of bounded size. Letters: T tokens of one row."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from midcourse.training.prefix_tree import PrefixTree, grow_tree
from midcourse.types import TRAINED_SOURCES, Group, TokenSource, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory with what the objective multiplies its tokens by."""

    trajectory: Trajectory
    advantage: float
    coefficient: float = 0.0  # 1/denominator of the aggregation, set for the optimizer step that the row is part of

    @property
    def trained(self) -> list[bool]:
        """[T] whether policy or intervention wrote the token."""
        return [source in TRAINED_SOURCES for source in self.trajectory.sources]

    @property
    def sampled(self) -> list[bool]:
        """[T] whether the policy wrote the token."""
        return [source is TokenSource.POLICY for source in self.trajectory.sources]

    @property
    def num_trained_tokens(self) -> int:
        """Tokens that carry loss."""
        return sum(self.trained)

    @property
    def has_signal(self) -> bool:
        """Whether the objective can move anything by this row."""
        is_judged = self.advantage != 0.0 or self.trajectory.teacher_logprobs is not None
        return is_judged and self.num_trained_tokens > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What an update trains on, group by group, and how much it leaves out."""

    groups: Sequence[Sequence[Row]]  # only groups with signal
    groups_without_signal: int
    members_failed: int  # without advantage, since their rollout failed
    members_left_out: int  # without advantage, though they have a reward: no teacher scored them, or they were filtered


def build_batch(groups: Sequence[Group], advantages: Sequence[Sequence[float | None]]) -> Batch:
    """Return the rows that train. Members without advantage and groups without signal are left out.

    A group has signal where an advantage is not 0, or where a teacher scored the tokens: then the objective adds an
    advantage of each token's own. That rewards without spread give exactly nothing holds where no teacher has a say.

    Args:
        groups: as collected.
        advantages: for each group one advantage a member, None where it takes no part.

    Raises:
        ValueError: not one advantage for each member of each group, or one that is not finite.
    """
    if len(groups) != len(advantages):
        raise ValueError(f"each group needs its advantages: got {len(groups)} groups and {len(advantages)} lists")
    kept, without_signal, failed, left_out = [], 0, 0, 0
    for group, values in zip(groups, advantages, strict=True):
        if len(values) != len(group.members):
            raise ValueError(
                f"group {group.group_id!r} must have one advantage a member: got {len(values)}, "
                f"expected {len(group.members)}"
            )
        rows = [
            Row(trajectory=member.trajectory, advantage=value)
            for member, value in zip(group.members, values, strict=True)
            if value is not None
        ]
        absent = [member for member, value in zip(group.members, values, strict=True) if value is None]
        num_failed = sum(member.trajectory.failure is not None for member in absent)
        failed += num_failed
        left_out += len(absent) - num_failed
        if any(row.advantage - row.advantage != 0.0 for row in rows):
            raise ValueError(f"group {group.group_id!r}: advantages must be finite: got {list(values)}")
        if any(row.has_signal for row in rows):
            kept.append(rows)
        else:
            without_signal += 1
    return Batch(groups=kept, groups_without_signal=without_signal, members_failed=failed, members_left_out=left_out)


def split_groups(groups: Sequence[Sequence[Row]], num_minibatches: int) -> list[Sequence[Sequence[Row]]]:
    """Return at most `num_minibatches` runs of whole groups, sizes differing by one at most, none empty."""
    count = min(num_minibatches, len(groups))
    edges = [index * len(groups) // count for index in range(count + 1)] if count else []
    return [groups[start:end] for start, end in itertools.pairwise(edges)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows of one forward and backward pass."""

    rows: Sequence[Row]
    tree: PrefixTree | None = None  # of these rows, in this order; None: they are computed apart
    is_filler: bool = False  # computed because the other processes compute, with coefficients 0; in no sum

    @property
    def computed_tokens(self) -> int:
        """Tokens that the model runs on, padding included."""
        if self.tree is not None:
            return self.tree.num_tokens
        return len(self.rows) * max(len(row.trajectory.token_ids) for row in self.rows)


def micro_batches(rows: Sequence[Row], *, max_tokens: int, shares_prefixes: bool = False) -> list[MicroBatch]:
    """Return the rows in micro-batches of at most `max_tokens` computed tokens each, padding included.

    With `shares_prefixes` rows that begin alike come first, in the order of their tokens, where computing what they
    share once pays (`PrefixTree.pays`); of these a shared token counts once. The others, or all: longest first, so
    that rows of like length share a micro-batch and the largest one fails first, if any does; rows of one length stay
    in order. A row over the budget is alone. A row without trained tokens is left out: it counts in the denominators
    already.
    """
    trained = [row for row in rows if row.num_trained_tokens]
    shared = _packed(trained, max_tokens) if shares_prefixes and trained else []
    packed = {id(row) for batch in shared for row in batch.rows}
    return shared + _padded([row for row in trained if id(row) not in packed], max_tokens)


def share_of(batches: Sequence[MicroBatch], *, rank: int, size: int) -> list[MicroBatch]:
    """Return the micro-batches of process `rank` out of `size`; as many for each, since each waits for the others.

    The largest come first and those of like size at the same time. Where they do not come out even, the last
    processes compute the smallest once more, as a filler: its coefficients are 0.
    """
    ordered = sorted(batches, key=lambda batch: -batch.computed_tokens)
    if missing := -len(ordered) % size:
        rows = [replace(row, coefficient=0.0) for row in ordered[-1].rows]
        ordered += [replace(ordered[-1], rows=rows, is_filler=True)] * missing
    return ordered[rank::size]


def _padded(rows: Sequence[Row], max_tokens: int) -> list[MicroBatch]:
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: -len(row.trajectory.token_ids)):
        # The first row of a micro-batch is its longest.
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0].trajectory.token_ids) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [MicroBatch(rows=batch) for batch in batches]


def _packed(rows: Sequence[Row], max_tokens: int) -> list[MicroBatch]:
    """Return micro-batches of rows that begin alike; rows where sharing does not pay are in none of them.

    A family that no micro-batch can hold is cut in the order of tokens, so that neighbours in the tree stay together;
    each part computes the beginning of all again.
    """
    runs: list[list[Row]] = []

    def fits(*added: Row) -> bool:
        return bool(runs) and _tree_of([*runs[-1], *added]).num_tokens <= max_tokens

    for family in _tree_of(rows).families:
        members = [rows[index] for index in family]
        if len(members) == 1:
            continue
        if not fits(*members):
            runs.append([])
        for row in members:
            if runs[-1] and not fits(row):
                runs.append([])
            runs[-1].append(row)
    batches = [(run, _tree_of(run)) for run in runs]
    return [MicroBatch(rows=run, tree=tree) for run, tree in batches if tree.pays]


def _tree_of(rows: Sequence[Row]) -> PrefixTree:
    return grow_tree([row.trajectory.token_ids for row in rows])
