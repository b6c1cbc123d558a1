import math
from dataclasses import replace

import pytest
import torch
from training_building import (
    ENVIRONMENT,
    INTERVENTION,
    POLICY,
    PROMPT,
    make_group,
    make_trajectory,
    same_weights,
    tiny_policy,
    weights_of,
)

from midcourse.advantages.group import group_advantages
from midcourse.errors import TrainingError
from midcourse.objectives.base import ObjectiveOutput
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.distillation import DistillationObjective
from midcourse.objectives.regression import RegressionConfig, RegressionObjective
from midcourse.objectives.supervised import SupervisedObjective
from midcourse.training.config import TrainingConfig
from midcourse.training.policy import token_logprobs
from midcourse.training.update import Updater, learning_rate_at
from midcourse.types import Group, Member

GROUPS = [make_group([1.0, 0.0, 0.0, 1.0], seed=1), make_group([0.0, 0.0, 1.0, None], seed=2)]


def make_updater(policy=None, objective=None, **settings):
    settings = {"learning_rate": 1e-2, "updates": 10, **settings}
    return Updater(
        policy or tiny_policy(dtype=torch.float64),
        objective or ClippedObjective(ClippedConfig()),
        TrainingConfig(**settings),
    )


def advantages_of(groups):
    return [group_advantages(group.rewards) for group in groups]


def update(updater, groups=GROUPS):
    return updater.update(groups, advantages_of(groups))


def gradient_of(updater, groups, advantages):
    """The gradient an update applies, read off by an optimizer that moves by it."""
    before = weights_of(updater.policy.model)
    updater.optimizer = torch.optim.SGD(updater.policy.model.parameters(), lr=1.0)
    updater.update(groups, advantages)
    after = weights_of(updater.policy.model)
    return {name: (before[name] - after[name]) / updater.optimizer.param_groups[0]["lr"] for name in before}


def test_an_update_makes_good_rollouts_likelier_and_bad_ones_less_likely():
    updater = make_updater(tiny_policy(dtype=torch.float64))
    trajectories = [member.trajectory for member in GROUPS[0].members]

    def totals():
        found = token_logprobs(
            updater.policy.model,
            [trajectory.token_ids for trajectory in trajectories],
            wanted=[[False, False] + [True] * (len(trajectory.token_ids) - 2) for trajectory in trajectories],
            temperatures=[0.8] * 4,
        )
        return found.logprobs_BT.sum(-1).tolist()

    before = totals()
    update(updater, GROUPS[:1])
    for trajectory, old, new in zip(trajectories, before, totals(), strict=True):
        assert (new > old) == (trajectory.reward == 1.0)


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-sum-norm"])
def test_micro_batches_make_the_gradient_of_one_batch(aggregation):
    constant = 20 if aggregation == "seq-sum-norm" else None

    def gradient(micro_batch_tokens):
        objective = ClippedObjective(ClippedConfig(aggregation=aggregation, normalization_tokens=constant))
        updater = make_updater(objective=objective, micro_batch_tokens=micro_batch_tokens, max_grad_norm=1e9)
        return gradient_of(updater, GROUPS, advantages_of(GROUPS))

    whole, parts = gradient(10_000), gradient(12)
    for name, value in whole.items():
        assert torch.allclose(value, parts[name], rtol=0, atol=1e-12), name


def with_intervention(group, positions):
    """The group with some tokens of each member written by the intervention."""
    members = []
    for member in group.members:
        trajectory = member.trajectory
        sources = [INTERVENTION if index in positions else source for index, source in enumerate(trajectory.sources)]
        members.append(Member(trajectory=replace(trajectory, sources=tuple(sources))))
    return replace(group, members=tuple(members))


@pytest.mark.parametrize("anchor", ["proxy", "const"])
@pytest.mark.parametrize("huber_delta", [None, 0.5])
def test_micro_batches_make_the_gradient_of_one_batch_for_whole_sequences_too(anchor, huber_delta):
    groups = [with_intervention(group, {3, 4}) for group in GROUPS]
    config = RegressionConfig(anchor=anchor, beta=0.1, huber_delta=huber_delta)

    def gradient(micro_batch_tokens):
        objective = RegressionObjective(config)
        updater = make_updater(objective=objective, micro_batch_tokens=micro_batch_tokens, max_grad_norm=1e9)
        return gradient_of(updater, groups, advantages_of(groups))

    whole, parts = gradient(10_000), gradient(12)
    for name, value in whole.items():
        assert torch.allclose(value, parts[name], rtol=0, atol=1e-12), name


def test_the_regressions_gradient_is_that_of_its_equation_written_out():
    group, beta, kappa = with_intervention(GROUPS[0], {3, 4}), 0.1, -0.3
    objective = RegressionObjective(RegressionConfig(anchor="const", kappa=kappa, beta=beta))
    found = gradient_of(make_updater(objective=objective, max_grad_norm=1e9), [group], advantages_of(GROUPS[:1]))
    model = tiny_policy(dtype=torch.float64).model
    loss = 0.0
    for member, advantage in zip(group.members, advantages_of(GROUPS)[0], strict=True):
        ids = torch.tensor([member.trajectory.token_ids])
        chosen = torch.log_softmax(model(ids).logits[0] / 0.8, dim=-1)[1:-1].gather(-1, ids[0, 2:, None])[:, 0]
        anchors = chosen.detach().clone()
        anchors[1:3] = kappa  # tokens 3 and 4; the first that carries loss is token 2
        loss = loss + (beta * (chosen - anchors).sum() - advantage) ** 2 / 4
    loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=0, atol=1e-9), name


def demonstrations():
    """Rollouts of unlike lengths that somebody else wrote, with prompt and environment between."""
    sources = [PROMPT, INTERVENTION, ENVIRONMENT, ENVIRONMENT, INTERVENTION, INTERVENTION]
    rows = [make_trajectory([3, 4, 5, 6, 7, 8][:length], sources=sources[:length], reward=1.0) for length in (2, 6)]
    rows.append(make_trajectory(list(range(3, 14)), sources=[PROMPT] * 2 + [INTERVENTION] * 9, reward=1.0))
    return [
        Group(group_id=f"g{index}", task_id="task", members=tuple(Member(trajectory=row) for row in members))
        for index, members in enumerate([rows[:1], rows[1:]])
    ]


def test_micro_batches_make_the_gradient_of_one_batch_where_tokens_are_imitated():
    groups, ones = demonstrations(), [[1.0], [1.0, 1.0]]

    def gradient(micro_batch_tokens):
        updater = make_updater(
            objective=SupervisedObjective(), micro_batch_tokens=micro_batch_tokens, max_grad_norm=1e9
        )
        return gradient_of(updater, groups, ones)

    whole, parts = gradient(10_000), gradient(6)
    # The mean over 13 tokens, written out: not the mean over three micro-batches of their means.
    model = tiny_policy(dtype=torch.float64).model
    total = torch.zeros((), dtype=torch.float64)
    for trajectory in [member.trajectory for group in groups for member in group.members]:
        ids = torch.tensor([trajectory.token_ids])
        chosen = torch.log_softmax(model(ids).logits[0] / 0.8, dim=-1)[:-1].gather(-1, ids[0, 1:, None])[:, 0]
        total = total - chosen[[source is INTERVENTION for source in trajectory.sources[1:]]].sum()
    (total / 13).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(whole[name], parts[name], rtol=0, atol=1e-12), name
        assert torch.allclose(whole[name], parameter.grad, rtol=0, atol=1e-9), name


def test_the_loss_of_imitation_is_reported_as_a_mean_over_tokens():
    updater = make_updater(objective=SupervisedObjective(), micro_batch_tokens=6)
    metrics = updater.update(demonstrations(), [[1.0], [1.0, 1.0]])
    assert metrics["objective/loss"] == pytest.approx(metrics["objective/negative_log_likelihood"], rel=1e-12)
    assert metrics["objective/tokens_intervention"] == 13.0
    assert metrics["objective/loss"] == pytest.approx(-metrics["objective/logprob_intervention"], rel=1e-12)


def taught(group, seed):
    """The group with what a teacher might think of its tokens."""
    dice = torch.Generator().manual_seed(seed)
    return replace(
        group,
        members=tuple(
            Member(
                trajectory=replace(
                    member.trajectory,
                    teacher_logprobs=tuple(
                        None if logprob is None else -5.0 * float(torch.rand((), generator=dice))
                        for logprob in member.trajectory.behavior_logprobs
                    ),
                )
            )
            for member in group.members
        ),
    )


@pytest.mark.parametrize("advantages", [[0.0, 0.0, 0.0, 0.0], [1.0, -1.0, -1.0, 1.0]])
def test_the_gradient_of_distillation_is_that_of_its_equation_written_out(advantages):
    group, coefficient = taught(GROUPS[0], seed=5), 0.7

    def gradient(micro_batch_tokens):
        objective = DistillationObjective(ClippedConfig(), coefficient=coefficient)
        updater = make_updater(objective=objective, max_grad_norm=1e9, micro_batch_tokens=micro_batch_tokens)
        return gradient_of(updater, [group], [advantages])

    whole, parts = gradient(10_000), gradient(12)
    model = tiny_policy(dtype=torch.float64).model
    loss = 0.0
    for member, advantage in zip(group.members, advantages, strict=True):
        ids = torch.tensor([member.trajectory.token_ids])
        chosen = torch.log_softmax(model(ids).logits[0] / 0.8, dim=-1)[1:-1].gather(-1, ids[0, 2:, None])[:, 0]
        teacher = torch.tensor(member.trajectory.teacher_logprobs[2:], dtype=torch.float64)
        pull = advantage - coefficient * (chosen.detach() - teacher)
        loss = loss - (pull * chosen).mean() / 4
    loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(whole[name], parameter.grad, rtol=0, atol=1e-9), name
        assert torch.allclose(whole[name], parts[name], rtol=0, atol=1e-12), name


def test_a_teachers_numbers_reach_the_objective_only_where_every_row_has_them():
    seen = []

    class Spy(ClippedObjective):
        def __call__(self, inputs):
            seen.append(inputs.teacher_logprobs_BT)
            return super().__call__(inputs)

    mixed = [taught(GROUPS[0], seed=1), GROUPS[1]]
    updater = make_updater(objective=Spy(ClippedConfig()), micro_batch_tokens=10_000)
    update(updater, mixed)
    update(updater, mixed[:1])
    assert seen[0] is None
    assert seen[1].shape == (4, 9)
    assert seen[1][0, :5].tolist() == [0.0, 0.0, *mixed[0].members[2].trajectory.teacher_logprobs[2:5]]


def test_the_gradient_is_that_of_equation_2_written_out():
    updater = make_updater(max_grad_norm=1e9)
    found = gradient_of(updater, GROUPS[:1], advantages_of(GROUPS[:1]))
    model = tiny_policy(dtype=torch.float64).model
    loss = 0.0
    for member, advantage in zip(GROUPS[0].members, advantages_of(GROUPS)[0], strict=True):
        ids = torch.tensor([member.trajectory.token_ids])
        logprobs = torch.log_softmax(model(ids).logits[0] / 0.8, dim=-1)
        chosen = logprobs[1:-1].gather(-1, ids[0, 2:, None])
        loss = loss - advantage * chosen.mean() / 4
    loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=0, atol=1e-9), name


def test_a_separate_pass_for_the_old_logprobs_gives_the_same_bits():
    class TwoPasses(Updater):
        def _step(self, part, old, tally, *, first_pass):
            assert old is None
            super()._step(part, [self._logprobs(rows).logprobs_BT for rows in part], tally, first_pass=first_pass)

    single, double = (
        kind(tiny_policy(), ClippedObjective(ClippedConfig()), TrainingConfig(learning_rate=1e-2))
        for kind in (Updater, TwoPasses)
    )
    assert update(single) == update(double)
    assert same_weights(weights_of(single.policy.model), weights_of(double.policy.model))


def test_more_steps_measure_the_ratio_against_the_rollout_weights():
    metrics = update(make_updater(num_epochs=2))
    assert metrics["objective/optimizer_steps"] == 2
    assert metrics["objective/ratio_max"] > 1.01
    assert update(make_updater())["objective/ratio_max"] == 1.0


def test_minibatches_take_a_step_each():
    updater = make_updater(num_minibatches=2)
    assert update(updater)["objective/optimizer_steps"] == 2
    assert (updater.counters.updates_taken, updater.counters.optimizer_steps) == (1, 2)


def test_without_signal_weights_moments_and_schedule_stay():
    updater = make_updater(schedule="linear")
    update(updater)
    before = weights_of(updater.policy.model)
    moments = {key: value.clone() for state in updater.optimizer.state.values() for key, value in state.items()}
    counters = updater.counters
    metrics = update(updater, [make_group([0.0, 0.0]), make_group([None, 1.0])])
    assert same_weights(before, weights_of(updater.policy.model))
    after = {key: value for state in updater.optimizer.state.values() for key, value in state.items()}
    assert same_weights(moments, after)
    assert updater.counters == counters
    assert metrics["objective/skipped_no_signal"] == 1.0
    assert metrics["objective/groups_without_signal"] == 2.0
    assert metrics["objective/members_failed"] == 1.0


def test_a_group_without_signal_changes_no_bit_of_the_others():
    alone, beside = make_updater(), make_updater()
    update(alone, GROUPS)
    update(beside, [*GROUPS, make_group([1.0, 1.0, 1.0], seed=9)])
    assert same_weights(weights_of(alone.policy.model), weights_of(beside.policy.model))


def test_prompt_and_environment_tokens_train_nothing():
    sources = [PROMPT, POLICY, ENVIRONMENT, ENVIRONMENT, POLICY]
    groups = [
        Group(
            group_id="g",
            task_id="task",
            members=tuple(
                Member(trajectory=make_trajectory(ids, sources=sources, reward=reward))
                for ids, reward in (([3, 4, 5, 6, 7], 1.0), ([3, 8, 5, 6, 9], 0.0))
            ),
        )
    ]
    seen = []

    class Spy(ClippedObjective):
        def __call__(self, inputs):
            inputs.logprobs_BT.retain_grad()
            seen.append(inputs)
            return super().__call__(inputs)

    updater = make_updater(objective=Spy(ClippedConfig()))
    update(updater, groups)
    gradients = seen[0].logprobs_BT.grad
    assert seen[0].trained_BT.tolist() == [[False, True, False, False, True]] * 2
    assert (gradients[:, [0, 2, 3]] == 0).all()
    assert (gradients[:, [1, 4]] != 0).all()


class BrokenObjective(ClippedObjective):
    """Not a number while `broken`."""

    broken = True

    def __call__(self, inputs):
        output = super().__call__(inputs)
        return ObjectiveOutput(loss=output.loss * (math.nan if self.broken else 1.0), metrics=output.metrics)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted_and_ends_the_run_when_it_stays():
    objective = BrokenObjective(ClippedConfig())
    updater = make_updater(objective=objective, max_nonfinite_steps=2)
    before = weights_of(updater.policy.model)
    assert update(updater)["objective/skipped_nonfinite"] == 1.0
    assert same_weights(before, weights_of(updater.policy.model))
    objective.broken = False
    update(updater)
    assert updater.counters.nonfinite_in_a_row == 0
    objective.broken = True
    update(updater)
    with pytest.raises(TrainingError, match="2 steps in a row"):
        update(updater)


def test_mismatch_compares_engine_and_trainer_on_tokens_of_the_policy_alone():
    policy = tiny_policy(dtype=torch.float64)
    sources = [PROMPT, PROMPT, POLICY, INTERVENTION]
    trajectory = make_trajectory([3, 4, 5, 6], sources=sources, reward=1.0)
    exact = (
        token_logprobs(policy.model, [trajectory.token_ids], wanted=[[False, False, True, True]], temperatures=[0.8])
        .logprobs_BT[0]
        .tolist()
    )
    trajectory = replace(trajectory, behavior_logprobs=(None, None, exact[2] - 0.1, -50.0))
    groups = [Group(group_id="g", task_id="task", members=(Member(trajectory=trajectory),))]
    metrics = make_updater(policy).update(groups, [[1.0]])
    assert metrics["mismatch/max_abs_logprob"] == pytest.approx(0.1)
    assert metrics["mismatch/mean_abs_logprob"] == pytest.approx(0.1)
    assert metrics["mismatch/kl"] == pytest.approx(math.exp(0.1) - 1 - 0.1)
    assert metrics["objective/tokens_intervention"] == 1.0


def test_the_importance_cap_weighs_policy_tokens_by_the_truncated_ratio_and_interventions_by_one():
    policy = tiny_policy(dtype=torch.float64)
    sources = [PROMPT, POLICY, POLICY, INTERVENTION]
    trajectory = make_trajectory([3, 4, 5, 6], sources=sources, weights=[1.0, 1.0, 1.0, 0.9], reward=1.0)
    exact = (
        token_logprobs(policy.model, [trajectory.token_ids], wanted=[[False, True, True, True]], temperatures=[0.8])
        .logprobs_BT[0]
        .tolist()
    )
    behavior = (None, exact[1] + 0.2, exact[2] - 5.0, exact[3] - 5.0)
    trajectory = replace(trajectory, behavior_logprobs=behavior)
    seen = []

    class Spy(ClippedObjective):
        def __call__(self, inputs):
            seen.append(inputs.weights_BT.tolist()[0])
            return super().__call__(inputs)

    updater = make_updater(policy, Spy(ClippedConfig()), importance_cap=2.0)
    groups = [Group(group_id="g", task_id="task", members=(Member(trajectory=trajectory),))]
    metrics = updater.update(groups, [[1.0]])
    assert seen[0] == pytest.approx([1.0, math.exp(-0.2), 2.0, 0.9])
    assert metrics["mismatch/capped_fraction"] == 0.5


def test_the_reference_is_the_policy_at_the_start_and_pulls_back_to_it():
    updater = make_updater(objective=ClippedObjective(ClippedConfig(kl_coefficient=0.5)))
    start = weights_of(updater.policy.model)
    assert update(updater)["objective/reference_kl"] == 0.0
    assert update(updater)["objective/reference_kl"] > 0.0
    assert same_weights(start, weights_of(updater.reference))


def test_bf16_autocast_trains_float32_weights():
    updater = make_updater(tiny_policy(bf16_autocast=True))
    before = weights_of(updater.policy.model)
    metrics = update(updater)
    assert math.isfinite(metrics["objective/loss"])
    assert not same_weights(before, weights_of(updater.policy.model))
    assert {value.dtype for value in before.values()} == {torch.float32}


def test_schedules_by_hand():
    def rates(**settings):
        config = TrainingConfig(updates=6, learning_rate=0.5, **settings)
        return [learning_rate_at(taken, config) for taken in range(6)]

    assert rates() == [0.5] * 6
    assert rates(schedule="linear", warmup_updates=2) == [0.25, 0.5, 0.5, 0.375, 0.25, 0.125]
    assert rates(schedule="cosine", warmup_updates=2) == pytest.approx(
        [0.25, 0.5, 0.5, 0.25 * (1 + math.sqrt(0.5)), 0.25, 0.25 * (1 - math.sqrt(0.5))]
    )
