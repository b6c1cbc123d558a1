import random
from collections.abc import Sequence

import pytest
import torch

from midcourse.engines.forward import RowBuffer
from midcourse.engines.prefix_cache import PrefixCache


def make_buffer(rows: int = 4, slots: int = 40) -> RowBuffer:
    buffer = RowBuffer(
        num_layers=2, num_heads=2, head_size=4, hidden_size=3, dtype=torch.float64, device=torch.device("cpu")
    )
    buffer.reserve(rows, slots)
    return buffer


def fill(buffer: RowBuffer, row: int, token_ids: Sequence[int]) -> None:
    """Let every slot of a row say which prefix ends there."""
    for slot in range(len(token_ids)):
        content = hash(tuple(token_ids[: slot + 1])) % (1 << 40)
        buffer.keys_values[:, :, row, :, slot] = content + torch.arange(32).view(2, 2, 2, 4) / 100
        buffer.states[row, slot] = content + torch.arange(3) / 10


def store(cache: PrefixCache, buffer: RowBuffer, token_ids: Sequence[int], *, states_from: int = 0) -> None:
    fill(buffer, 0, token_ids)
    buffer.states[0, :states_from] = -1.0
    cache.store(token_ids, buffer, 0, states_from=states_from)


def found(cache: PrefixCache, buffer: RowBuffer, token_ids: Sequence[int], *, states_from: int = 0) -> int:
    """Return how many tokens are known, having checked that what comes back is theirs."""
    slots = cache.find(token_ids, states_from=states_from)
    buffer.keys_values[:, :, 1], buffer.states[1] = 0.0, 0.0
    cache.load(slots, buffer, 1)
    length = len(slots)
    fill(buffer, 2, token_ids[:length])
    assert torch.equal(buffer.keys_values[:, :, 1, :, :length], buffer.keys_values[:, :, 2, :, :length])
    assert torch.equal(buffer.states[1, states_from:length], buffer.states[2, states_from:length])
    return length


@pytest.mark.parametrize("length", [1, 7, 8, 9, 19])
def test_every_token_that_was_stored_comes_back(length):
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=64)
    tokens = list(range(length))
    store(cache, buffer, tokens)
    assert found(cache, buffer, [*tokens, 99]) == length
    assert cache.num_tokens == length


@pytest.mark.parametrize("cut", range(12))
def test_what_two_sequences_share_is_found_wherever_they_part(cut):
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=64)
    tokens = list(range(12))
    store(cache, buffer, tokens)
    branch = [*tokens[:cut], 77, 78]
    assert found(cache, buffer, branch) == cut
    store(cache, buffer, branch)
    assert (found(cache, buffer, branch), found(cache, buffer, tokens)) == (cut + 2, 12)
    assert cache.num_tokens == 12 + 2  # the shared tokens are held once


def test_a_sequence_that_grows_adds_its_new_tokens_alone():
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=30)
    for length in range(1, 31):
        store(cache, buffer, list(range(length)))
    assert found(cache, buffer, list(range(30))) == cache.num_tokens == 30


def test_a_token_without_its_state_is_known_only_to_who_needs_no_state():
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=64)
    tokens = list(range(10))
    store(cache, buffer, tokens, states_from=6)
    assert found(cache, buffer, tokens, states_from=6) == 10
    assert found(cache, buffer, tokens, states_from=5) == 5
    assert found(cache, buffer, tokens, states_from=20) == 10


def test_a_state_that_comes_later_is_kept():
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=64)
    tokens = list(range(10))
    store(cache, buffer, tokens, states_from=9)
    store(cache, buffer, tokens[:8], states_from=4)
    assert found(cache, buffer, tokens[:8], states_from=4) == 8
    assert found(cache, buffer, tokens, states_from=4) == 8
    assert found(cache, buffer, tokens, states_from=3) == 3


def test_the_least_recently_used_goes_first_from_its_end_on():
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=20)
    first, second, third = ([base + i for i in range(10)] for base in (0, 100, 200))
    store(cache, buffer, first)
    store(cache, buffer, second)
    store(cache, buffer, first)  # used after the second
    store(cache, buffer, third[:3])
    assert [found(cache, buffer, tokens) for tokens in (first, second, third)] == [10, 7, 3]
    assert cache.num_tokens == 20


def test_using_the_beginning_keeps_the_beginning():
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=20)
    first, second = list(range(10)), list(range(100, 110))
    store(cache, buffer, first)
    store(cache, buffer, second)
    store(cache, buffer, first[:4])
    store(cache, buffer, list(range(200, 214)))
    assert [found(cache, buffer, tokens) for tokens in (first, second)] == [4, 2]


def test_a_sequence_longer_than_the_cache_keeps_its_beginning():
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=13)
    store(cache, buffer, list(range(100, 105)))
    store(cache, buffer, list(range(20)), states_from=19)
    assert (found(cache, buffer, list(range(20)), states_from=13), cache.num_tokens) == (13, 13)


def test_what_is_added_to_is_not_dropped_to_make_room():
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=12)
    store(cache, buffer, list(range(8)))
    store(cache, buffer, [20, 21, 22, 23])
    store(cache, buffer, list(range(11)))
    assert (found(cache, buffer, list(range(11))), found(cache, buffer, [20, 21, 22, 23])) == (11, 1)


def test_a_cache_of_no_tokens_keeps_nothing():
    buffer, cache = make_buffer(), PrefixCache(capacity_tokens=0)
    store(cache, buffer, list(range(16)))
    assert found(cache, buffer, list(range(16))) == cache.num_tokens == 0


@pytest.mark.parametrize("capacity", [5, 17, 60])
def test_whatever_is_stored_and_dropped_what_is_found_is_right_and_the_bound_holds(capacity):
    buffer, cache, dice = make_buffer(), PrefixCache(capacity_tokens=capacity), random.Random(capacity)
    for _ in range(300):
        tokens = [dice.randrange(2) for _ in range(dice.randrange(1, 20))]
        if dice.random() < 0.5:
            store(cache, buffer, tokens, states_from=dice.randrange(len(tokens)))
            assert cache.num_tokens <= capacity
            assert found(cache, buffer, tokens, states_from=len(tokens)) == min(len(tokens), capacity)
        else:
            found(cache, buffer, tokens, states_from=dice.randrange(len(tokens)))
