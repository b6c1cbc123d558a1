import pytest

from midcourse.branching.actions import ActionSpaceConfig
from midcourse.branching.exploration import ExplorationConfig, exploration_rate, least_covered


def test_the_rate_falls_with_the_root_of_the_decisions():
    config = ExplorationConfig()
    assert exploration_rate(0, config) == 0.2
    assert exploration_rate(150, config) == pytest.approx(0.1)  # sqrt(1 + 150 / 50) = 2
    assert exploration_rate(4950, config) == pytest.approx(0.02)  # sqrt(100) = 10


def test_the_sum_of_rates_grows_no_faster_than_the_root_of_the_decisions():
    # Integral bound: sum over T of 1 / sqrt(1 + t / t0) <= 1 + 2 t0 (sqrt(1 + T / t0) - 1).
    config = ExplorationConfig()
    for decisions in (100, 1_000, 10_000):
        total = sum(exploration_rate(step, config) for step in range(decisions))
        assert total <= 0.2 * (1 + 100 * ((1 + decisions / 50) ** 0.5 - 1))


def test_the_least_covered_action_is_tried_and_of_equal_ones_the_first():
    space = ActionSpaceConfig().build()
    assert least_covered(space.cells, [3, 2, 2, 1, 5, 1, 2, 2, 2]) == 3
    # With 6 rollouts left only cells 0 to 5 can be run.
    assert least_covered(space.executable(6), [3, 2, 2, 4, 5, 4, 0, 0, 0]) == 1


def test_trying_the_least_covered_covers_every_cell_in_turn():
    space = ActionSpaceConfig().build()
    coverage = [0] * 9
    for _ in range(27):
        coverage[space.cells[least_covered(space.cells, coverage)].cell] += 1
    assert coverage == [3] * 9
