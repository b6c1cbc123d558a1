import math

import pytest
import torch

from midcourse.objectives.base import ObjectiveInputs
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.distillation import DistillationObjective

NAN = math.nan


def make_inputs(logprobs, old, advantages, teacher, *, coefficients=None, trained=None, weights=None):
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)

    def fill(values, default):
        return torch.full_like(logprobs, default) if values is None else torch.tensor(values, dtype=torch.float64)

    return ObjectiveInputs(
        logprobs_BT=logprobs,
        old_logprobs_BT=fill(old, 0.0),
        advantages_BT=fill(advantages, 0.0).detach(),
        weights_BT=fill(weights, 1.0).detach(),
        coefficients_BT=fill(coefficients, 1.0).detach(),
        trained_BT=torch.ones_like(logprobs, dtype=torch.bool) if trained is None else torch.tensor(trained),
        teacher_logprobs_BT=None if teacher is None else torch.tensor(teacher, dtype=torch.float64),
    )


def gradient(inputs, *, coefficient=1.0, **settings):
    output = DistillationObjective(ClippedConfig(**settings), coefficient=coefficient)(inputs)
    output.loss.backward()
    return output, inputs.logprobs_BT.grad.tolist()


def test_at_the_rollout_weights_a_token_is_pulled_by_its_log_ratio_to_the_teacher():
    same = [[-1.0, -2.0]]
    # A_t = log pi_T - log pi: -0.5 + 1 and -5 + 2; the gradient is -coefficient * A_t
    output, found = gradient(make_inputs(same, same, [[0.0, 0.0]], [[-0.5, -5.0]], coefficients=[[0.5, 0.25]]))
    assert found == [pytest.approx([-0.5 * 0.5, 0.25 * 3.0], rel=1e-12)]
    assert output.loss.item() == pytest.approx(-(0.5 * 0.5 - 0.25 * 3.0), rel=1e-12)
    assert output.metrics["reverse_kl"] == pytest.approx(-0.5 + 3.0)
    assert output.metrics["teacher_logprob"] == pytest.approx(-5.5)
    assert output.metrics["ratio_mean"] == 2.0


def test_folded_into_grpo_both_advantages_add_up():
    same = [[-1.0, -2.0]]
    # A_t = 1.5 + 0.2 * (0.5) and 1.5 + 0.2 * (-3)
    _, found = gradient(make_inputs(same, same, [[1.5, 1.5]], [[-0.5, -5.0]]), coefficient=0.2)
    assert found == [pytest.approx([-1.6, -0.9], rel=1e-12)]


def test_the_clip_sees_the_sign_of_the_whole_advantage():
    # Ratio 2 on both tokens. A_t = 1 - 1.5 < 0: unclipped. A_t = 1 + 1 > 0: clipped at 1.2, no gradient.
    old = [[-2.0, -2.0]]
    now = [[-2.0 + math.log(2), -2.0 + math.log(2)]]
    output, found = gradient(make_inputs(now, old, [[1.0, 1.0]], [[-3.5, -1.0]]))
    assert found == [pytest.approx([2 * 0.5, 0.0], rel=1e-12)]
    assert output.loss.item() == pytest.approx(-(2 * -0.5 + 1.2 * 2.0), rel=1e-12)
    assert output.metrics["clip_fraction_high"] == 1.0


def test_a_teacher_who_agrees_changes_no_bit_of_grpo():
    logprobs, old, advantages = [[-0.7, -1.1, -0.2]], [[-1.0, -0.9, -0.2]], [[0.5, 0.5, 0.5]]
    inputs = make_inputs(logprobs, old, advantages, old)
    output, found = gradient(inputs)
    plain = make_inputs(logprobs, old, advantages, None)
    expected = ClippedObjective(ClippedConfig())(plain)
    expected.loss.backward()
    assert output.loss.item() == expected.loss.item()
    assert found == plain.logprobs_BT.grad.tolist()
    assert output.metrics["reverse_kl"] == 0.0


def test_in_expectation_the_gradient_is_that_of_the_reverse_kl_divergence():
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.tensor([1.0, 0.0, -0.5, 0.2], dtype=torch.float64), dim=-1)
    policy = torch.log_softmax(logits, dim=-1)
    divergence = (policy.exp() * (policy - teacher)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    # Every token of the vocabulary as a row of its own, weighted by how often the policy draws it.
    blank_BT = torch.zeros(4, 1, dtype=torch.float64)
    output = DistillationObjective(ClippedConfig(), coefficient=1.0)(
        ObjectiveInputs(
            logprobs_BT=policy[:, None],
            old_logprobs_BT=policy[:, None].detach(),
            advantages_BT=blank_BT,
            weights_BT=blank_BT + 1.0,
            coefficients_BT=policy[:, None].detach().exp(),
            trained_BT=torch.ones(4, 1, dtype=torch.bool),
            teacher_logprobs_BT=teacher[:, None],
        )
    )
    (found,) = torch.autograd.grad(output.loss, logits)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert expected.abs().max() > 0.05


def test_the_old_log_probabilities_carry_no_gradient_into_the_advantage():
    inputs = make_inputs([[-1.0]], [[-1.0]], [[0.0]], [[-3.0]])
    shared = ObjectiveInputs(
        logprobs_BT=inputs.logprobs_BT,
        old_logprobs_BT=inputs.logprobs_BT,  # a caller's mistake must not turn the estimate into a loss
        advantages_BT=inputs.advantages_BT,
        weights_BT=inputs.weights_BT,
        coefficients_BT=inputs.coefficients_BT,
        trained_BT=inputs.trained_BT,
        teacher_logprobs_BT=inputs.teacher_logprobs_BT,
    )
    output = DistillationObjective(ClippedConfig(), coefficient=1.0)(shared)
    assert output.loss.item() == pytest.approx(2.0)


def test_whatever_stands_on_an_untrained_token_changes_nothing():
    inputs = make_inputs(
        [[NAN, -1.0, -0.5]],
        [[NAN, -1.1, math.inf]],
        [[NAN, 1.0, NAN]],
        [[NAN, -2.0, -math.inf]],
        trained=[[False, True, False]],
    )
    alone = make_inputs([[-1.0]], [[-1.1]], [[1.0]], [[-2.0]])
    output, found = gradient(inputs)
    expected, (gradients,) = gradient(alone)
    assert output.loss.item() == expected.loss.item()
    assert found == [[0.0, gradients[0], 0.0]]
    assert output.metrics == expected.metrics


def test_rows_that_no_teacher_scored_are_refused():
    with pytest.raises(ValueError, match="teacher_logprobs_BT"):
        gradient(make_inputs([[-1.0]], [[-1.0]], [[1.0]], None))
