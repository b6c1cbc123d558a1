import numpy
import pytest
import torch

from midcourse.branching.network import STATE_SIZE, GainNetwork, NetworkShape, Rows, gelu, gelu_and_slope

GENERATOR = numpy.random.default_rng(3)


def make_rows(count, *, hidden=0, embedding=0, code=4):
    return Rows(
        scalars=GENERATOR.random((count, 10)),
        hidden=GENERATOR.normal(size=(count, hidden)).astype(numpy.float32),
        embedding=GENERATOR.normal(size=(count, embedding)).astype(numpy.float32),
        codes=GENERATOR.random((count, code)),
    )


def shaken(shape, **settings):
    """A network whose output weights are not zero any more."""
    network = GainNetwork(shape, seed=1, **settings)
    network.parameters += 0.1 * GENERATOR.normal(size=network.parameters.shape)
    return network


def torch_predictions(network, rows, parameters, keep):
    """The same network in torch's words."""
    pieces, start = {}, 0
    for name, shape in network.shape.parts.items():
        size = int(numpy.prod(shape))
        pieces[name] = parameters[start : start + size].reshape(shape)
        start += size
    scalars, hidden, embedding, codes = (
        torch.tensor(numpy.asarray(part, dtype=numpy.float64))
        for part in (rows.scalars, rows.hidden, rows.embedding, rows.codes)
    )
    inputs = torch.cat(
        [scalars, hidden @ pieces["hidden_projection"].T, embedding @ pieces["embedding_projection"].T, codes], dim=1
    )
    units = torch.nn.functional.gelu(inputs @ pieces["unit_weight"].T + pieces["unit_bias"], approximate="tanh")
    units = units * torch.tensor(keep)
    return units @ pieces["output_weight"] + inputs @ pieces["skip_weight"] + pieces["output_bias"]


def test_the_papers_network_has_thirty_inputs_and_about_two_thousand_parameters():
    assert STATE_SIZE == 26
    # 64 * 30 weights, 64 biases, 64 output weights, 30 of the skip connection, one output bias
    assert len(GainNetwork(NetworkShape(code=4), seed=0).parameters) == 2079
    assert len(GainNetwork(NetworkShape(code=4, hidden=5, embedding=3), seed=0).parameters) == 2079 + 8 * 8


def test_a_network_of_one_unit_by_hand():
    network = GainNetwork(NetworkShape(code=1, units=1), seed=0)
    network.parameters[:] = 0.0
    parts = network.shape.parts
    assert list(parts)[2:] == ["unit_weight", "unit_bias", "output_weight", "skip_weight", "output_bias"]
    # unit: 2 * code - 1; output: 3 * gelu(unit) + 0.5 * code + 0.25
    network.parameters[26], network.parameters[27], network.parameters[28] = 2.0, -1.0, 3.0
    network.parameters[28 + 27], network.parameters[28 + 28] = 0.5, 0.25
    rows = Rows(
        scalars=numpy.ones((1, 10)),
        hidden=numpy.zeros((1, 0), numpy.float32),
        embedding=numpy.zeros((1, 0), numpy.float32),
        codes=numpy.array([[1.0], [0.5]]),
    )
    # unit 1: gelu(1) = 0.841192; unit 0: gelu(0) = 0
    assert network.predict_each(rows).tolist() == [pytest.approx([3 * 0.841192 + 0.75, 0.5], abs=2e-6)]


def test_the_first_prediction_is_zero():
    rows = make_rows(5, hidden=7, embedding=3)
    assert not GainNetwork(NetworkShape(code=4, hidden=7, embedding=3), seed=9).predict(rows).any()


def test_projections_begin_as_small_as_the_scalars():
    shape = NetworkShape(code=4, hidden=400)
    rows = make_rows(200, hidden=400)
    projected = GainNetwork(shape, seed=2).states(rows)[:, 10:18]
    assert numpy.sqrt((projected**2).mean()) == pytest.approx(0.25, rel=0.1)


def test_predictions_and_gradients_are_torchs():
    shape = NetworkShape(code=4, hidden=6, embedding=5, units=16)
    network, rows = shaken(shape), make_rows(12, hidden=6, embedding=5)
    keep = (GENERATOR.random((12, 16)) > 0.3) / 0.7
    predicted, trail = network.forward(rows, keep)
    of_predicted = GENERATOR.normal(size=12)
    parameters = torch.tensor(network.parameters, requires_grad=True)
    expected = torch_predictions(network, rows, parameters, keep)
    (expected * torch.tensor(of_predicted)).sum().backward()
    assert predicted == pytest.approx(expected.detach().numpy(), rel=1e-12, abs=1e-13)
    assert parameters.grad is not None
    assert network.gradient(trail, of_predicted) == pytest.approx(parameters.grad.numpy(), rel=1e-11, abs=1e-13)


def test_every_action_in_every_state_is_what_each_pair_is_alone():
    network = shaken(NetworkShape(code=4, hidden=6))
    states, actions = make_rows(3, hidden=6), GENERATOR.random((5, 4))
    together = network.predict_each(
        Rows(scalars=states.scalars, hidden=states.hidden, embedding=states.embedding, codes=actions)
    )
    assert together.shape == (3, 5)
    for row in range(3):
        alone = Rows(
            scalars=states.scalars[[row] * 5],
            hidden=states.hidden[[row] * 5],
            embedding=states.embedding[[row] * 5],
            codes=actions,
        )
        assert together[row] == pytest.approx(network.predict(alone), rel=1e-6, abs=1e-7)  # float32 units


def test_a_feature_that_is_kept_from_the_network_changes_nothing_and_gets_no_gradient():
    used = numpy.ones(STATE_SIZE)
    used[10:18] = 0.0
    network, rows = shaken(NetworkShape(code=4, hidden=6), used=used), make_rows(4, hidden=6)
    moved = Rows(scalars=rows.scalars, hidden=rows.hidden + 1, embedding=rows.embedding, codes=rows.codes)
    assert numpy.array_equal(network.predict(rows), network.predict(moved))
    _, trail = network.forward(rows, numpy.ones((4, 64)))
    assert not network.gradient(trail, numpy.ones(4))[: 8 * 6].any()


def test_gelu_is_torchs_and_its_slope_is_its_derivative():
    values = numpy.linspace(-6, 6, 101)
    tensor = torch.tensor(values, requires_grad=True)
    expected = torch.nn.functional.gelu(tensor, approximate="tanh")
    expected.sum().backward()
    assert tensor.grad is not None
    assert gelu(values) == pytest.approx(expected.detach().numpy(), rel=1e-12, abs=1e-15)
    again, slope = gelu_and_slope(values)
    assert again == pytest.approx(gelu(values), rel=1e-14, abs=1e-16)
    assert slope == pytest.approx(tensor.grad.numpy(), rel=1e-12, abs=1e-13)
