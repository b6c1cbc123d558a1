import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midcourse.branching.rivals.arpo import ARPORolloutConfig, arpo_branches
from midcourse.branching.rivals.branches import Boundary, Branch, uniform_draw
from midcourse.branching.rivals.entropy_trigger import EntropyTriggerConfig, branch_probability

KEY = (0, 1, "task")
BY_CHANCE = ARPORolloutConfig(trigger=EntropyTriggerConfig(rule="probability"))


def boundary(rollout, change, turn=1):
    return Boundary(rollout=rollout, turn=turn, entropy=0.25 + change, initial_entropy=0.25)


def test_the_defaults_are_the_papers():
    config = ARPORolloutConfig()
    assert (config.rollout_budget, config.initial_rollouts) == (16, 8)
    assert (config.trigger.base_probability, config.trigger.threshold, config.trigger.beam_size) == (0.5, 0.5, 2)
    # 0.2 on a sum over 20 tokens
    assert branch_probability(0.0625, config.trigger) == 0.5 + 0.2 * 20 * 0.0625


def test_a_turn_branches_where_p_is_over_tau():
    # alpha 0.25, beta 2, tau 0.5: dH must be over 0.125.
    trigger = EntropyTriggerConfig(base_probability=0.25, entropy_weight=2.0)
    boundaries = [boundary(0, 0.25), boundary(1, 0.125), boundary(2, -0.125), boundary(3, 0.1875)]
    found = arpo_branches(boundaries, remaining=8, config=ARPORolloutConfig(trigger=trigger), key=KEY)
    assert found == [Branch(rollout=0, turn=1), Branch(rollout=3, turn=1)]


def test_with_alpha_equal_to_tau_a_turn_branches_where_entropy_rose():
    boundaries = [boundary(0, 0.001), boundary(1, 0.0), boundary(2, -0.001)]
    found = arpo_branches(boundaries, remaining=8, config=ARPORolloutConfig(), key=KEY)
    assert [branch.rollout for branch in found] == [0]


def test_a_wide_beam_makes_several_continuations_and_the_first_boundaries_are_served_first():
    config = ARPORolloutConfig(trigger=EntropyTriggerConfig(beam_size=4))
    found = arpo_branches([boundary(index, 0.1) for index in range(3)], remaining=5, config=config, key=KEY)
    assert [(branch.rollout, branch.continuations) for branch in found] == [(0, 3), (1, 2)]
    assert arpo_branches([boundary(0, 0.1)], remaining=0, config=config, key=KEY) == []


def test_the_codes_rule_branches_with_probability_p():
    # P = 0.5 + 4 * 0.05 = 0.7
    count = sum(
        len(arpo_branches([boundary(0, 0.05)], remaining=1, config=BY_CHANCE, key=(seed,))) for seed in range(2000)
    )
    assert count / 2000 == pytest.approx(0.7, abs=0.031)  # three deviations
    draw = uniform_draw(*KEY, "branch", 3, 1, 0)
    for change, expected in (((draw - 0.5) / 4 + 1e-9, 1), ((draw - 0.5) / 4 - 1e-9, 0)):
        assert len(arpo_branches([boundary(3, change)], remaining=1, config=BY_CHANCE, key=KEY)) == expected


@given(st.lists(st.floats(-0.25, 0.25), min_size=1, max_size=12), st.integers(0, 12), st.integers(2, 4))
def test_the_budget_is_never_exceeded_and_a_draw_depends_on_its_boundary_alone(changes, remaining, beam_size):
    config = ARPORolloutConfig(trigger=EntropyTriggerConfig(rule="probability", beam_size=beam_size))
    boundaries = [boundary(rollout, change) for rollout, change in enumerate(changes)]
    found = arpo_branches(boundaries, remaining=remaining, config=config, key=KEY)
    assert found == arpo_branches(boundaries, remaining=remaining, config=config, key=KEY)
    assert sum(branch.continuations for branch in found) <= remaining
    assert all(1 <= branch.continuations < beam_size for branch in found)
    alone = [branch for one in boundaries for branch in arpo_branches([one], remaining=9, config=config, key=KEY)]
    unbounded = arpo_branches(boundaries, remaining=99, config=config, key=KEY)
    assert alone == unbounded


def test_more_rollouts_at_the_start_than_in_all_are_refused():
    with pytest.raises(ValidationError, match="initial_rollouts must be at most rollout_budget: got 9 of 8"):
        ARPORolloutConfig(rollout_budget=8, initial_rollouts=9)
