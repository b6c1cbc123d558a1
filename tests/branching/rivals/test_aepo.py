import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.branching.lineage import Lineage
from midcourse.branching.rivals.aepo import AEPORolloutConfig, aepo_branches, initial_rollouts, penalty_factor
from midcourse.branching.rivals.arpo import ARPORolloutConfig, arpo_branches
from midcourse.branching.rivals.branches import Boundary, Branch, boundaries_at, uniform_draw
from midcourse.branching.rivals.entropy_trigger import EntropyTriggerConfig

KEY = (0, 1, "task")


def boundary(rollout, change, turn=1):
    return Boundary(rollout=rollout, turn=turn, entropy=0.25 + change, initial_entropy=0.25)


def test_the_split_follows_the_gap_of_entropies():
    # 16 * sigmoid(ln 3) = 12, and 16 * sigmoid(-ln 3) = 4; floor + 1.
    config = AEPORolloutConfig(entropy_sensitivity=1.0)
    gap = math.log(3) + 1e-9
    assert initial_rollouts(0.25 + gap, [0.5, 0.0], config) == 13
    assert initial_rollouts(0.25, [0.25 + gap, 0.25 + gap], config) == 4
    assert initial_rollouts(0.25, [0.25], config) == 9
    assert initial_rollouts(0.25, [], config) == 9


def test_the_split_leaves_at_least_one_rollout_and_never_exceeds_the_budget():
    config = AEPORolloutConfig(rollout_budget=4, entropy_sensitivity=1e6)
    assert initial_rollouts(0.0, [1.0], config) == 1
    assert initial_rollouts(1.0, [0.0], config) == 4


@given(st.floats(0, 1), st.lists(st.floats(0, 1), max_size=5), st.integers(1, 32), st.floats(0, 1e4))
def test_the_split_is_in_the_budget_and_more_entropy_at_the_start_begins_more_there(root, tools, budget, sensitivity):
    config = AEPORolloutConfig(rollout_budget=budget, entropy_sensitivity=sensitivity)
    count = initial_rollouts(root, tools, config)
    assert 1 <= count <= budget
    assert initial_rollouts(root + 0.1, tools, config) >= count


def test_branching_in_a_row_is_penalised():
    config = AEPORolloutConfig()
    assert [penalty_factor(count, config) for count in (0, 1, 4, 20, 30)] == pytest.approx([1.0, 0.95, 0.8, 0.0, 0.0])


def test_a_penalised_turn_must_be_more_uncertain():
    # P = (0.5 + 4 dH)(1 - 0.05 l) > 0.5: with l = 2, 0.5 + 4 dH over 0.5 / 0.9 = 0.5556, so dH over 0.01389.
    boundaries = [boundary(0, 0.0138), boundary(1, 0.0139), boundary(2, 0.0138)]
    found = aepo_branches(boundaries, [2, 2, 0], remaining=8, config=AEPORolloutConfig(), key=KEY)
    assert found == [Branch(rollout=1, turn=1), Branch(rollout=2, turn=1)]


@pytest.mark.parametrize("rule", ["threshold", "probability"])
def test_without_penalty_the_turns_are_arpos(rule):
    trigger = EntropyTriggerConfig(rule=rule, beam_size=3)
    boundaries = [boundary(index, 0.05 * (index % 5 - 2), turn=index + 1) for index in range(20)]
    found = aepo_branches(
        boundaries,
        list(range(20)),
        remaining=15,
        config=AEPORolloutConfig(trigger=trigger, branch_penalty=0.0),
        key=KEY,
    )
    assert found == arpo_branches(boundaries, remaining=15, config=ARPORolloutConfig(trigger=trigger), key=KEY)
    assert 0 < sum(branch.continuations for branch in found) <= 15


def test_each_boundary_needs_its_count():
    with pytest.raises(ValueError, match="shorter"):
        aepo_branches([boundary(0, 0.1)], [], remaining=1, config=AEPORolloutConfig(), key=KEY)


def grow(seed, config):
    """Return parents, forks and entropies of a task's rollouts, grown turn by turn as the documentation says."""

    def written(member, first):
        return [uniform_draw(seed, "turn", member, turn) for turn in range(first, first + 1 + member % 4)]

    parents, forks, entropies = [None], [0], [written(0, 0)]
    while len(parents) < initial_rollouts(entropies[0][0], entropies[0][1:], config):
        entropies.append(written(len(parents), 0))
        parents.append(None)
        forks.append(0)
    turn = 1
    while any(len(turns) > turn for turns in entropies):
        lineage, boundaries = Lineage(tuple(parents), tuple(forks)), boundaries_at(turn, entropies, forks)
        counts = [lineage.consecutive_branches(boundary.rollout, turn) for boundary in boundaries]
        left = config.rollout_budget - len(parents)
        for branch in aepo_branches(boundaries, counts, remaining=left, config=config, key=(seed,)):
            for _ in range(branch.continuations):
                entropies.append([*entropies[branch.rollout][:turn], *written(len(parents), turn)])
                parents.append(branch.rollout)
                forks.append(turn)
        turn += 1
    return parents, forks, entropies


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 24), st.integers(2, 4), st.sampled_from(["threshold", "probability"]))
def test_a_grown_task_stays_in_its_budget_and_grows_the_same_again(seed, budget, beam_size, rule):
    trigger = EntropyTriggerConfig(beam_size=beam_size, rule=rule)
    config = AEPORolloutConfig(rollout_budget=budget, trigger=trigger)
    parents, forks, entropies = grow(seed, config)
    assert len(parents) <= budget
    assert (parents, forks, entropies) == grow(seed, config)
    at_one_place = {(parent, fork) for parent, fork in zip(parents, forks, strict=True) if parent is not None}
    branches = sum(parent is not None for parent in parents)
    assert branches <= len(at_one_place) * (beam_size - 1)  # no boundary branches twice
