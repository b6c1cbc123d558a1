import subprocess
import sys

import numpy
import pytest
from pydantic import ValidationError
from safetensors.numpy import load, save

from midcourse.branching.actions import GRIDS
from midcourse.branching.controller import ControllerConfig, RecoverabilityController
from midcourse.branching.state import State
from midcourse.errors import CheckpointError

SPACE = GRIDS["3x3"].build()
NEVER, ALWAYS = 0.999, 0.0
"""Draws that never and always explore."""


def make_state(number, *, hidden=3, embedding=2):
    generator = numpy.random.default_rng(number)
    return State(
        scalars=generator.random(10),
        hidden=generator.normal(size=hidden).astype(numpy.float32),
        embedding=generator.normal(size=embedding).astype(numpy.float32),
    )


def make_controller(space=SPACE, **settings):
    return RecoverabilityController(
        ControllerConfig(**settings), space, hidden_size=3, embedding_size=2, seed=settings.pop("seed", 11)
    )


def worth(state, action):
    """A gain that a linear rule knows: aggressive pays where the first scalar is large, exploit where it is small."""
    sign = {"exploit": -1.0, "mild": 0.0, "aggressive": 1.0}[action.regime.name]
    return 0.3 * sign * (state.scalars[0] - 0.5) - 0.02 * action.rollouts / 12


def teach(controller, numbers):
    """Run one cell after the other, and learn from what it brings."""
    for number in numbers:
        state, action = make_state(number), SPACE.cells[number % 9]
        controller.absorb([controller.predict(state, action, update=number).realize(worth(state, action))])
        controller.learn()
    return controller


def decide(controller, numbers, **settings):
    arguments = {"remaining": 28, "draw": NEVER, "update": 1} | settings
    return controller.decide([make_state(number) for number in numbers], **arguments)


def test_before_it_learned_anything_the_gate_is_shut():
    decision = decide(make_controller(), range(5))
    assert decision.choice is None
    assert decision.best_gain == 0.0


def test_the_best_pair_of_anchor_and_action_is_taken_if_it_is_over_the_gate():
    controller = teach(make_controller(), range(200))
    decision = decide(controller, range(1000, 1006))
    gains = [
        [controller.predict(make_state(number), action, update=1).gain for action in SPACE.cells]
        for number in range(1000, 1006)
    ]
    best = max(range(6), key=lambda row: max(gains[row]))
    assert decision.anchor == best
    assert decision.choice is not None
    assert decision.choice.action.cell == gains[best].index(max(gains[best]))
    assert decision.choice.gain == pytest.approx(max(gains[best]), rel=1e-12)
    assert (decision.choice.is_live, decision.choice.is_exploration) == (True, False)
    shut = make_controller(gate=max(gains[best]) + 1e-9)
    shut.load_state_dict(controller.state_dict())
    assert decide(shut, range(1000, 1006)).choice is None


def test_it_learns_which_regime_pays_where():
    controller = teach(make_controller(), range(600))
    chosen = {}
    for level in (0.05, 0.95):
        state = make_state(5000)
        scalars = state.scalars.copy()
        scalars[0] = level
        state = State(scalars=scalars, hidden=state.hidden, embedding=state.embedding)
        decision = controller.decide([state], remaining=28, draw=NEVER, update=1)
        assert decision.choice is not None
        chosen[level] = decision.choice.action.regime.name
    assert chosen == {0.05: "exploit", 0.95: "aggressive"}
    assert controller.window_skill().pearson > 0.8


def test_it_follows_a_world_that_turns_around():
    controller = teach(make_controller(), range(400))
    for number in range(400, 1000):
        state, action = make_state(number), SPACE.cells[number % 9]
        controller.absorb([controller.predict(state, action, update=number).realize(-worth(state, action))])
        controller.learn()
    fresh = [
        (controller.predict(make_state(number), SPACE.cells[number % 9], update=1).gain, number)
        for number in range(9000, 9090)
    ]
    turned = [-worth(make_state(number), SPACE.cells[number % 9]) for _, number in fresh]
    assert numpy.corrcoef([gain for gain, _ in fresh], turned)[0, 1] > 0.8


def test_exploration_takes_the_least_covered_cell_past_the_gate():
    controller = make_controller(gate=1e9)
    for number in (0, 1, 2, 4, 5, 6, 7, 8):
        action = SPACE.cells[number]
        controller.absorb([controller.predict(make_state(number), action, update=1).realize(0.0)])
    decision = decide(controller, [1], draw=ALWAYS)
    assert decision.choice is not None
    assert decision.choice.action.cell == 3
    assert decision.choice.is_exploration
    # What this task did meanwhile counts too: then all are equal, and the first is taken.
    pending = decide(controller, [1], draw=ALWAYS, pending=[decision.choice])
    assert pending.choice is not None
    assert pending.choice.action.cell == 0


def test_the_draw_below_the_rate_says_which_anchor_is_explored():
    controller = make_controller()
    # rate 0.2: quarters of it are the four anchors
    anchors = [decide(controller, range(4), draw=draw).anchor for draw in (0.0, 0.06, 0.11, 0.199)]
    assert anchors == [0, 1, 2, 3]
    assert decide(controller, range(4), draw=0.2).choice is None


def test_the_rate_falls_with_absorbed_decisions_alone():
    controller = make_controller()
    assert decide(controller, [1], draw=0.15).exploration_rate == 0.2
    assert decide(controller, [1], draw=0.15).choice is not None
    controller.absorb([], decisions=150)
    later = decide(controller, [1], draw=0.15)
    assert later.exploration_rate == pytest.approx(0.1)
    assert later.choice is None


def test_asking_changes_no_answer():
    controller = teach(make_controller(), range(60))
    before = controller.state_dict()
    first = [decide(controller, [number]) for number in range(20)]
    again = [decide(controller, [number]) for number in reversed(range(20))][::-1]
    assert [one.best_gain for one in first] == [one.best_gain for one in again]
    for name, array in controller.state_dict().items():
        assert numpy.array_equal(array, before[name]), name


def test_what_cannot_be_run_is_not_chosen():
    controller = teach(make_controller(), range(60))
    assert decide(controller, range(3), remaining=0).choice is None
    assert decide(controller, []).choice is None
    clamped = decide(controller, range(3), remaining=3, draw=ALWAYS)
    assert clamped.choice is not None
    assert clamped.choice.action.rollouts == 3
    assert clamped.choice.code[0] == 3 / 12


def test_a_resumed_controller_decides_and_learns_bit_for_bit():
    controller = teach(make_controller(window=100), range(150))
    controller.absorb([controller.predict(make_state(7), SPACE.cells[7], update=1).realize(0.1)], decisions=30)
    resumed = make_controller(window=100)
    resumed.load_state_dict(load(save(controller.state_dict())))
    for one in (controller, resumed):
        teach(one, range(150, 220))
    for number in range(50):
        one, other = decide(controller, [number, number + 1]), decide(resumed, [number, number + 1])
        assert one.best_gain == other.best_gain
        assert one.anchor == other.anchor
        assert one.exploration_rate == other.exploration_rate
    for name, array in controller.state_dict().items():
        assert array.tobytes() == resumed.state_dict()[name].tobytes(), name


def test_the_same_seed_learns_the_same_and_another_does_not():
    one, same = (teach(make_controller(), range(80)).state_dict()["parameters"] for _ in range(2))
    assert numpy.array_equal(one, same)
    other = RecoverabilityController(ControllerConfig(), SPACE, hidden_size=3, embedding_size=2, seed=12)
    assert not numpy.array_equal(one, teach(other, range(80)).state_dict()["parameters"])


def test_a_step_takes_the_weighted_gradient_of_equation_6():
    # Two traces, no dropout, half-life 1: weights 1 and 1/2. The only slopes that are not zero at the start are those
    # of the output bias and the weights behind it; the first step of Adam has the size of the learning rate.
    controller = make_controller(dropout=0.0, half_life=1.0, learning_rate=0.01, weight_decay=0.0)
    for number, gained in ((0, -0.02), (1, 0.05)):  # the newer one is 1
        controller.absorb([controller.predict(make_state(number), SPACE.cells[0], update=1).realize(gained)])
    report = controller.learn()
    assert report.steps == 2
    # bias slope: (2/3)(0 - 0.05) + (1/3)(0 + 0.02) < 0, so the bias rises by the rate in the first step
    first_moment = controller.state_dict()["moments/first"][-1]
    one_step = make_controller(dropout=0.0, half_life=1.0, learning_rate=0.01, weight_decay=0.0)
    one_step.absorb(
        [
            one_step.predict(make_state(number), SPACE.cells[0], update=1).realize(gained)
            for number, gained in ((0, -0.02), (1, 0.05))
        ]
    )
    one_step._unlearned = 1
    loss = one_step.learn().loss
    assert loss == pytest.approx((0.05**2 / 2 * 2 + 0.02**2 / 2) / 3)
    assert one_step.state_dict()["moments/first"][-1] == pytest.approx(0.1 * (-2 * 0.05 + 0.02) / 3)
    assert one_step.network.parameters[-1] == pytest.approx(0.01, rel=1e-4)
    assert first_moment != one_step.state_dict()["moments/first"][-1]


def test_learning_needs_traces_and_takes_as_many_steps_as_came():
    controller = make_controller(steps_per_trace=3)
    assert controller.learn().steps == 0
    teachable = [controller.predict(make_state(n), SPACE.cells[n], update=1).realize(0.1) for n in range(4)]
    controller.absorb(teachable)
    assert controller.learn().steps == 12
    assert controller.learn().loss is None


def test_a_controller_that_never_learns_stays_as_it_is():
    controller = make_controller(steps_per_trace=0)
    before = controller.network.parameters.copy()
    teach(controller, range(10))
    assert numpy.array_equal(controller.network.parameters, before)


def test_the_age_of_a_trace_is_in_policy_updates():
    controller = make_controller()
    assert controller.mean_age(5) is None
    for update in (1, 4):
        controller.absorb([controller.predict(make_state(1), SPACE.cells[0], update=update).realize(0.0)])
    assert controller.mean_age(5) == 2.5


def test_wild_gains_move_no_parameter_further_than_others():
    controller = make_controller()
    before = controller.network.parameters.copy()
    for number in range(100):
        gained = (-1.0) ** number * 1e6
        controller.absorb([controller.predict(make_state(number), SPACE.cells[number % 9], update=1).realize(gained)])
        controller.learn()
    # A hundred steps of about the learning rate, however far the gains are.
    assert numpy.abs(controller.network.parameters - before).max() < 2 * 100 * 6e-3


def test_a_state_of_another_space_or_size_is_refused():
    state = make_controller().state_dict()
    with pytest.raises(CheckpointError, match="another action space"):
        make_controller(GRIDS["2x2"].build()).load_state_dict(state)
    with pytest.raises(CheckpointError, match="parameters must be"):
        make_controller(hidden_units=8).load_state_dict(state)
    with pytest.raises(CheckpointError, match="lacks counters"):
        make_controller().load_state_dict({name: array for name, array in state.items() if name != "counters"})


def test_a_feature_that_is_left_out_moves_no_prediction():
    controller = teach(make_controller(without_features=("anchor_entropy", "hidden")), range(60))
    state = make_state(1)
    moved = state.scalars.copy()
    moved[0] = 0.9
    other = State(scalars=moved, hidden=state.hidden + 1, embedding=state.embedding)
    gain = controller.predict(state, SPACE.cells[4], update=1).gain
    assert gain != 0.0
    assert controller.predict(other, SPACE.cells[4], update=1).gain == gain
    seen = State(scalars=state.scalars, hidden=state.hidden, embedding=state.embedding + 1)
    assert controller.predict(seen, SPACE.cells[4], update=1).gain != gain


def test_a_feature_by_an_unknown_name_is_refused():
    with pytest.raises(ValidationError, match="without_features"):
        ControllerConfig(without_features=("entropy",))


def test_the_controller_needs_no_torch():
    command = "import sys, midcourse.branching.controller, midcourse.branching.promotion; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
