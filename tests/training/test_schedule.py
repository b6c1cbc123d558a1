"""A method with a schedule in training: objectives change, moments start anew, a resumed run is the same run."""

from dataclasses import replace

import pytest
import torch
from letter_run import train_letters
from training_building import make_group, same_weights, tiny_policy, weights_of

from midcourse.advantages.group import group_advantages
from midcourse.interventions.judge import JudgeConfig
from midcourse.methods.mintrl import MInTRLConfig
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.regression import RegressionConfig, RegressionObjective
from midcourse.objectives.supervised import SupervisedObjective
from midcourse.training.config import TrainingConfig
from midcourse.training.update import Updater

UPDATES = 4


def run(folder, *, updates=UPDATES, resume=False, policy=None, **settings):
    method = MInTRLConfig(
        **{
            "on_policy_rollouts": 2,
            "semi_on_policy_rollouts": 2,
            "chunk_tokens": 6,
            "max_intervention_tokens": 3,
            "intervention_updates": 2,
            "judge": JudgeConfig(played_by="scripted"),
            "regression": RegressionConfig(beta=0.1),
            **settings,
        }
    ).build()
    return train_letters(folder, method, updates=updates, resume=resume, policy=policy)


def test_a_run_reviews_first_and_trains_by_grpo_then(tmp_path):
    notes, _ = run(tmp_path)
    reviewed = [
        update for update in notes.groups if any(m.trajectory.reviews for g in notes.groups[update] for m in g.members)
    ]
    assert reviewed == [1, 2]
    assert [{group.phase for group in notes.groups[update]} for update in notes.groups] == [
        {"intervention"},
        {"intervention"},
        {"plain"},
        {"plain"},
    ]
    assert all("intervention/review/revised" in notes.metrics[update] for update in (1, 2))
    assert notes.metrics[1]["intervention/review/revised"] > 0
    assert notes.metrics[1]["objective/tokens_intervention"] > 0
    assert "objective/residual_max" in notes.metrics[1]
    assert "objective/clip_fraction_low" in notes.metrics[4]


@pytest.mark.slow
def test_a_run_that_is_resumed_where_its_phases_meet_is_the_same_run(tmp_path):
    whole, policy = run(tmp_path / "whole")
    run(tmp_path / "parts", updates=2)
    rest, resumed = run(tmp_path / "parts", resume=True)
    assert same_weights(weights_of(policy.model), weights_of(resumed.model))
    assert {update: whole.metrics[update] for update in rest.metrics} == rest.metrics


@pytest.mark.slow
def test_a_stop_that_was_decided_survives_a_checkpoint(tmp_path):
    bound = {"stop_below_fraction": 0.99, "intervention_updates": 4}
    whole, policy = run(tmp_path / "whole", **bound)
    assert [{group.phase for group in whole.groups[update]} for update in (1, 2)] == [{"intervention"}, {"plain"}]
    run(tmp_path / "parts", updates=1, **bound)
    rest, resumed = run(tmp_path / "parts", resume=True, **bound)
    assert {group.phase for group in rest.groups[2]} == {"plain"}
    assert same_weights(weights_of(policy.model), weights_of(resumed.model))


GROUPS = [make_group([1.0, 0.0, 0.0, 1.0], seed=1)]


def make_updater():
    config = TrainingConfig(learning_rate=1e-2, updates=10)
    return Updater(tiny_policy(dtype=torch.float64), ClippedObjective(ClippedConfig()), config)


def update(updater):
    updater.update(GROUPS, [group_advantages(group.rewards) for group in GROUPS])


def test_moments_start_anew_with_another_phase_and_stay_within_one():
    updater = make_updater()
    regression = RegressionObjective(RegressionConfig())

    def steps():
        return {float(state["step"]) for state in updater.optimizer.state.values()}

    updater.enter("intervention", regression)
    update(updater)
    updater.enter("intervention", regression)
    update(updater)
    assert steps() == {2.0}
    updater.enter("plain", ClippedObjective(ClippedConfig()))
    assert steps() == set()
    update(updater)
    assert steps() == {1.0}
    assert updater.counters.optimizer_steps == 3


def test_after_imitation_the_updates_are_grpos_bit_for_bit():
    taught = make_group([1.0, 1.0], seed=4)
    updater = make_updater()
    updater.enter("supervised", SupervisedObjective())
    updater.update([taught], [[1.0, 1.0]])
    fresh = make_updater()
    fresh.policy.model.load_state_dict(weights_of(updater.policy.model))
    updater.enter("plain", ClippedObjective(ClippedConfig()))
    for each in (updater, fresh):
        update(each)
        update(each)
    assert same_weights(weights_of(updater.policy.model), weights_of(fresh.policy.model))
    assert not same_weights(weights_of(make_updater().policy.model), weights_of(fresh.policy.model))


def test_a_reference_serves_the_phase_that_has_a_kl_term_and_no_other():
    config = TrainingConfig(learning_rate=1e-2, updates=10)
    with_kl = ClippedObjective(ClippedConfig(kl_coefficient=0.5))
    updater = Updater(tiny_policy(dtype=torch.float64), with_kl, config)
    seen = []

    class Watching(RegressionObjective):
        def __call__(self, inputs):
            seen.append(inputs.reference_logprobs_BT)
            return super().__call__(inputs)

    updater.enter("intervention", Watching(RegressionConfig()))
    update(updater)
    assert seen == [None]
    updater.enter("plain", with_kl)
    update(updater)


def test_the_name_of_a_phase_changes_no_step():
    left, right = make_updater(), make_updater()
    right.enter("plain", ClippedObjective(ClippedConfig()))
    update(left)
    update(right)
    assert same_weights(weights_of(left.policy.model), weights_of(right.policy.model))
    assert replace(right.counters, phase="") == left.counters
