"""What was predicted, done and gained (RAIL, Section 3.1): traces (z, b, y), the last W of them.

A trace can only be made from a prediction, so no prediction has seen its outcome. The paper's: the window. Ours: that a
trace keeps its prediction and the policy update it was made in. Letters: W rows, H and E as in `state.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from midcourse.branching.actions import Action
from midcourse.branching.network import Array, Rows
from midcourse.branching.state import SCALAR_NAMES, State
from midcourse.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """What the controller expects of an action in a state, before anything was drawn."""

    state: State
    action: Action
    code: NDArray[numpy.float64]  # [C] of the action
    gain: float  # expected
    update: int  # of the policy
    is_live: bool = False  # the controller decided; False: the warm-up rule
    is_exploration: bool = False  # chosen for its coverage

    def realize(self, gained: float, *, is_first_trial: bool = True) -> "Trace":
        """Return the trace of what the action really brought.

        Args:
            gained: `realized_gain`; where that is None there is no trace.
            is_first_trial: of its anchor; the one that promotion looks at.

        Raises:
            ValueError: a gain that is not finite.
        """
        if not numpy.isfinite(gained):
            raise ValueError(f"a gain must be finite: got {gained}")
        return Trace(prediction=self, gained=gained, is_first_trial=is_first_trial)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One outcome. Made by `Prediction.realize`."""

    prediction: Prediction
    gained: float
    is_first_trial: bool


class TraceBuffer:
    """The last `capacity` traces, in memory that is taken once.

    Bytes: capacity * (8 * (15 + C) + 4 * (H + E)), so 10 MB for 512 traces of a model with 2,560 hidden numbers.
    """

    def __init__(self, capacity: int, *, code_size: int, hidden_size: int, embedding_size: int, num_cells: int) -> None:
        self.capacity = capacity
        self.total = 0  # traces ever seen
        self._num_cells = num_cells
        self._scalars = numpy.zeros((capacity, len(SCALAR_NAMES)))
        self._hidden = numpy.zeros((capacity, hidden_size), numpy.float32)
        self._embedding = numpy.zeros((capacity, embedding_size), numpy.float32)
        self._codes = numpy.zeros((capacity, code_size))
        self._gained = numpy.zeros(capacity)
        self._predicted = numpy.zeros(capacity)
        self._cells = numpy.zeros(capacity, numpy.int64)
        self._updates = numpy.zeros(capacity, numpy.int64)
        self._is_live = numpy.zeros(capacity, numpy.bool_)

    def __len__(self) -> int:
        return min(self.total, self.capacity)

    def append(self, trace: Trace) -> None:
        """Take a trace in the place of the oldest.

        Raises:
            ValueError: a hidden state or an embedding of another size than this buffer's.
        """
        prediction, row = trace.prediction, self.total % self.capacity
        for name, given, own in (
            ("hidden", prediction.state.hidden, self._hidden),
            ("embedding", prediction.state.embedding, self._embedding),
        ):
            if len(given) != own.shape[1]:
                raise ValueError(f"a state's {name} must have {own.shape[1]} numbers: got {len(given)}")
        self._scalars[row] = prediction.state.scalars
        self._hidden[row] = prediction.state.hidden
        self._embedding[row] = prediction.state.embedding
        self._codes[row] = prediction.code
        self._gained[row] = trace.gained
        self._predicted[row] = prediction.gain
        self._cells[row] = prediction.action.cell
        self._updates[row] = prediction.update
        self._is_live[row] = prediction.is_live
        self.total += 1

    def newest_first(self) -> NDArray[numpy.int64]:
        """Return [len] the places of the traces, newest first."""
        return (self.total - 1 - numpy.arange(len(self))) % self.capacity

    def rows(self, places: NDArray[numpy.int64]) -> Rows:
        """Return the inputs of the traces at these places, copied."""
        return Rows(
            scalars=self._scalars[places],
            hidden=self._hidden[places],
            embedding=self._embedding[places],
            codes=self._codes[places],
        )

    def gained(self, places: NDArray[numpy.int64]) -> Array:
        """Return what the traces at these places brought."""
        return self._gained[places]

    def predicted(self, places: NDArray[numpy.int64]) -> Array:
        """Return what had been predicted for the traces at these places."""
        return self._predicted[places]

    def updates(self, places: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """Return the policy updates in which the traces at these places were predicted."""
        return self._updates[places]

    def live(self) -> NDArray[numpy.int64]:
        """Return the places of the traces that the controller decided on itself, newest first."""
        places = self.newest_first()
        return places[self._is_live[places]]

    def coverage(self) -> NDArray[numpy.int64]:
        """Return [K] how many of the traces ran each cell of the space."""
        return numpy.bincount(self._cells[: len(self)], minlength=self._num_cells)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything that a resumed run must know, copied."""
        filled = {name: array[: len(self)].copy() for name, array in self._columns().items()}
        return {**filled, "total": numpy.array([self.total], dtype=numpy.int64)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take what `state_dict` gave.

        Raises:
            CheckpointError: it is of another form, or of a buffer of another size.
        """
        columns = self._columns()
        if set(state) != {*columns, "total"}:
            raise CheckpointError(f"traces: expected {sorted({*columns, 'total'})}, got {sorted(state)}")
        total = int(state["total"][0])
        for name, array in columns.items():
            expected = (min(total, self.capacity), *array.shape[1:])
            if state[name].shape != expected or state[name].dtype != array.dtype:
                raise CheckpointError(
                    f"traces: {name} must be {array.dtype} {expected}: got {state[name].dtype} {state[name].shape}"
                )
        for name, array in columns.items():
            array[: len(state[name])] = state[name]
        self.total = total

    def _columns(self) -> dict[str, NDArray[Any]]:
        return {
            "scalars": self._scalars,
            "hidden": self._hidden,
            "embedding": self._embedding,
            "codes": self._codes,
            "gained": self._gained,
            "predicted": self._predicted,
            "cells": self._cells,
            "updates": self._updates,
            "is_live": self._is_live,
        }
