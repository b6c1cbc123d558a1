import numpy
import pytest

from midcourse.branching.actions import ActionSpaceConfig
from midcourse.branching.state import State
from midcourse.branching.traces import Prediction, TraceBuffer
from midcourse.errors import CheckpointError

SPACE = ActionSpaceConfig().build()


def make_trace(number, *, hidden=2, cell=0, is_live=False):
    action = SPACE.cells[cell]
    prediction = Prediction(
        state=State(
            scalars=numpy.full(10, number / 100),
            hidden=numpy.full(hidden, number, numpy.float32),
            embedding=numpy.zeros(0, numpy.float32),
        ),
        action=action,
        code=SPACE.codes([action])[0],
        gain=-number / 10,
        update=number,
        is_live=is_live,
    )
    return prediction.realize(number / 10)


def make_buffer(capacity=3, hidden=2):
    return TraceBuffer(capacity, code_size=4, hidden_size=hidden, embedding_size=0, num_cells=9)


def test_the_newest_traces_stay_and_come_newest_first():
    buffer = make_buffer()
    for number in range(1, 6):
        buffer.append(make_trace(number))
        assert len(buffer) == min(number, 3)
    places = buffer.newest_first()
    assert buffer.gained(places).tolist() == [0.5, 0.4, 0.3]
    assert buffer.predicted(places).tolist() == [-0.5, -0.4, -0.3]
    assert buffer.updates(places).tolist() == [5, 4, 3]
    assert buffer.total == 5


def test_a_row_is_what_the_trace_was_made_of():
    buffer = make_buffer()
    buffer.append(make_trace(7, cell=4))
    rows = buffer.rows(buffer.newest_first())
    assert rows.scalars.tolist() == [[0.07] * 10]
    assert rows.hidden.tolist() == [[7.0, 7.0]]
    assert rows.embedding.shape == (1, 0)
    assert rows.codes.tolist() == [[8 / 12, 0.0, 1.0, 0.0]]


def test_coverage_counts_the_window_alone():
    buffer = make_buffer()
    assert buffer.coverage().tolist() == [0] * 9
    for number, cell in enumerate((8, 8, 2, 2, 0)):
        buffer.append(make_trace(number, cell=cell))
    assert buffer.coverage().tolist() == [1, 0, 2, 0, 0, 0, 0, 0, 0]


def test_live_traces_are_told_from_those_of_the_warm_up():
    buffer = make_buffer(capacity=4)
    for number in range(5):
        buffer.append(make_trace(number, is_live=number % 2 == 0))
    assert buffer.updates(buffer.live()).tolist() == [4, 2]


@pytest.mark.parametrize("count", [0, 2, 5])
def test_a_loaded_buffer_goes_on_where_it_was(count):
    buffer = make_buffer()
    for number in range(count):
        buffer.append(make_trace(number, cell=number))
    loaded = make_buffer()
    loaded.load_state_dict(buffer.state_dict())
    for one in (buffer, loaded):
        one.append(make_trace(9))
    assert buffer.state_dict().keys() == loaded.state_dict().keys()
    for name, array in buffer.state_dict().items():
        assert numpy.array_equal(array, loaded.state_dict()[name]), name


def test_a_saved_buffer_does_not_follow_the_one_that_goes_on():
    buffer = make_buffer()
    buffer.append(make_trace(1))
    saved = buffer.state_dict()
    for number in range(2, 8):
        buffer.append(make_trace(number))
    assert saved["updates"].tolist() == [1]


def test_a_state_of_another_form_is_refused_and_nothing_is_taken():
    buffer, other = make_buffer(), make_buffer(hidden=5)
    other.append(make_trace(1, hidden=5))
    with pytest.raises(CheckpointError, match="hidden must be float32"):
        buffer.load_state_dict(other.state_dict())
    with pytest.raises(CheckpointError, match="expected"):
        buffer.load_state_dict({})
    assert len(buffer) == 0


def test_a_state_of_another_size_is_refused():
    with pytest.raises(ValueError, match="hidden must have 2 numbers: got 3"):
        make_buffer().append(make_trace(1, hidden=3))


def test_a_gain_must_be_finite():
    with pytest.raises(ValueError, match="gain must be finite"):
        make_trace(1).prediction.realize(float("nan"))
