"""The score of an intervention in a state: a small network with a skip connection (RAIL, B.3.2 and B.3.3).

Letters: N rows, A actions, C numbers of a code, F = 26 + C inputs, U hidden units, H and E as in `state.py`.

The paper's: input (z, b) of 26 + 4 numbers, 64 hidden units with GELU and dropout, one output, a skip connection from
the raw input to the output; P_h and P_e are trained with the rest; about 2,000 parameters besides them. Ours: GELU in
its tanh form, output weights that begin at 0 (the first prediction is 0, and the gate lets nothing pass), projections
that begin small. Written out in numpy: one decision is nine rows, for which torch's calls cost four times as much as
the arithmetic, and a training step eight times (docs/branching.md).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from midcourse.branching.state import SCALAR_NAMES

Array = NDArray[numpy.float64]
PROJECTED = 8
STATE_SIZE = len(SCALAR_NAMES) + 2 * PROJECTED
PROJECTION_RMS = 0.25
"""Root mean square of a projected number at the start: that of the scalars, about."""
GELU_SLOPE, GELU_CUBIC = math.sqrt(2.0 / math.pi), 0.044715


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """States and what was done there, one a row."""

    scalars: Array  # [N, 10]
    hidden: NDArray[numpy.float32]  # [N, H]
    embedding: NDArray[numpy.float32]  # [N, E]
    codes: Array  # [N, C]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShape:
    """Sizes. `hidden` or `embedding` 0: that block of z is zeros."""

    code: int
    hidden: int = 0
    embedding: int = 0
    units: int = 64

    @property
    def parts(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the parameters by name, in the order in which they lie behind each other."""
        inputs = STATE_SIZE + self.code
        return {
            "hidden_projection": (PROJECTED, self.hidden),
            "embedding_projection": (PROJECTED, self.embedding),
            "unit_weight": (self.units, inputs),
            "unit_bias": (self.units,),
            "output_weight": (self.units,),
            "skip_weight": (inputs,),
            "output_bias": (1,),
        }


class GainNetwork:
    """Predicts gains; knows its gradient. All parameters lie in one vector, so that an optimizer needs no names.

    Args:
        shape: sizes.
        seed: of the first weights.
        used: [26] 1 where the network sees a number of z, 0 where it is kept from it; None sees all.
    """

    def __init__(self, shape: NetworkShape, *, seed: int, used: Array | None = None) -> None:
        self.shape = shape
        self.parameters: Array = numpy.zeros(sum(math.prod(part) for part in shape.parts.values()))
        self._used: Array = numpy.ones(STATE_SIZE) if used is None else used
        parts = self._views(self.parameters)
        generator = numpy.random.default_rng(seed)
        for name in ("hidden_projection", "embedding_projection"):
            size = parts[name].shape[1]
            parts[name][:] = generator.normal(0.0, PROJECTION_RMS / math.sqrt(max(size, 1)), parts[name].shape)
        bound = 1.0 / math.sqrt(parts["unit_weight"].shape[1])
        parts["unit_weight"][:] = generator.uniform(-bound, bound, parts["unit_weight"].shape)
        parts["unit_bias"][:] = generator.uniform(-bound, bound, parts["unit_bias"].shape)
        self._parts = parts

    def states(self, rows: Rows) -> Array:
        """Return [N, 26] z of the rows: scalars, then P_h h, then P_e e."""
        return self._used * numpy.concatenate(
            (
                rows.scalars,
                rows.hidden @ self._parts["hidden_projection"].T,
                rows.embedding @ self._parts["embedding_projection"].T,
            ),
            axis=1,
        )

    def predict(self, rows: Rows) -> Array:
        """Return [N] predicted gains, without dropout."""
        parts = self._parts
        inputs = numpy.concatenate((self.states(rows), rows.codes), axis=1)
        units = gelu(inputs @ parts["unit_weight"].T + parts["unit_bias"])
        return units @ parts["output_weight"] + inputs @ parts["skip_weight"] + parts["output_bias"]

    def predict_each(self, rows: Rows) -> Array:
        """Return [N, A] predicted gains of every action in every state, without dropout.

        `rows` has N states and, unlike elsewhere, A codes: what states and codes add is computed once for each.
        """
        parts = self._parts
        states = self.states(rows)
        of_states = states @ parts["unit_weight"][:, :STATE_SIZE].T + parts["unit_bias"]
        of_codes = rows.codes @ parts["unit_weight"][:, STATE_SIZE:].T
        # In float32 tanh, which is most of the work, takes a fifth of the time; the gain loses 1e-7.
        units = gelu(of_states.astype(numpy.float32)[:, None, :] + of_codes.astype(numpy.float32)[None, :, :])
        skipped = (states @ parts["skip_weight"][:STATE_SIZE])[:, None] + rows.codes @ parts["skip_weight"][STATE_SIZE:]
        return units @ parts["output_weight"] + skipped + parts["output_bias"]

    def forward(self, rows: Rows, keep_NU: Array) -> tuple[Array, "Trail"]:
        """Return [N] predicted gains under dropout, and what `gradient` needs.

        Args:
            rows: inputs.
            keep_NU: [N, U] factors on the units: 0, or 1 / (1 - dropout).
        """
        parts = self._parts
        inputs = numpy.concatenate((self.states(rows), rows.codes), axis=1)
        activated, slope = gelu_and_slope(inputs @ parts["unit_weight"].T + parts["unit_bias"])
        units = activated * keep_NU
        predicted = units @ parts["output_weight"] + inputs @ parts["skip_weight"] + parts["output_bias"]
        return predicted, Trail(rows=rows, inputs=inputs, units=units, slope=slope * keep_NU)

    def gradient(self, trail: "Trail", of_predicted: Array) -> Array:
        """Return the gradient of the parameters, in their order, given [N] that of the predictions."""
        parts, out = self._parts, numpy.empty_like(self.parameters)
        found = self._views(out)
        found["output_bias"][:] = of_predicted.sum()
        found["output_weight"][:] = of_predicted @ trail.units
        found["skip_weight"][:] = of_predicted @ trail.inputs
        of_before = of_predicted[:, None] * parts["output_weight"] * trail.slope
        found["unit_bias"][:] = of_before.sum(axis=0)
        found["unit_weight"][:] = of_before.T @ trail.inputs
        of_states = of_before @ parts["unit_weight"][:, :STATE_SIZE]
        of_states += of_predicted[:, None] * parts["skip_weight"][:STATE_SIZE]
        of_states *= self._used
        first, second = len(SCALAR_NAMES), len(SCALAR_NAMES) + PROJECTED
        found["hidden_projection"][:] = of_states[:, first:second].T @ trail.rows.hidden
        found["embedding_projection"][:] = of_states[:, second:].T @ trail.rows.embedding
        return out

    def _views(self, vector: Array) -> dict[str, Array]:
        """Return the parts of a parameter vector, as windows into it."""
        views: dict[str, Array] = {}
        start = 0
        for name, shape in self.shape.parts.items():
            end = start + math.prod(shape)
            views[name] = vector[start:end].reshape(shape)
            start = end
        return views


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trail:
    """What one forward pass leaves for its gradient."""

    rows: Rows
    inputs: Array  # [N, F]
    units: Array  # [N, U] what they gave, dropout included
    slope: Array  # [N, U] of that by what they got


def gelu(values: NDArray[Any]) -> NDArray[Any]:
    """Return GELU in its tanh form (arXiv:1606.08415), of the same shape."""
    return 0.5 * values * (1.0 + numpy.tanh(GELU_SLOPE * (values + GELU_CUBIC * values * values * values)))


def gelu_and_slope(values: Array) -> tuple[Array, Array]:
    """Return `gelu` and its derivative: both need the same tanh, which is most of the work."""
    squares = values * values
    bent = numpy.tanh(GELU_SLOPE * (values + GELU_CUBIC * values * squares))
    half = 0.5 * (1.0 + bent)
    inner = GELU_SLOPE * (1.0 + 3.0 * GELU_CUBIC * squares)
    return values * half, half + 0.5 * values * (1.0 - bent * bent) * inner
