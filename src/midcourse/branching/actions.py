"""What an intervention can be: how many continuations, and how they are drawn (RAIL, Section 3.2 and B.3.1).

Letters: K cells of the space, M branch counts, R regimes.

The paper's: B = M x T with M = {4, 8, 12} and T = {exploit, mild, aggressive}; the code of an action is its count over
the greatest count of its grid and a one-hot of the regime; 2x2 = {4, 12} x {exploit, aggressive}; 4x4 adds a count of
16 and one more regime; other kinds of action can be added. Ours: the temperatures (the paper gives none: mild leaves
the policy's own), the fourth regime, what a clamped action is, and `repair`, which corrects instead of sampling.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from midcourse.errors import ConfigError
from midcourse.registry import Registry

SAMPLE = "sample"
"""The kind of a regime whose continuations the policy draws alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How continuations are made. The code has one entry for it, so nothing says which regime is near which.

    Raises:
        ConfigError: a temperature factor or a cost that is not positive.
    """

    name: str
    kind: str = SAMPLE  # who makes the continuations; a method must know every kind of its space
    temperature_factor: float = 1.0  # times the base sampling temperature
    cost: float = 1.0  # of one continuation, in rollouts that the policy draws alone

    def __post_init__(self) -> None:
        for field, value in (("temperature_factor", self.temperature_factor), ("cost", self.cost)):
            if not 0 < value < float("inf"):
                raise ConfigError(f"regime {self.name!r}: {field} must be positive and finite: got {value}")


REGIMES: Registry[Regime] = Registry("regime", takes=Regime)
"""Name -> regime. Whoever adds a kind of action registers its regime here and gives its name to the space."""

for _regime in (
    Regime(name="exploit", temperature_factor=0.7),
    Regime(name="mild"),
    Regime(name="warm", temperature_factor=1.15),
    Regime(name="aggressive", temperature_factor=1.3),
    Regime(name="repair", kind="repair"),
):
    REGIMES.register(_regime.name)(_regime)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An intervention as it is run: `rollouts` fresh continuations of an anchor in one regime.

    `cell` is its place in the space. A clamped action keeps its cell; `rollouts` is what is really drawn.
    """

    cell: int
    rollouts: int
    regime: Regime


class ActionSpaceConfig(BaseModel):
    """Which interventions the controller chooses from: every branch count in every regime."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    branch_counts: tuple[int, ...] = (4, 8, 12)
    """Continuations of one branch, increasing. Paper: 4, 8, 12; a single count leaves decoding alone to choose."""
    regimes: tuple[str, ...] = ("exploit", "mild", "aggressive")
    """Names of regimes, those for solved pools first; a single one leaves the count alone to choose. `repair`: RTI."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        counts, regimes = self.branch_counts, self.regimes
        if not counts or counts[0] < 1 or any(one >= two for one, two in itertools.pairwise(counts)):
            raise ConfigError(f"branch_counts must be positive and increasing: got {list(counts)}")
        if not regimes or len(set(regimes)) != len(regimes):
            raise ConfigError(f"regimes must be one or more different names: got {list(regimes)}")
        return self

    def build(self) -> "ActionSpace":
        """Return the space.

        Raises:
            ConfigError: a regime that nobody registered; the message has the nearest name.
        """
        return ActionSpace(branch_counts=self.branch_counts, regimes=tuple(REGIMES[name] for name in self.regimes))


GRIDS: Mapping[str, ActionSpaceConfig] = {
    "2x2": ActionSpaceConfig(branch_counts=(4, 12), regimes=("exploit", "aggressive")),
    "3x3": ActionSpaceConfig(),
    "4x4": ActionSpaceConfig(branch_counts=(4, 8, 12, 16), regimes=("exploit", "mild", "warm", "aggressive")),
    "branch-only": ActionSpaceConfig(regimes=("mild",)),
    "decoding-only": ActionSpaceConfig(branch_counts=(8,)),
}
"""The paper's spaces: its default, its two ablations of granularity, and its two scalar spaces (Table 2)."""


@dataclass(frozen=True)
class ActionSpace:
    """The cells of one grid, counts outermost: cell = (index of the count) * R + (index of the regime)."""

    branch_counts: tuple[int, ...]  # [M] increasing
    regimes: tuple[Regime, ...]  # [R]

    @cached_property
    def cells(self) -> tuple[Action, ...]:
        """[K] every action with its full count."""
        return tuple(
            Action(cell=row * len(self.regimes) + column, rollouts=count, regime=regime)
            for row, count in enumerate(self.branch_counts)
            for column, regime in enumerate(self.regimes)
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """[K] of the cells, such as "8 mild": what reports and a saved controller call them."""
        return tuple(f"{action.rollouts} {action.regime.name}" for action in self.cells)

    @property
    def code_size(self) -> int:
        """Numbers that encode an action: 1 + R, so 4 in the paper's grid."""
        return 1 + len(self.regimes)

    def action(self, count_index: int, regime_index: int, *, remaining: int) -> Action | None:
        """Return one cell's action, clamped to what is left of the rollout budget; None where nothing is left."""
        if remaining < 1:
            return None
        cell = self.cells[count_index * len(self.regimes) + regime_index]
        return Action(cell=cell.cell, rollouts=min(cell.rollouts, remaining), regime=cell.regime)

    def executable(self, remaining: int) -> tuple[Action, ...]:
        """Return what can be run with `remaining` rollouts of the budget, in the order of cells; may be nothing.

        Counts over the budget are clamped to it. Of cells that this makes equal only the first stays: with 6 left,
        4, 8 and 12 become 4 and 6, and the 6 is the cell of 8.
        """
        if remaining >= self.branch_counts[-1]:
            return self.cells
        if remaining < 1:
            return ()
        indices = [index for index, count in enumerate(self.branch_counts) if count <= remaining]
        if remaining not in self.branch_counts:
            indices.append(len(indices))  # the first count over the budget
        return tuple(
            Action(
                cell=index * len(self.regimes) + column,
                rollouts=min(self.branch_counts[index], remaining),
                regime=regime,
            )
            for index in indices
            for column, regime in enumerate(self.regimes)
        )

    def codes(self, actions: Sequence[Action]) -> NDArray[numpy.float64]:
        """Return [len(actions), 1 + R]: rollouts as run over the grid's greatest count, and a one-hot of the regime."""
        codes = numpy.zeros((len(actions), self.code_size))
        for row, action in enumerate(actions):
            codes[row, 0] = action.rollouts / self.branch_counts[-1]
            codes[row, 1 + action.cell % len(self.regimes)] = 1.0
        return codes
