import math

import pytest
import torch
from pydantic import ValidationError

from midcourse.objectives.base import ObjectiveInputs
from midcourse.objectives.regression import RegressionConfig, RegressionObjective

NAN = math.nan


def make_inputs(logprobs, old, advantages, *, trained=None, intervention=None, coefficients=None, weights=None):
    """Rows of log-probabilities, an advantage and a coefficient a row."""
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    blank = torch.zeros_like(logprobs).detach()
    ones = blank + 1.0
    per_row = [1.0 / len(advantages)] * len(advantages) if coefficients is None else coefficients
    return ObjectiveInputs(
        logprobs_BT=logprobs,
        old_logprobs_BT=torch.tensor(old, dtype=torch.float64),
        advantages_BT=blank + torch.tensor(advantages, dtype=torch.float64)[:, None],
        weights_BT=ones if weights is None else torch.tensor(weights, dtype=torch.float64),
        coefficients_BT=blank + torch.tensor(per_row, dtype=torch.float64)[:, None],
        trained_BT=ones.bool() if trained is None else torch.tensor(trained),
        intervention_BT=None if intervention is None else torch.tensor(intervention),
    )


def gradient(inputs, **settings):
    output = RegressionObjective(RegressionConfig(**settings))(inputs)
    output.loss.backward()
    return output, inputs.logprobs_BT.grad.tolist()


def test_the_loss_by_hand():
    # Row 1: log-ratio 0.3 - 0.1 = 0.2, residual 0.5 * 0.2 - 1 = -0.9. Row 2: -0.4, residual -0.2 + 0.5 = 0.3.
    inputs = make_inputs([[-0.7, -1.1], [-1.4, -1.0]], [[-1.0, -1.0], [-1.0, -1.0]], [1.0, -0.5])
    output, found = gradient(inputs, beta=0.5)
    assert output.loss.item() == pytest.approx((0.81 + 0.09) / 2, rel=1e-12)
    # 1/2 * 2 * beta * residual on each token of the row
    assert found == [pytest.approx([-0.45, -0.45]), pytest.approx([0.15, 0.15])]
    assert output.maxima["sequence_log_ratio_max"] == pytest.approx(0.4)
    assert output.maxima["residual_max"] == pytest.approx(0.9)


def test_at_the_old_weights_the_gradient_is_minus_two_beta_a_on_every_token():
    same = [[-0.5, -2.0, -1.0]]
    output, found = gradient(make_inputs(same, same, [0.75]), beta=0.25, anchor="proxy")
    assert found == [[-2 * 0.25 * 0.75] * 3]
    assert output.loss.item() == 0.75**2
    _, scaled = gradient(make_inputs(same, same, [0.75]), beta=0.25, divide_by_two_beta=True)
    assert scaled == [[-0.75] * 3]


def test_const_adds_beta_s_to_the_advantage():
    # S = (-0.2 + 3) + (-0.2 + 5) = 7.6 over the two intervention tokens; beta S = 0.76
    same, wrote = [[-1.0, -3.0, -5.0]], [[False, True, True]]
    output, found = gradient(make_inputs(same, same, [-0.25], intervention=wrote), beta=0.1, anchor="const", kappa=-0.2)
    assert found == [pytest.approx([-2 * 0.1 * (-0.25 + 0.76)] * 3, rel=1e-12)]
    assert output.maxima["anchor_bonus_max"] == pytest.approx(0.76)
    _, proxy = gradient(make_inputs(same, same, [-0.25], intervention=wrote), beta=0.1, anchor="proxy")
    assert proxy == [pytest.approx([2 * 0.1 * 0.25] * 3, rel=1e-12)]


def test_const_without_intervention_tokens_is_proxy_bit_for_bit():
    rows = [[-0.7, -1.1], [-1.4, -1.0]], [[-1.0, -1.3], [-1.2, -1.0]], [1.0, -0.5]
    none = [[False, False], [False, False]]
    assert (
        gradient(make_inputs(*rows, intervention=none), anchor="const")[1]
        == gradient(make_inputs(*rows), anchor="proxy")[1]
    )


def test_kappa_equal_to_the_behaviour_log_probability_is_proxy_bit_for_bit():
    rows = [[-0.7, -1.1, -0.3]], [[-1.0, -0.2, -0.2]], [0.5]
    wrote = [[False, True, True]]
    const, const_gradient = gradient(make_inputs(*rows, intervention=wrote), anchor="const", kappa=-0.2)
    proxy, proxy_gradient = gradient(make_inputs(*rows, intervention=wrote), anchor="proxy")
    assert const.loss.item() == proxy.loss.item()
    assert const_gradient == proxy_gradient


def test_a_token_that_carries_no_loss_gets_no_gradient_whatever_it_holds():
    trained, wrote = [[False, True, False, True]], [[True, False, False, True]]
    inputs = make_inputs(
        [[NAN, -1.5, -9.0, -2.0]], [[NAN, -1.0, NAN, -2.0]], [1.0], trained=trained, intervention=wrote
    )
    output, found = gradient(inputs, beta=0.5, anchor="const", kappa=-2.0)
    # residual 0.5 * (-0.5 + 0) - 1 = -1.25, over the two trained tokens alone
    assert output.loss.item() == pytest.approx(1.5625)
    assert found == [[0.0, -1.25, 0.0, -1.25]]


def test_a_weight_multiplies_its_token_of_the_sum():
    inputs = make_inputs([[-0.5, -0.5]], [[-1.0, -1.0]], [0.0], weights=[[2.0, 0.0]])
    output, found = gradient(inputs, beta=1.0)
    assert output.loss.item() == pytest.approx(1.0)
    assert found == [pytest.approx([4.0, 0.0])]


def test_no_advantage_and_no_move_is_no_gradient():
    same = [[-0.5, -2.0], [-1.0, -1.0]]
    output, found = gradient(make_inputs(same, same, [0.0, 0.0]), beta=0.5)
    assert output.loss.item() == 0.0
    assert found == [[0.0, 0.0], [0.0, 0.0]]


def test_the_order_of_rows_changes_no_gradient():
    logprobs, old = [[-0.7, -1.1], [-1.4, -1.0], [-0.2, -3.0]], [[-1.0, -1.0], [-1.0, -2.0], [-0.4, -2.5]]
    advantages, wrote = [1.0, -0.5, 0.25], [[False, True], [False, False], [True, True]]
    order = [2, 0, 1]
    _, found = gradient(make_inputs(logprobs, old, advantages, intervention=wrote))
    _, permuted = gradient(
        make_inputs(
            *([rows[index] for index in order] for rows in (logprobs, old, advantages)),
            intervention=[wrote[index] for index in order],
        )
    )
    assert permuted == [found[index] for index in order]


def test_rows_apart_add_up_to_rows_together():
    logprobs, old, advantages = [[-0.7, -1.1], [-1.4, -1.0]], [[-1.0, -1.0], [-1.0, -2.0]], [1.0, -0.5]
    together, found = gradient(make_inputs(logprobs, old, advantages))
    apart = [
        gradient(make_inputs([logprobs[row]], [old[row]], [advantages[row]], coefficients=[0.5])) for row in range(2)
    ]
    assert sum(output.loss.item() for output, _ in apart) == pytest.approx(together.loss.item(), rel=1e-15)
    assert [rows[0] for _, rows in apart] == found


def test_beyond_its_delta_huber_grows_linearly():
    inputs = make_inputs([[-1.0], [-1.0]], [[-1.0], [-1.0]], [0.5, 3.0], coefficients=[1.0, 1.0])
    output, found = gradient(inputs, beta=1.0, huber_delta=1.0)
    # residuals -0.5 and -3: 0.25 and 1 * (2 * 3 - 1)
    assert output.loss.item() == pytest.approx(0.25 + 5.0)
    assert found == [[-1.0], [-2.0]]


def test_an_anchor_over_probability_one_is_refused():
    with pytest.raises(ValidationError, match="kappa"):
        RegressionConfig(kappa=0.1)


@pytest.mark.parametrize("setting", [{"kappa": float("-inf")}, {"beta": float("inf")}, {"huber_delta": float("inf")}])
def test_what_would_make_every_loss_not_finite_is_refused(setting):
    with pytest.raises(ValidationError, match="finite"):
        RegressionConfig(**setting)
