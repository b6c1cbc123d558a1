import math

import pytest
import torch
from tests.objectives.test_clipped import make_inputs

from midcourse.objectives.balanced_clipped import BalancedClippedObjective
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective


def test_a_token_over_the_upper_bound_keeps_a_gradient_and_one_under_the_lower_has_none():
    # Ratios 1.5, 1.5, 0.5, 0.5, 1.1; clip 0.2 low and 0.3 high.
    ratios, advantages = [1.5, 1.5, 0.5, 0.5, 1.1], [2.0, -2.0, 2.0, -2.0, 3.0]
    inputs = make_inputs(
        [[math.log(ratio) for ratio in ratios]],
        [[0.0] * 5],
        [advantages],
        weights=[[0.5, 1.0, 1.0, 1.0, 0.8]],
        coefficients=[[0.25, 0.25, 0.5, 0.5, 1.0]],
    )
    output = BalancedClippedObjective(ClippedConfig(clip_low=0.2, clip_high=0.3))(inputs)
    # As PPO: 0.5 * 1.3 * 2, -3, 1, -0.8 * 2, 0.8 * 1.1 * 3.
    expected = -(0.25 * 1.3 + 0.25 * -3.0 + 0.5 * 1.0 + 0.5 * -1.6 + 2.64)
    assert output.loss.item() == pytest.approx(expected, rel=1e-12)
    output.loss.backward()
    # The first: -coefficient * weight * (1 + e_h) * A, where PPO has 0; the others as PPO.
    assert inputs.logprobs_BT.grad.tolist()[0] == pytest.approx([-0.25 * 1.3, 0.75, -0.5, 0.0, -2.64], rel=1e-12)
    assert output.metrics["clip_fraction_high"] == 1.0


def test_the_papers_form_with_a_stopped_gradient_is_the_same():
    generator = torch.Generator().manual_seed(0)
    logprobs, old, advantages = (torch.randn(3, 7, generator=generator).tolist() for _ in range(3))
    inputs = make_inputs(logprobs, old, advantages)
    BalancedClippedObjective(ClippedConfig())(inputs).loss.backward()
    written = make_inputs(logprobs, old, advantages)
    ratio, values = (written.logprobs_BT - written.old_logprobs_BT).exp(), written.advantages_BT
    factor = torch.where((ratio > 1.2) & (values > 0), 1.2 / ratio.detach() * ratio, ratio)
    factor = torch.where((ratio < 0.8) & (values < 0), torch.full_like(ratio, 0.8), factor)
    (-(factor * values).sum()).backward()
    assert torch.allclose(inputs.logprobs_BT.grad, written.logprobs_BT.grad, rtol=1e-10, atol=0)
    assert bool(((ratio > 1.2) & (values > 0)).any())


def test_the_value_is_ppos_to_the_last_bit():
    generator = torch.Generator().manual_seed(1)
    columns = [torch.randn(3, 7, generator=generator).tolist() for _ in range(4)]
    inputs = make_inputs(*columns[:3], reference=columns[3])
    config = ClippedConfig(kl_coefficient=0.1)
    one, two = BalancedClippedObjective(config)(inputs), ClippedObjective(config)(inputs)
    assert one.loss.item() == two.loss.item()
    assert (one.metrics, one.maxima) == (two.metrics, two.maxima)


def test_where_nothing_is_clipped_the_gradient_is_ppos_to_the_last_bit():
    logprobs, old, advantages = [[-1.0, -2.0, -0.5]], [[-1.1, -1.9, -0.5]], [[0.5, -0.5, 0.0]]
    one, two = make_inputs(logprobs, old, advantages), make_inputs(logprobs, old, advantages)
    BalancedClippedObjective(ClippedConfig())(one).loss.backward()
    ClippedObjective(ClippedConfig())(two).loss.backward()
    assert one.logprobs_BT.grad.tolist() == two.logprobs_BT.grad.tolist()


def test_whatever_stands_on_an_untrained_token_changes_nothing():
    bad = math.nan
    inputs = make_inputs(
        [[-0.5, bad, 3.0]],
        [[-1.0, bad, -math.inf]],
        [[1.0, bad, 1.0]],
        weights=[[1.0, bad, bad]],
        coefficients=[[1.0, bad, bad]],
        trained=[[True, False, False]],
    )
    alone = make_inputs([[-0.5]], [[-1.0]], [[1.0]])
    objective = BalancedClippedObjective(ClippedConfig())
    output, expected = objective(inputs), objective(alone)
    output.loss.backward()
    expected.loss.backward()
    assert output.loss.item() == expected.loss.item()
    assert inputs.logprobs_BT.grad.tolist() == [[alone.logprobs_BT.grad.item(), 0.0, 0.0]]
    assert alone.logprobs_BT.grad.item() == pytest.approx(-1.2)
