"""Methods with a teacher in training: what they are after goes down, and a resumed run is the same run."""

import pytest
from letter_run import EvenWorld, letter_policy, train_letters
from training_building import same_weights, weights_of

from midcourse.interventions.judge import Continuation
from midcourse.interventions.teacher import DemonstratorConfig, ScorerConfig
from midcourse.methods.opd import OPDConfig
from midcourse.methods.sft_grpo import SFTGRPOConfig


class SayWorld(EvenWorld):
    """Its script answers `abab`, in every turn."""

    def judge_script(self):
        return SayScript()


class SayScript:
    def correct(self, task, *, accepted):
        return Continuation(text="abab"[len(accepted) :], is_ended=True)


def distil(folder, *, updates, teacher, resume=False, policy=None, environment=None, **settings):
    config = OPDConfig(group_size=4, teacher=ScorerConfig(is_privileged=False), **settings)
    before = weights_of(teacher.model)
    notes, policy = train_letters(
        folder,
        config.build(),
        updates=updates,
        resume=resume,
        policy=policy,
        teacher=teacher,
        environment=environment,
    )
    assert same_weights(weights_of(teacher.model), before)
    return notes, policy


def imitate(folder, *, updates, resume=False, supervised_updates=12):
    config = SFTGRPOConfig(
        group_size=4,
        demonstrations=1,
        supervised_updates=supervised_updates,
        teacher=DemonstratorConfig(played_by="scripted"),
    )
    return train_letters(folder, config.build(), updates=updates, resume=resume, environment=SayWorld(2))


def test_distillation_brings_the_policy_to_the_teacher_where_rewards_say_nothing(tmp_path):
    _, teacher = imitate(tmp_path / "teacher", updates=12)
    _, pupil = imitate(tmp_path / "pupil", updates=6)
    notes, _ = distil(tmp_path / "run", updates=10, teacher=teacher, policy=pupil)
    divergence = [notes.metrics[update]["objective/reverse_kl"] for update in sorted(notes.metrics)]
    assert sum(divergence[-3:]) < 0.5 * sum(divergence[:3])
    for metrics in notes.metrics.values():
        assert metrics["objective/groups_without_signal"] == 0.0
        assert metrics["objective/rows"] == metrics["intervention/teacher_scored"] == 12.0
        assert metrics["objective/ratio_max"] == 1.0
        assert metrics["rollout/scored_tokens/teacher"] == metrics["tokens/policy"]
        difference = metrics["objective/logprob_policy"] - metrics["objective/teacher_logprob"]
        assert metrics["objective/reverse_kl"] == pytest.approx(difference, abs=1e-5)


def test_imitation_makes_the_teachers_words_likelier_and_grpo_follows(tmp_path):
    notes, _ = imitate(tmp_path, updates=14)
    likelihood = [notes.metrics[update]["objective/negative_log_likelihood"] for update in range(1, 13)]
    assert likelihood[0] > 4.0  # a uniform guess among 128 letters is 4.85
    assert likelihood[-1] < 0.5 * likelihood[0]
    phases = [{group.phase for group in notes.groups[update]} for update in sorted(notes.groups)]
    assert phases == [{"supervised"}] * 12 + [{"plain"}] * 2
    assert notes.metrics[1]["intervention/demonstrations_imitated"] == 3.0
    assert notes.metrics[1]["tokens/intervention"] == 3 * 10  # two turns of `abab;`
    assert notes.metrics[13]["tokens/intervention"] == 0.0
    assert notes.metrics[13]["tokens/policy"] > 0.0


@pytest.mark.slow
def test_a_distillation_that_is_resumed_is_the_same_run(tmp_path):
    settings = {"mode": "with_grpo", "environment": EvenWorld(2), "teacher": letter_policy(seed=1)}
    whole, policy = distil(tmp_path / "whole", updates=4, **settings)
    distil(tmp_path / "parts", updates=2, **settings)
    rest, resumed = distil(tmp_path / "parts", updates=4, resume=True, **settings)
    assert same_weights(weights_of(policy.model), weights_of(resumed.model))
    assert {update: whole.metrics[update] for update in rest.metrics} == rest.metrics


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_an_imitation_that_is_resumed_anywhere_is_the_same_run(tmp_path, cut):
    whole, policy = imitate(tmp_path / "whole", updates=4, supervised_updates=2)
    imitate(tmp_path / "parts", updates=cut, supervised_updates=2)
    rest, resumed = imitate(tmp_path / "parts", updates=4, supervised_updates=2, resume=True)
    assert same_weights(weights_of(policy.model), weights_of(resumed.model))
    assert {update: whole.metrics[update] for update in rest.metrics} == rest.metrics
