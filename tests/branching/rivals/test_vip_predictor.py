import math

import numpy
import pytest

from midcourse.branching.rivals.vip_predictor import VIPPredictor, VIPPredictorConfig, median_distance
from midcourse.errors import CheckpointError

NOISE = 1e-4
LINE = [[0.0], [1.0], [3.0]]


def logit(probability):
    return math.log(probability / (1 - probability))


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def test_before_anything_was_seen_the_prior_is_predicted():
    predictor = VIPPredictor(LINE, VIPPredictorConfig())
    assert predictor.predict([0, 2]) == pytest.approx([sigmoid(-1)] * 2, rel=1e-12)
    assert sigmoid(-1) == pytest.approx(0.2689, abs=5e-5)


def test_the_length_scale_is_the_median_distance():
    assert VIPPredictor(LINE, VIPPredictorConfig()).length_scale == pytest.approx(2.0)  # of 1, 2, 3
    assert median_distance(numpy.array([[1.0, 2.0]] * 4)) == 1.0
    assert median_distance(numpy.array([[0.0], [0.0], [5.0]])) == pytest.approx(5.0)


def test_one_observation_by_hand():
    predictor = VIPPredictor(LINE, VIPPredictorConfig(length_scale=1.0))
    predictor.observe([0], [0.75])
    step = (math.log(3) + 1) / (1 + NOISE)
    expected = [sigmoid(-1 + step), sigmoid(-1 + math.exp(-0.5) * step), sigmoid(-1 + math.exp(-4.5) * step)]
    assert predictor.predict([0, 1, 2]) == pytest.approx(expected, rel=1e-12)


def test_two_observations_by_hand():
    predictor = VIPPredictor(LINE, VIPPredictorConfig(length_scale=1.0, prior_mean=0.0))
    predictor.observe([1, 0], [0.8, 0.5])
    # (K + noise I)^-1 (logit 0.8, 0) with K = [[1, k], [k, 1]]
    k, diagonal, seen = math.exp(-0.5), 1 + NOISE, math.log(4)
    determinant = diagonal**2 - k**2
    one, two = diagonal * seen / determinant, -k * seen / determinant
    assert predictor.predict([2])[0] == pytest.approx(sigmoid(math.exp(-2) * one + math.exp(-4.5) * two), rel=1e-10)


def test_what_was_seen_last_is_predicted_and_the_policy_may_change():
    predictor = VIPPredictor(LINE, VIPPredictorConfig())
    for reward in (0.25, 0.9, 0.5):
        predictor.observe([1], [reward])
        assert predictor.predict([1])[0] == pytest.approx(reward, abs=1e-3)


def test_a_task_far_away_learns_nothing():
    predictor = VIPPredictor([[0.0], [100.0]], VIPPredictorConfig(length_scale=1.0))
    predictor.observe([0], [0.9])
    assert predictor.predict([1])[0] == sigmoid(-1)


@pytest.mark.parametrize(
    "extreme",
    [{"observation_clip": 1e-12}, {"observation_noise": 1e-12}, {"length_scale": 1e-6}, {"length_scale": 1e6}],
)
def test_the_least_and_greatest_settings_leave_every_prediction_a_number(extreme):
    predictor = VIPPredictor([*LINE, LINE[0]], VIPPredictorConfig(**extreme))
    for _ in range(3):
        predictor.observe([0, 1, 3], [0.0, 1.0, 1.0])
    assert numpy.isfinite(predictor.predict(range(4))).all()


def test_rewards_of_zero_and_one_are_clipped():
    predictor = VIPPredictor(LINE, VIPPredictorConfig(observation_clip=0.01, length_scale=0.1))
    predictor.observe([0, 1], [0.0, 1.0])
    assert predictor.predict([0, 1]) == pytest.approx([0.01, 0.99], abs=1e-4)


def test_the_order_within_a_batch_does_not_matter():
    one, two = (VIPPredictor(LINE, VIPPredictorConfig()) for _ in range(2))
    one.observe([0, 2], [0.1, 0.6])
    two.observe([2, 0], [0.6, 0.1])
    assert one.predict([0, 1, 2]) == pytest.approx(two.predict([0, 1, 2]), rel=1e-12)


def test_tasks_that_are_the_same_share_what_was_seen():
    predictor = VIPPredictor([[1.0], [1.0], [2.0]], VIPPredictorConfig(prior_mean=0.0))
    predictor.observe([0, 1], [0.6, 0.8])
    mean = (logit(0.6) + logit(0.8)) / 2
    assert predictor.predict([0, 1]) == pytest.approx([sigmoid(mean)] * 2, abs=1e-4)


def test_a_resumed_predictor_goes_on_bit_for_bit():
    embeddings = numpy.random.default_rng(0).normal(size=(6, 3))
    one, two = (VIPPredictor(embeddings, VIPPredictorConfig()) for _ in range(2))
    one.observe([0, 3], [0.2, 0.9])
    two.load_state_dict(one.state_dict())
    for each in (one, two):
        each.observe([1], [0.4])
    assert one.predict(range(6)).tolist() == two.predict(range(6)).tolist()


def test_a_state_of_other_tasks_is_refused():
    state = VIPPredictor(LINE, VIPPredictorConfig()).state_dict()
    with pytest.raises(CheckpointError, match="other tasks"):
        VIPPredictor(LINE[::-1], VIPPredictorConfig()).load_state_dict(state)
    with pytest.raises(CheckpointError, match="expected logits"):
        VIPPredictor([[1.0]], VIPPredictorConfig()).load_state_dict(state)


@pytest.mark.parametrize(("tasks", "rewards"), [([0], []), ([0, 0], [0.1, 0.2]), ([0], [1.5]), ([0], [math.nan])])
def test_what_cannot_be_observed_is_refused(tasks, rewards):
    predictor = VIPPredictor(LINE, VIPPredictorConfig())
    with pytest.raises(ValueError, match=r"tasks must be seen once|mean rewards must lie"):
        predictor.observe(tasks, rewards)
    assert predictor.predict([0])[0] == sigmoid(-1)


def test_what_is_no_table_of_embeddings_is_refused():
    for embeddings in ([1.0], [[math.nan]], numpy.zeros((0, 3))):
        with pytest.raises(ValueError, match="embeddings"):
            VIPPredictor(embeddings, VIPPredictorConfig())
