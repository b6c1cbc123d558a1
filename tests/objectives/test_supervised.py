import math

import pytest
import torch

from midcourse.objectives.base import ObjectiveInputs
from midcourse.objectives.supervised import SupervisedObjective

NAN = math.nan


def make_inputs(logprobs, *, coefficient, trained=None, weights=None, advantage=1.0):
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    ones_BT = torch.ones_like(logprobs).detach()
    return ObjectiveInputs(
        logprobs_BT=logprobs,
        old_logprobs_BT=logprobs.detach() - 7.0,
        advantages_BT=ones_BT * advantage,
        weights_BT=ones_BT if weights is None else torch.tensor(weights, dtype=torch.float64),
        coefficients_BT=ones_BT * coefficient,
        trained_BT=ones_BT.bool() if trained is None else torch.tensor(trained),
    )


def test_the_loss_is_the_mean_negative_log_likelihood():
    inputs = make_inputs([[-0.5, -1.5], [-2.0, -4.0]], coefficient=0.25)
    output = SupervisedObjective()(inputs)
    output.loss.backward()
    assert output.loss.item() == 2.0  # 8 nats over 4 tokens
    assert inputs.logprobs_BT.grad.tolist() == [[-0.25, -0.25], [-0.25, -0.25]]
    assert output.metrics["negative_log_likelihood"] == 8.0


def test_a_token_that_carries_no_loss_gets_no_gradient_whatever_it_holds():
    inputs = make_inputs([[NAN, -1.5, -9.0]], coefficient=1.0, trained=[[False, True, False]])
    output = SupervisedObjective()(inputs)
    output.loss.backward()
    assert output.loss.item() == 1.5
    assert inputs.logprobs_BT.grad.tolist() == [[0.0, -1.0, 0.0]]
    assert output.metrics["negative_log_likelihood"] == 1.5


def test_a_weight_multiplies_its_token():
    inputs = make_inputs([[-1.0, -1.0]], coefficient=0.5, weights=[[0.5, 1.0]])
    SupervisedObjective()(inputs).loss.backward()
    assert inputs.logprobs_BT.grad.tolist() == [[-0.25, -0.5]]


@pytest.mark.parametrize("advantage", [1.0, 0.3, -2.0])
def test_neither_advantages_nor_old_log_probabilities_are_read(advantage):
    inputs = make_inputs([[-1.0, -3.0]], coefficient=0.5, advantage=advantage)
    assert SupervisedObjective()(inputs).loss.item() == 2.0
