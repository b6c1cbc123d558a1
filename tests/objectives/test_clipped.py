import math

import pytest
import torch
from pydantic import ValidationError

from midcourse.objectives.base import ObjectiveInputs
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.kl import k3_divergence


def make_inputs(logprobs, old, advantages, *, weights=None, coefficients=None, trained=None, reference=None):
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)

    def fill(values, default):
        return torch.full_like(logprobs, default) if values is None else torch.tensor(values, dtype=torch.float64)

    return ObjectiveInputs(
        logprobs_BT=logprobs,
        old_logprobs_BT=fill(old, 0.0),
        advantages_BT=fill(advantages, 1.0),
        weights_BT=fill(weights, 1.0).detach(),
        coefficients_BT=fill(coefficients, 1.0).detach(),
        trained_BT=torch.ones_like(logprobs, dtype=torch.bool) if trained is None else torch.tensor(trained),
        reference_logprobs_BT=None if reference is None else fill(reference, 0.0),
    )


def test_equation_7_by_hand():
    # Ratios 1.5, 1.5, 0.5, 0.5, 1; clip 0.2 low and 0.3 high.
    ratios, advantages = [1.5, 1.5, 0.5, 0.5, 1.0], [2.0, -2.0, 2.0, -2.0, 3.0]
    inputs = make_inputs(
        [[math.log(ratio) for ratio in ratios]],
        [[0.0] * 5],
        [advantages],
        weights=[[1.0, 1.0, 1.0, 1.0, 0.8]],
        coefficients=[[0.25, 0.25, 0.5, 0.5, 1.0]],
    )
    output = ClippedObjective(ClippedConfig(clip_low=0.2, clip_high=0.3))(inputs)
    # min terms: 2.6 (clipped), -3, 1, -1.6 (clipped), 3 * 0.8
    expected = -(0.25 * 2.6 + 0.25 * -3.0 + 0.5 * 1.0 + 0.5 * -1.6 + 2.4)
    assert output.loss.item() == pytest.approx(expected, rel=1e-12)
    output.loss.backward()
    # Unclipped tokens: -coefficient * weight * ratio * A; clipped ones nothing.
    assert inputs.logprobs_BT.grad.tolist()[0] == pytest.approx([0.0, 0.75, -0.5, 0.0, -2.4], rel=1e-12)
    assert output.metrics["clip_fraction_low"] == 1.0
    assert output.metrics["clip_fraction_high"] == 1.0
    assert output.metrics["ratio_mean"] == pytest.approx(5.0)
    assert output.maxima["ratio_max"] == pytest.approx(1.5)


def test_at_the_old_weights_the_gradient_is_that_of_reinforce():
    inputs = make_inputs([[-1.0, -2.0]], [[-1.0, -2.0]], [[0.5, -0.5]], coefficients=[[0.5, 0.5]])
    output = ClippedObjective(ClippedConfig())(inputs)
    output.loss.backward()
    assert inputs.logprobs_BT.grad.tolist() == [[-0.25, 0.25]]
    assert output.metrics["approximate_kl"] == 0.0


def test_weights_of_one_change_no_bit():
    generator = torch.Generator().manual_seed(0)
    logprobs, old, advantages = (torch.randn(3, 7, generator=generator).tolist() for _ in range(3))
    inputs = make_inputs(logprobs, old, advantages)
    ratio = (inputs.logprobs_BT - inputs.old_logprobs_BT).exp()
    plain = torch.minimum(ratio * inputs.advantages_BT, ratio.clamp(0.8, 1.2) * inputs.advantages_BT)
    assert ClippedObjective(ClippedConfig())(inputs).loss.item() == -plain.sum().item()


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
def test_whatever_stands_on_an_untrained_token_changes_nothing(kl_coefficient: float):
    objective = ClippedObjective(ClippedConfig(kl_coefficient=kl_coefficient))
    bad = math.nan
    inputs = make_inputs(
        [[-1.0, bad, -0.5]],
        [[-1.1, bad, math.inf]],
        [[1.0, bad, bad]],
        weights=[[1.0, bad, bad]],
        coefficients=[[1.0, bad, bad]],
        trained=[[True, False, False]],
        reference=[[-1.2, bad, bad]],
    )
    alone = make_inputs([[-1.0]], [[-1.1]], [[1.0]], reference=[[-1.2]])
    output, expected = objective(inputs), objective(alone)
    output.loss.backward()
    expected.loss.backward()
    assert output.loss.item() == expected.loss.item()
    assert inputs.logprobs_BT.grad.tolist() == [[alone.logprobs_BT.grad.item(), 0.0, 0.0]]
    assert output.metrics == expected.metrics


def test_micro_batches_add_up_to_the_batch():
    generator = torch.Generator().manual_seed(1)
    columns = [torch.randn(4, 6, generator=generator).tolist() for _ in range(4)]
    objective = ClippedObjective(ClippedConfig(kl_coefficient=0.2))
    whole = make_inputs(*columns[:3], reference=columns[3])
    parts = [make_inputs(*(c[i : i + 2] for c in columns[:3]), reference=columns[3][i : i + 2]) for i in (0, 2)]
    outputs = [objective(part) for part in parts]
    output = objective(whole)
    for each in (output, *outputs):
        each.loss.backward()
    assert sum(each.loss.item() for each in outputs) == pytest.approx(output.loss.item(), abs=1e-12)
    gradients = torch.cat([part.logprobs_BT.grad for part in parts])
    assert torch.allclose(gradients, whole.logprobs_BT.grad, rtol=0, atol=1e-12)
    for name, value in output.metrics.items():
        assert sum(each.metrics[name] for each in outputs) == pytest.approx(value, abs=1e-12)


def test_k3_by_hand_and_its_gradient():
    logprobs = torch.tensor([[-1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[-1.0 + math.log(2), -1.0]], dtype=torch.float64)
    divergence = k3_divergence(logprobs, reference)
    assert divergence.tolist()[0] == pytest.approx([2 - math.log(2) - 1, 0.0])
    divergence.sum().backward()
    assert logprobs.grad.tolist()[0] == pytest.approx([1 - 2.0, 0.0])  # 1 - exp(reference - policy)


def test_a_divergence_without_a_reference_is_refused():
    with pytest.raises(ValueError, match="reference"):
        ClippedObjective(ClippedConfig(kl_coefficient=0.1))(make_inputs([[-1.0]], [[-1.0]], [[1.0]]))


def test_a_length_without_its_aggregation_is_refused():
    with pytest.raises(ValidationError, match="normalization_tokens"):
        ClippedConfig(normalization_tokens=10)
    with pytest.raises(ValidationError, match="normalization_tokens"):
        ClippedConfig(aggregation="seq-sum-norm")


def test_an_infinite_pull_to_the_reference_is_refused():
    with pytest.raises(ValidationError, match="finite"):
        ClippedConfig(kl_coefficient=float("inf"))
