"""Keys and values by token prefix, in blocks of a few tokens, the least recently used dropped first.

A block is known by its parent block and its own tokens, so equal prefixes share blocks and the longest common prefix
is found by walking down. Using a block uses its ancestors too, later than itself: the least recent block therefore
never has children, and can go.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from midcourse.engines.forward import KeyValueBuffer

BLOCK_TOKENS = 8  # the part of a prefix after the last full block is computed again
_ROOT = -1


class PrefixCache:
    """Holds up to `capacity_tokens` of prefixes. Blocks: [layers, 2, key heads, BLOCK_TOKENS, head size] each."""

    def __init__(self, *, capacity_tokens: int) -> None:
        self.num_blocks = capacity_tokens // BLOCK_TOKENS
        self._pool: Tensor | None = None
        self.clear()

    def clear(self) -> None:
        """Forget everything and free the memory."""
        self._pool = None
        self._ids: dict[tuple[int, tuple[int, ...]], int] = {}
        self._keys: OrderedDict[int, tuple[int, tuple[int, ...]]] = OrderedDict()  # least recently used first
        self._free = list(range(self.num_blocks))

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        return len(self._keys) * BLOCK_TOKENS

    def restore(self, token_ids: Sequence[int], buffer: KeyValueBuffer, row: int, *, limit: int) -> int:
        """Copy the longest known prefix into a row of the buffer; return its length, at most `limit`."""
        path = self._walk(token_ids[:limit])
        if not path or self._pool is None:
            return 0
        self._touch(path)
        blocks = self._pool[torch.tensor(path, device=self._pool.device)]
        length = len(path) * BLOCK_TOKENS
        buffer.tensor[:, :, row, :, :length] = blocks.permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
        return length

    def store(self, token_ids: Sequence[int], buffer: KeyValueBuffer, row: int) -> None:
        """Keep the full blocks of a row that holds `token_ids` from slot 0 on; those already known cost nothing."""
        wanted = min(len(token_ids) // BLOCK_TOKENS, self.num_blocks)
        path = self._walk(token_ids[: wanted * BLOCK_TOKENS])
        if self.num_blocks == 0 or len(path) == wanted:
            self._touch(path)
            return
        self._touch(path)
        num_known, parent = len(path), path[-1] if path else _ROOT
        self._evict(wanted - num_known)
        for index in range(num_known, wanted):
            key = (parent, tuple(token_ids[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]))
            parent = self._free.pop()
            self._ids[key] = parent
            self._keys[parent] = key
            path.append(parent)
        self._touch(path)
        added = buffer.tensor[:, :, row, :, num_known * BLOCK_TOKENS : wanted * BLOCK_TOKENS]
        blocks = added.unflatten(3, (wanted - num_known, BLOCK_TOKENS)).permute(3, 0, 1, 2, 4, 5)
        if self._pool is None:
            # On a CPU a page of an empty tensor takes memory only once it is written.
            self._pool = torch.empty((self.num_blocks, *blocks.shape[1:]), dtype=blocks.dtype, device=blocks.device)
        self._pool[torch.tensor(path[num_known:], device=blocks.device)] = blocks

    def _walk(self, token_ids: Sequence[int]) -> list[int]:
        path: list[int] = []
        parent = _ROOT
        for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            found = self._ids.get((parent, tuple(token_ids[start : start + BLOCK_TOKENS])))
            if found is None:
                break
            path.append(found)
            parent = found
        return path

    def _touch(self, path: Sequence[int]) -> None:
        for block in reversed(path):
            self._keys.move_to_end(block)

    def _evict(self, num_needed: int) -> None:
        while len(self._free) < num_needed:
            block, key = self._keys.popitem(last=False)
            del self._ids[key]
            self._free.append(block)
