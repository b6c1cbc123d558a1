import numpy
import pytest
from pydantic import ValidationError

from midcourse.branching.actions import GRIDS, REGIMES, ActionSpaceConfig, Regime
from midcourse.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "cells", "code_size"),
    [("2x2", 4, 3), ("3x3", 9, 4), ("4x4", 16, 5), ("branch-only", 3, 2), ("decoding-only", 3, 4)],
)
def test_a_grid_has_every_count_in_every_regime(name, cells, code_size):
    space = GRIDS[name].build()
    assert [action.cell for action in space.cells] == list(range(cells))
    assert len({(action.rollouts, action.regime.name) for action in space.cells}) == cells
    assert space.code_size == code_size


def test_the_default_space_is_the_papers():
    assert ActionSpaceConfig().build().names == (
        "4 exploit", "4 mild", "4 aggressive", "8 exploit", "8 mild", "8 aggressive",
        "12 exploit", "12 mild", "12 aggressive",
    )  # fmt: skip


def test_an_action_is_encoded_by_its_share_of_the_greatest_count_and_a_one_hot():
    space = ActionSpaceConfig().build()
    found = space.codes([space.cells[5], space.cells[6]])
    assert found.tolist() == [[8 / 12, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]]
    finest = GRIDS["4x4"].build()
    assert finest.codes(finest.cells[:1]).tolist() == [[4 / 16, 1.0, 0.0, 0.0, 0.0]]


def test_mild_is_the_policys_own_temperature():
    factors = [REGIMES[name].temperature_factor for name in ("exploit", "mild", "warm", "aggressive")]
    assert factors == [0.7, 1.0, 1.15, 1.3]


@pytest.mark.parametrize(
    ("remaining", "expected"),
    [
        (32, [(0, 4), (1, 4), (2, 8), (3, 8), (4, 12), (5, 12)]),
        (12, [(0, 4), (1, 4), (2, 8), (3, 8), (4, 12), (5, 12)]),
        (8, [(0, 4), (1, 4), (2, 8), (3, 8)]),
        (6, [(0, 4), (1, 4), (2, 6), (3, 6)]),
        (3, [(0, 3), (1, 3)]),
        (0, []),
    ],
)
def test_the_budget_clamps_counts_and_of_equal_actions_the_first_stays(remaining, expected):
    space = ActionSpaceConfig(regimes=("exploit", "mild")).build()
    assert [(action.cell, action.rollouts) for action in space.executable(remaining)] == expected


def test_a_clamped_action_is_encoded_as_it_is_run():
    space = ActionSpaceConfig().build()
    clamped = space.action(2, 1, remaining=6)
    assert clamped is not None
    assert clamped.cell == 7
    assert space.codes([clamped]).tolist() == [[0.5, 0.0, 1.0, 0.0]]
    assert space.action(0, 0, remaining=0) is None


def test_repair_is_one_more_regime():
    space = ActionSpaceConfig(regimes=("exploit", "mild", "aggressive", "repair")).build()
    assert len(space.cells) == 12
    assert [action.regime.kind for action in space.cells[:4]] == ["sample", "sample", "sample", "repair"]
    assert numpy.array_equal(space.codes([space.cells[3]]), [[4 / 12, 0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"branch_counts": ()}, "branch_counts"),
        ({"branch_counts": (8, 4)}, "branch_counts"),
        ({"branch_counts": (0, 4)}, "branch_counts"),
        ({"regimes": ()}, "regimes"),
        ({"regimes": ("mild", "mild")}, "regimes"),
    ],
)
def test_a_space_that_cannot_be_is_refused(settings, named):
    with pytest.raises(ValidationError, match=named):
        ActionSpaceConfig(**settings)


def test_an_unknown_regime_is_an_error_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'aggressive'"):
        ActionSpaceConfig(regimes=("agressive",)).build()


def test_a_regime_needs_a_positive_temperature():
    with pytest.raises(ConfigError, match="temperature_factor"):
        Regime(name="cold", temperature_factor=0.0)
