import pytest

from midcourse.branching.rivals.branches import Boundary, boundaries_at, uniform_draw


def test_boundaries_are_those_that_a_rollout_has_for_itself():
    # Rollout 1 goes on from rollout 0 before turn 1: boundary 1 is rollout 0's, boundary 2 its own.
    entropies = [[0.1, 0.3, 0.2], [0.1, 0.25, 0.4], [0.2]]
    assert boundaries_at(1, entropies, [0, 1, 0]) == [
        Boundary(rollout=0, turn=1, entropy=0.3, initial_entropy=0.1),
    ]
    found = boundaries_at(2, entropies, [0, 1, 0])
    assert [(boundary.rollout, boundary.turn) for boundary in found] == [(0, 2), (1, 2)]
    assert [boundary.entropy_change for boundary in found] == pytest.approx([0.1, 0.3])


def test_a_turn_that_follows_no_tool_is_no_boundary():
    assert boundaries_at(1, [[0.1, None], [0.1, 0.2]], [0, 0]) == [
        Boundary(rollout=1, turn=1, entropy=0.2, initial_entropy=0.1)
    ]


@pytest.mark.parametrize(("turn", "entropies", "forks"), [(0, [[0.1]], [0]), (1, [[0.1]], []), (1, [[None, 0.1]], [0])])
def test_what_has_no_boundary_is_refused(turn, entropies, forks):
    with pytest.raises(ValueError, match=r"boundaries|first turn"):
        boundaries_at(turn, entropies, forks)


def test_a_draw_depends_on_its_key_alone_and_is_uniform():
    assert uniform_draw(1, "task", 3) == uniform_draw(1, "task", 3)
    assert uniform_draw(1, "task", 3) != uniform_draw(1, "task", 4)
    assert uniform_draw(1, 23) != uniform_draw(12, 3)
    draws = [uniform_draw(7, index) for index in range(2000)]
    assert min(draws) >= 0
    assert max(draws) < 1
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.02)  # three deviations are 0.019
