import math

import numpy
import pytest

from midcourse.branching.state import SCALAR_NAMES, Anchor, Pool, PoolRollout, State, build_states, unit_rms


def pool(**changes):
    settings = {
        "rollouts": [
            PoolRollout(reward=1.0, entropy=0.2, tool_calls=("look", "go")),
            PoolRollout(reward=0.0, entropy=0.4, tool_calls=("look", "go")),
            PoolRollout(reward=0.0, entropy=0.3, tool_calls=("go",)),
            PoolRollout(reward=0.0, entropy=0.1),
        ],
        "rollouts_used": 8,
        "rollout_budget": 32,
        "failed_anchors": 1,
    }
    return Pool(**(settings | changes))


def anchor(**changes):
    return Anchor(**({"round": 2, "max_rounds": 8, "entropy": 0.6} | changes))


def test_the_ten_scalars_of_table_five_by_hand():
    (state,) = build_states([anchor()], pool())
    expected = {
        "anchor_entropy": 0.6,
        "anchor_round": 2 / 6,
        "anchor_round_fraction": 0.25,
        "budget_used_fraction": 0.25,
        "reward_mean": 0.25,
        "reward_deviation": math.sqrt(3 / 16),
        "distance_to_half": 0.25,
        "failed_anchors": 1 / 5,
        "pool_entropy": 0.25,
        "tool_diversity": 3 / 4,
    }
    assert dict(zip(SCALAR_NAMES, state.scalars.tolist(), strict=True)) == pytest.approx(expected, rel=1e-12)


def test_anchors_of_one_pool_differ_in_their_own_features_alone():
    first, second = build_states([anchor(), anchor(round=0, entropy=0.1)], pool())
    assert numpy.flatnonzero(first.scalars != second.scalars).tolist() == [0, 1, 2]
    assert second.scalars[:3].tolist() == [0.1, 0.0, 0.0]


def test_scalars_stay_within_zero_and_one_whatever_is_counted():
    crowded = pool(failed_anchors=10**6, rollouts_used=32)
    (state,) = build_states([anchor(round=10**6, max_rounds=10**7, entropy=1.0)], crowded)
    assert state.scalars.min() >= 0.0
    assert state.scalars.max() <= 1.0


def test_a_failed_rollout_is_in_no_reward_statistic():
    failed = PoolRollout(reward=None, entropy=0.0)
    (state,) = build_states([anchor()], pool(rollouts=[*pool().rollouts, failed]))
    assert state.scalars[4] == 0.25


def test_blocks_are_brought_to_root_mean_square_one():
    assert unit_rms([3.0, -4.0]).tolist() == pytest.approx([3 / math.sqrt(12.5), -4 / math.sqrt(12.5)])
    assert unit_rms([0.0, 0.0]).tolist() == [0.0, 0.0]
    assert unit_rms([]).tolist() == []
    (state,) = build_states([anchor(hidden=unit_rms([2.0, 2.0]))], pool(task_embedding=unit_rms([5.0])))
    assert state.hidden.tolist() == [1.0, 1.0]
    assert state.embedding.tolist() == [1.0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rollouts": [PoolRollout(reward=None, entropy=0.1)]}, "a pool with a reward"),
        ({"rollouts": []}, "a pool with a reward"),
        ({"rollouts_used": 33}, "rollouts_used"),
    ],
)
def test_a_pool_that_has_no_state_is_refused(change, named):
    with pytest.raises(ValueError, match=named):
        build_states([anchor()], pool(**change))


def test_a_round_outside_the_episode_is_refused():
    with pytest.raises(ValueError, match="round"):
        build_states([anchor(round=8)], pool())


def test_a_number_that_is_not_finite_is_refused_by_name():
    scalars = numpy.zeros(10)
    scalars[8] = math.nan
    with pytest.raises(ValueError, match="pool_entropy"):
        State(scalars=scalars)
    with pytest.raises(ValueError, match="hidden state"):
        State(scalars=numpy.zeros(10), hidden=numpy.array([math.inf], numpy.float32))
    with pytest.raises(ValueError, match="10 scalars"):
        State(scalars=numpy.zeros(9))
