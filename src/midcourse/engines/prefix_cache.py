"""Keys, values and states by token prefix, the least recently used dropped first.

A token is known by what stands before it and itself, so equal prefixes share their tokens, and the longest common
prefix is found by walking down, wherever it ends. Storing a token uses those before it too, later than itself: the
least recent token therefore never has one behind it, and can go.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from midcourse.engines.forward import RowBuffer

_ROOT = -1
_TOKEN_BITS = 32


class PrefixCache:
    """Holds up to `capacity_tokens` tokens of prefixes, each in a slot of its own.

    A token's state may be missing where only its keys and values were computed.
    """

    def __init__(self, *, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.clear()

    def clear(self) -> None:
        """Forget everything and free the memory."""
        self._keys_values: Tensor | None = None  # [slots, layers, 2, key heads, head size]
        self._states: Tensor | None = None  # [slots, H]
        # A name is the slot of the token before and the token, as one number: pairs would keep the garbage collector
        # busy. Name -> slot, and the other way round, least recently used first.
        self._slots: dict[int, int] = {}
        self._names: OrderedDict[int, int] = OrderedDict()
        self._with_state: set[int] = set()
        self._free: list[int] = []  # slots that were used before

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        return len(self._names)

    def find(self, token_ids: Sequence[int], *, states_from: int = 0) -> list[int]:
        """Return the slots of the longest known prefix whose tokens from position `states_from` on have their states.

        They stay valid until something is stored. Finding is not using: who goes on from a prefix stores it again.
        """
        slots: list[int] = []
        slot = _ROOT
        for position, token in enumerate(token_ids):
            slot = self._slots.get(slot << _TOKEN_BITS | token, _ROOT)
            if slot == _ROOT or (position >= states_from and slot not in self._with_state):
                break
            slots.append(slot)
        return slots

    def load(self, slots: Sequence[int], buffer: RowBuffer, row: int) -> None:
        """Copy what `find` found to the beginning of a row."""
        if not slots or self._keys_values is None or self._states is None:
            return
        index = _index(slots, self._states.device)
        buffer.keys_values[:, :, row, :, : len(slots)] = self._keys_values[index].permute(1, 2, 3, 0, 4)
        buffer.states[row, : len(slots)] = self._states[index]

    def store(self, token_ids: Sequence[int], buffer: RowBuffer, row: int, *, states_from: int) -> None:
        """Keep a row that holds `token_ids` from slot 0 on, and their states from position `states_from` on.

        What is known already costs nothing. Of more tokens than fit the first are kept.
        """
        token_ids = token_ids[: self.capacity_tokens]
        slots = self.find(token_ids, states_from=len(token_ids))
        known = slots.copy()
        self._make_room(len(token_ids) - len(known), keep=known)
        names: list[int] = []
        for token in token_ids[len(known) :]:
            names.append((slots[-1] if slots else _ROOT) << _TOKEN_BITS | token)
            slots.append(self._free.pop() if self._free else len(self._names) + len(names) - 1)
        for name, slot in zip(reversed(names), reversed(slots), strict=False):
            self._slots[name] = slot
            self._names[slot] = name
        self._touch(known)
        # A known token may have got its state only now.
        first = min(len(known), states_from)
        if first < len(slots):
            self._write(slots[first:], buffer.keys_values[:, :, row, :, first : len(slots)], buffer.states[row, first:])
            self._with_state.update(slots[states_from:])

    def _write(self, slots: Sequence[int], keys_values: Tensor, states: Tensor) -> None:
        if self._keys_values is None or self._states is None:
            # On a CPU a page of an empty tensor takes memory only once it is written.
            sizes = (*keys_values.shape[:3], keys_values.shape[-1])
            self._keys_values = keys_values.new_empty((self.capacity_tokens, *sizes))
            self._states = states.new_empty((self.capacity_tokens, states.shape[-1]))
        index = _index(slots, states.device)
        self._keys_values[index] = keys_values.permute(3, 0, 1, 2, 4)
        self._states[index] = states[: len(slots)]

    def _touch(self, slots: Sequence[int]) -> None:
        for slot in reversed(slots):
            self._names.move_to_end(slot)

    def _make_room(self, num_needed: int, *, keep: Sequence[int]) -> None:
        if len(self._names) + num_needed > self.capacity_tokens:
            self._touch(keep)
        while len(self._names) + num_needed > self.capacity_tokens:
            slot, name = self._names.popitem(last=False)
            del self._slots[name]
            self._with_state.discard(slot)
            self._free.append(slot)


def _index(slots: Sequence[int], device: torch.device) -> Tensor:
    # Several times as fast as torch.tensor() of a list.
    return torch.from_numpy(numpy.array(slots)).to(device)
