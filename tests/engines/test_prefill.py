import random

import pytest
import torch

from midcourse.engines.forward import RowBuffer
from midcourse.engines.prefill import Filled, Prefill, common_length, passes
from midcourse.engines.prefix_cache import PrefixCache

PADDING = -7


class StoringPrefill(Prefill):
    """Stores what it fills, as its callers do."""

    def fill(self, first_row, sequences, states_from):
        filled = super().fill(first_row, sequences, states_from)
        for row, item in enumerate(filled, start=first_row):
            self._cache.store(sequences[item.index], self._buffer, row, states_from=states_from[item.index])
        return filled


class NamingForward:
    """Writes at every slot which prefix ends there, as told by the slot before it; counts how often each is run."""

    def __init__(self) -> None:
        self.runs: dict[float, int] = {}
        self.shapes: list[tuple[int, int]] = []

    def __call__(self, buffer, token_ids_RT, slots_RT, num_slots, *, wanted_R=None):
        names = buffer.keys_values[0, 0, :, 0, :, 0]
        states = torch.zeros((*token_ids_RT.shape, 1), dtype=torch.float64)
        for row, (tokens, slots) in enumerate(zip(token_ids_RT.tolist(), slots_RT.tolist(), strict=True)):
            for place, (token, slot) in enumerate(zip(tokens, slots, strict=True)):
                assert slot < num_slots
                before = names[row, slot - 1].item() if slot else 0.0
                names[row, slot] = states[row, place, 0] = float(hash((before, token)) % (1 << 50))
                if token != PADDING:
                    self.runs[names[row, slot].item()] = self.runs.get(names[row, slot].item(), 0) + 1
        self.shapes.append(tuple(token_ids_RT.shape))
        return states if wanted_R is None else states[torch.arange(len(states)), wanted_R][:, None]


def names_of(tokens):
    names = [0.0]
    for token in tokens:
        names.append(float(hash((names[-1], token)) % (1 << 50)))
    return names[1:]


def make(capacity: int):
    buffer = RowBuffer(
        num_layers=1, num_heads=1, head_size=1, hidden_size=1, dtype=torch.float64, device=torch.device("cpu")
    )
    buffer.reserve(12, 64)
    forward = NamingForward()
    return StoringPrefill(forward, buffer, PrefixCache(capacity_tokens=capacity), pad_token_id=PADDING), forward, buffer


def check(buffer, filled, sequences, states_from, first_row=0):
    for row, item in enumerate(filled, start=first_row):
        names, start = names_of(sequences[item.index]), states_from[item.index]
        assert buffer.keys_values[0, 0, row, 0, : len(names), 0].tolist() == names
        assert buffer.states[row, start : len(names), 0].tolist() == names[start:]


def test_common_length():
    assert [common_length(one, other) for one, other in (("abc", "abd"), ("ab", "abc"), ("", "a"), ("a", "b"))] == [
        2,
        2,
        0,
        0,
    ]


def test_those_that_begin_alike_wait_for_the_one_that_computes_their_beginning():
    sequences = [(1, 2, 3, 4), (9,), (1, 2, 5), (1, 2, 3, 4), (1, 2, 5, 6)]
    assert list(passes(sequences, [0] * 5)) == [
        [Filled(index=0, known=0), Filled(index=1, known=0)],
        [Filled(index=2, known=2, source=0), Filled(index=3, known=4, source=0)],
        [Filled(index=4, known=3, source=2)],
    ]


def test_nobody_waits_for_what_it_knows():
    sequences = [(1, 2, 3, 4), (1, 2, 3, 5)]
    assert [len(part) for part in passes(sequences, [3, 3])] == [2]
    assert [len(part) for part in passes(sequences, [2, 2])] == [1, 1]


def test_a_row_that_lacks_the_same_states_is_not_waited_for():
    # The first was scored behind its third token and knows it; the second asks for states from the first token on.
    assert [len(part) for part in passes([(1, 2, 3, 4), (1, 2, 3, 5)], [3, 0])] == [2]


def draw(dice: random.Random) -> list[tuple[int, ...]]:
    return [tuple(dice.randrange(2) for _ in range(dice.randrange(1, 14))) for _ in range(10)]


@pytest.mark.parametrize("capacity", [0, 40])
@pytest.mark.parametrize("seed", range(3))
def test_one_call_runs_nothing_twice_however_little_the_cache_holds(capacity, seed):
    prefill, forward, buffer = make(capacity)
    dice = random.Random(seed)
    for _ in range(6):
        sequences = draw(dice)
        states_from = [len(sequence) - 1 for sequence in sequences]
        forward.runs.clear()
        check(buffer, prefill.fill(2, sequences, states_from), sequences, states_from, first_row=2)
        assert set(forward.runs.values()) <= {1}


@pytest.mark.parametrize("seed", range(3))
def test_a_token_is_run_again_only_for_a_state_that_was_left_out(seed):
    prefill, forward, buffer = make(10_000)
    dice = random.Random(seed)
    for _ in range(6):
        sequences = draw(dice)
        states_from = [len(sequence) - 1 for sequence in sequences]
        before = dict(forward.runs)
        check(buffer, prefill.fill(0, sequences, states_from), sequences, states_from)
        again = {name for name, count in forward.runs.items() if count > before.get(name, count)}
        assert again <= {names_of(sequence)[-1] for sequence in sequences}


@pytest.mark.parametrize("seed", range(3))
def test_where_all_states_are_wanted_every_prefix_is_run_once(seed):
    prefill, forward, buffer = make(10_000)
    dice = random.Random(seed)
    asked = set()
    for _ in range(6):
        sequences = draw(dice)
        asked |= {name for sequence in sequences for name in names_of(sequence)}
        filled = prefill.fill(1, sequences, [0] * 10)
        check(buffer, filled, sequences, [0] * 10, first_row=1)
        assert set(forward.runs.values()) == {1}
        assert set(forward.runs) == asked


def test_rows_of_like_lengths_share_a_step_and_steps_are_bounded(monkeypatch):
    prefill, forward, _ = make(0)
    sequences = [(token,) * length for token, length in enumerate((40, 3, 30, 2, 22, 4))]
    prefill.fill(0, sequences, [len(sequence) - 1 for sequence in sequences])
    assert forward.shapes == [(3, 40), (2, 4), (1, 2)]
    monkeypatch.setattr("midcourse.engines.prefill.PREFILL_TOKENS", 80)
    forward.shapes.clear()
    prefill.fill(0, sequences, [len(sequence) - 1 for sequence in sequences])
    assert forward.shapes == [(2, 40), (1, 22), (2, 4), (1, 2)]
