"""Bring rows of the buffer to the ends of token sequences: what was computed before is copied, the rest is computed.

Letters: R rows, T new tokens a row, H hidden.

Known is what the cache holds and what another row of the same call holds: of sequences that begin alike, one computes
the beginning and the others wait for it. So no token's keys and values are computed twice while they are held, and a
state, which predicts the next token, is computed again only where it was left out before: a sampled prompt's last layer
runs for its last token alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from midcourse.engines.forward import Forward, RowBuffer
from midcourse.engines.prefix_cache import PrefixCache

PREFILL_TOKENS = 4096  # padded tokens of one forward step


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What a row was filled from. `known` of its tokens were copied."""

    index: int  # of the sequence
    known: int
    source: int | None = None  # the sequence whose row they came from; None: from the cache


class Prefill:
    """Fills rows of one buffer. Inference mode is the caller's, and so is storing what the rows hold."""

    def __init__(self, forward: Forward, buffer: RowBuffer, cache: PrefixCache, *, pad_token_id: int) -> None:
        self._forward = forward
        self._buffer = buffer
        self._cache = cache
        self._pad_token_id = pad_token_id

    def fill(self, first_row: int, sequences: Sequence[Sequence[int]], states_from: Sequence[int]) -> list[Filled]:
        """Fill a row with each sequence, from row `first_row` on; return which row got what.

        Args:
            first_row: rows before it are left alone.
            sequences: [R] token ids, at least one each.
            states_from: [R] of each sequence the first token whose state is wanted; so are those behind it.
        """
        found = [self._cache.find(ids, states_from=at) for ids, at in zip(sequences, states_from, strict=True)]
        filled: list[Filled] = []
        rows: dict[int, int] = {}  # sequence -> row
        for part in passes(sequences, [len(slots) for slots in found]):
            begin = first_row + len(filled)
            for row, item in enumerate(part, start=begin):
                rows[item.index] = row
                if item.source is None:
                    self._cache.load(found[item.index], self._buffer, row)
                else:
                    self._buffer.copy_row(rows[item.source], row, item.known)
            self._compute(begin, part, sequences, states_from)
            filled += part
        return filled

    def _compute(
        self, first_row: int, part: Sequence[Filled], sequences: Sequence[Sequence[int]], states_from: Sequence[int]
    ) -> None:
        """Compute what is not known of a pass, rows of like lengths together; those with the most tokens come first."""
        counts = [len(sequences[item.index]) - item.known for item in part]
        start = 0
        while start < len(part) and counts[start]:
            stop, width = start + 1, counts[start]
            while stop < len(part) and 2 * counts[stop] > width and (stop + 1 - start) * width <= PREFILL_TOKENS:
                stop += 1
            step = part[start:stop]
            self._run(
                self._buffer.window(first_row + start),
                [sequences[item.index][item.known :] for item in step],
                [item.known for item in step],
                wants_last=all(states_from[item.index] >= len(sequences[item.index]) - 1 for item in step),
            )
            start = stop

    def _run(
        self, buffer: RowBuffer, new_ids: Sequence[Sequence[int]], lengths: Sequence[int], *, wants_last: bool
    ) -> None:
        """Append tokens to rows that hold `lengths` tokens."""
        counts = [len(ids) for ids in new_ids]
        width = max(counts)
        token_ids_RT = torch.full((len(new_ids), width), self._pad_token_id)
        for row, ids in enumerate(new_ids):
            token_ids_RT[row, : len(ids)] = torch.tensor(ids)
        counts_R1 = torch.tensor(counts)[:, None]
        # Padding writes to the slot after the row's last, which nobody sees before it is written again.
        slots_RT = torch.tensor(lengths)[:, None] + torch.arange(width).minimum(counts_R1)
        num_slots = int(slots_RT.max()) + 1
        slots_RT = slots_RT.to(buffer.device)
        wanted_R = counts_R1[:, 0].to(buffer.device) - 1 if wants_last else None
        states = self._forward(buffer, token_ids_RT.to(buffer.device), slots_RT, num_slots, wanted_R=wanted_R)
        buffer.put_states(slots_RT if wanted_R is None else slots_RT.gather(1, wanted_R[:, None]), states)


def passes(sequences: Sequence[Sequence[int]], known: Sequence[int]) -> Iterator[list[Filled]]:
    """Yield which sequences are computed together, one after another; within a pass those with the most tokens first.

    A sequence waits for the one before it, in the order of their tokens, if it shares more with it than it knows.

    Args:
        sequences: [R] token ids.
        known: [R] tokens of each that are known at the start.
    """
    order = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    waiting = [Filled(index=index, known=known[index]) for index in order]
    while waiting:
        chosen: list[Filled] = []
        later: list[Filled] = []
        for item in waiting:
            # Of all before it, the last one has most in common with it. A row that itself begins with more that was
            # known brings nothing: what this one lacks of that is states, and they are missing there, too.
            before = chosen[-1] if chosen and chosen[-1].known <= item.known else None
            shared = 0 if before is None else common_length(sequences[item.index], sequences[before.index])
            if before is not None and shared > item.known:
                later.append(Filled(index=item.index, known=shared, source=before.index))
            else:
                chosen.append(item)
        yield sorted(chosen, key=lambda item: item.known - len(sequences[item.index]))
        waiting = later


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two sequences share from the start."""
    differing = (place for place, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differing, min(len(first), len(second)))
