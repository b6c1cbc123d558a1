import torch

from midcourse.engines.forward import KeyValueBuffer
from midcourse.engines.prefix_cache import BLOCK_TOKENS, PrefixCache


def filled_buffer(rows: int = 4, slots: int = 40) -> KeyValueBuffer:
    torch.manual_seed(0)
    buffer = KeyValueBuffer(num_layers=2, num_heads=2, head_size=4, dtype=torch.float32, device=torch.device("cpu"))
    buffer.reserve(rows, slots)
    buffer.tensor.normal_()
    return buffer


def test_what_was_stored_comes_back_up_to_the_last_full_block():
    buffer, cache = filled_buffer(), PrefixCache(capacity_tokens=64)
    tokens = list(range(2 * BLOCK_TOKENS + 3))
    cache.store(tokens, buffer, 0)
    length = cache.restore([*tokens, 99], buffer, 3, limit=len(tokens))
    assert length == 2 * BLOCK_TOKENS
    assert torch.equal(buffer.tensor[:, :, 3, :, :length], buffer.tensor[:, :, 0, :, :length])


def test_only_the_common_prefix_is_found_and_never_more_than_the_limit():
    buffer, cache = filled_buffer(), PrefixCache(capacity_tokens=64)
    tokens = list(range(3 * BLOCK_TOKENS))
    cache.store(tokens, buffer, 0)
    branch = [*tokens[:BLOCK_TOKENS], 77, *tokens[BLOCK_TOKENS + 1 :]]
    assert cache.restore(branch, buffer, 1, limit=len(branch)) == BLOCK_TOKENS
    assert cache.restore(tokens, buffer, 1, limit=len(tokens) - 1) == 2 * BLOCK_TOKENS


def test_the_least_recently_used_prefix_goes_first_and_the_bound_holds():
    buffer, cache = filled_buffer(), PrefixCache(capacity_tokens=4 * BLOCK_TOKENS)
    first, second, third = ([base + i for i in range(2 * BLOCK_TOKENS)] for base in (0, 100, 200))
    cache.store(first, buffer, 0)
    cache.store(second, buffer, 1)
    cache.restore(first, buffer, 3, limit=len(first))
    cache.store(third, buffer, 2)
    assert cache.num_tokens == 4 * BLOCK_TOKENS
    found = [cache.restore(tokens, buffer, 3, limit=len(tokens)) for tokens in (first, second, third)]
    assert found == [2 * BLOCK_TOKENS, 0, 2 * BLOCK_TOKENS]


def test_a_sequence_longer_than_the_cache_keeps_its_beginning():
    buffer, cache = filled_buffer(), PrefixCache(capacity_tokens=2 * BLOCK_TOKENS)
    tokens = list(range(4 * BLOCK_TOKENS))
    cache.store(tokens, buffer, 0)
    assert cache.restore(tokens, buffer, 1, limit=len(tokens)) == 2 * BLOCK_TOKENS
    assert torch.equal(buffer.tensor[:, :, 1, :, :16], buffer.tensor[:, :, 0, :, :16])


def test_a_cache_of_no_tokens_keeps_nothing():
    buffer, cache = filled_buffer(), PrefixCache(capacity_tokens=0)
    cache.store(list(range(16)), buffer, 0)
    assert cache.restore(list(range(16)), buffer, 1, limit=16) == 0
