"""RAIL's recoverability controller: an online contextual bandit over structured interventions (RAIL, Section 3).

It predicts the gain of every action at every anchor, takes the best if that is over the gate, now and then the least
covered one instead, and is fitted to what came of it, recent outcomes counting more. Branching itself is a method's.

`predict` and `decide` change nothing: between two calls of `absorb` and `learn` any number of tasks can ask in any
order, and get the same answers. That is what makes a wave of concurrent rollouts repeatable; a method absorbs a wave's
traces afterwards, in the order of its tasks.

The paper's: score function, loss, gate, coverage-directed exploration, prediction before outcome. Ours: with several
anchors the best pair of anchor and action is taken, one a decision; exploration takes any anchor with equal chance; the
numbers that the fields below call ours.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from midcourse.branching.actions import Action, ActionSpace
from midcourse.branching.exploration import ExplorationConfig, exploration_rate, least_covered
from midcourse.branching.fitting import AdamW, huber, huber_slope, limited, recency_weights, systematic_sample
from midcourse.branching.network import PROJECTED, STATE_SIZE, GainNetwork, NetworkShape, Rows
from midcourse.branching.skill import Skill, skill
from midcourse.branching.state import SCALAR_NAMES, State
from midcourse.branching.traces import Prediction, Trace, TraceBuffer
from midcourse.errors import CheckpointError, ConfigError, TrainingError

BLOCKS: Mapping[str, tuple[int, int]] = {
    **{name: (index, index + 1) for index, name in enumerate(SCALAR_NAMES)},
    "hidden": (len(SCALAR_NAMES), len(SCALAR_NAMES) + PROJECTED),
    "task_embedding": (len(SCALAR_NAMES) + PROJECTED, STATE_SIZE),
}
"""Where each feature lies in z."""
SEED_MASK = (1 << 64) - 1
"""The upper half of the generator's key; the training step is the lower one."""


class ControllerConfig(BaseModel):
    """How the controller learns, when it acts, and what it sees."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    gate: float = Field(default=0.0, allow_inf_nan=False)
    """eta: an action is taken if its predicted gain is over this. 0 is ours; the paper's value is not known."""
    exploration: ExplorationConfig = Field(default_factory=ExplorationConfig)
    """How often the least covered action is tried instead."""
    hidden_units: int = Field(default=64, ge=1, le=4096)
    """Of the network. Paper: 64."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Part of the units that a training step leaves out; none is when scoring. The paper names dropout, no rate."""
    huber_delta: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Errors beyond this count linearly. Ours: gains are at most 0.5, so 1 would be the squared error."""
    window: int = Field(default=512, ge=1, le=65536)
    """W: traces that are kept and learned from. Ours."""
    half_life: float = Field(default=128.0, gt=0, allow_inf_nan=False)
    """Traces after which a trace counts half. Ours."""
    learning_rate: float = Field(default=6e-3, gt=0, le=1, allow_inf_nan=False)
    """Of AdamW, constant. Ours: the best of 1e-3 to 1e-2 on one seed of the drifting bandit, by little."""
    weight_decay: float = Field(default=1e-2, ge=0, allow_inf_nan=False)
    """Decoupled, on all parameters. Ours."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm. Ours."""
    batch_traces: int = Field(default=64, ge=1)
    """Traces of one training step, drawn by their weights; a window of no more is taken whole. Ours."""
    steps_per_trace: int = Field(default=1, ge=0)
    """Training steps for each new trace. 0 never learns. Ours."""
    without_features: tuple[str, ...] = ()
    """Features of the state that the controller does not see: names of Table 5, `hidden`, `task_embedding`. Ours."""

    @field_validator("without_features")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in BLOCKS]
        if unknown:
            raise ConfigError(f"without_features: unknown {unknown}; known: {', '.join(BLOCKS)}")
        return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do at the anchors that were asked about.

    `choice` is None where nothing is done: no anchor, no budget, or no action over the gate.
    """

    choice: Prediction | None
    anchor: int | None = None  # position of the chosen state among those asked about
    best_gain: float | None = None  # the greatest predicted gain, chosen or not
    exploration_rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What `learn` did."""

    steps: int
    loss: float | None  # mean over the steps, as `huber`; None without a step


class RecoverabilityController:
    """Predicts, decides, learns.

    Args:
        config: how.
        space: what can be done.
        hidden_size: numbers of the policy's hidden state, 0 where states have none.
        embedding_size: numbers of the task's embedding, 0 where states have none.
        seed: of weights, dropout and the sampling of traces.
    """

    def __init__(
        self,
        config: ControllerConfig,
        space: ActionSpace,
        *,
        hidden_size: int = 0,
        embedding_size: int = 0,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.space = space
        used = numpy.ones(STATE_SIZE)
        for name in config.without_features:
            used[slice(*BLOCKS[name])] = 0.0
        shape = NetworkShape(
            code=space.code_size, hidden=hidden_size, embedding=embedding_size, units=config.hidden_units
        )
        self.network = GainNetwork(shape, seed=seed, used=used)
        self.traces = TraceBuffer(
            config.window,
            code_size=space.code_size,
            hidden_size=hidden_size,
            embedding_size=embedding_size,
            num_cells=len(space.cells),
        )
        self.decisions = 0  # live ones that were absorbed: t of rho_t
        self._seed = seed & SEED_MASK
        self._optimizer = AdamW(
            len(self.network.parameters), learning_rate=config.learning_rate, weight_decay=config.weight_decay
        )
        self._unlearned = 0  # traces since the last `learn`
        self._executable: dict[int, tuple[tuple[Action, ...], NDArray[numpy.float64]]] = {}

    def predict(self, state: State, action: Action, *, update: int) -> Prediction:
        """Return what an action that somebody else chose is expected to bring: the warm-up rule's, before it is run."""
        codes = self.space.codes([action])
        gain = float(self.network.predict_each(_rows([state], codes))[0, 0])
        return Prediction(state=state, action=action, code=codes[0], gain=gain, update=update)

    def decide(
        self,
        states: Sequence[State],
        *,
        remaining: int,
        draw: float,
        update: int,
        pending: Iterable[Prediction] = (),
    ) -> Decision:
        """Return the best action at the best anchor if it passes the gate, or what exploration takes instead.

        Args:
            states: [N] of the anchors where a branch may begin, in an order that does not depend on time.
            remaining: rollouts left of the task's budget.
            draw: uniform in [0, 1), the decision's own: keyed by run, update, task and the decision's number.
            update: of the policy.
            pending: what this task did since the last `absorb`; counts for coverage.
        """
        actions, codes = self._runnable(remaining)
        if not states or not actions:
            return Decision(choice=None)
        gains = self.network.predict_each(_rows(states, codes))
        best = int(gains.argmax())
        rate = exploration_rate(self.decisions, self.config.exploration)
        best_gain = float(gains.flat[best])
        is_exploration = draw < rate
        if is_exploration:
            # Below the rate the draw is uniform again, and says which anchor.
            anchor = min(int(draw / rate * len(states)), len(states) - 1)
            chosen = least_covered(actions, self._coverage(pending))
        elif best_gain > self.config.gate:
            anchor, chosen = divmod(best, len(actions))
        else:
            return Decision(choice=None, best_gain=best_gain, exploration_rate=rate)
        choice = Prediction(
            state=states[anchor],
            action=actions[chosen],
            code=codes[chosen],
            gain=float(gains[anchor, chosen]),
            update=update,
            is_live=True,
            is_exploration=is_exploration,
        )
        return Decision(choice=choice, anchor=anchor, best_gain=best_gain, exploration_rate=rate)

    def absorb(self, traces: Iterable[Trace], *, decisions: int = 0) -> None:
        """Take the traces of a wave and the number of its live decisions, those that did nothing included."""
        for trace in traces:
            self.traces.append(trace)
            self._unlearned += 1
        self.decisions += decisions

    def learn(self) -> Learned:
        """Fit the window, `steps_per_trace` steps for every trace that came since.

        Raises:
            TrainingError: parameters that are not finite.
        """
        steps = self._unlearned * self.config.steps_per_trace
        self._unlearned = 0
        places = self.traces.newest_first()
        weights = recency_weights(len(places), self.config.half_life)
        losses = [self._step(places, weights) for _ in range(steps)] if len(places) else []
        if losses and not numpy.isfinite(self.network.parameters).all():
            raise TrainingError("the branching controller's parameters are not finite")
        return Learned(steps=len(losses), loss=sum(losses) / len(losses) if losses else None)

    def window_skill(self, *, live_only: bool = False) -> Skill:
        """Return how the window's predictions, made before their outcomes, agree with them."""
        places = self.traces.live() if live_only else self.traces.newest_first()
        return skill(self.traces.predicted(places).tolist(), self.traces.gained(places).tolist())

    def mean_age(self, update: int) -> float | None:
        """Return how many policy updates ago the window's traces were made, on average; None without traces."""
        places = self.traces.newest_first()
        return float(update - self.traces.updates(places).mean()) if len(places) else None

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything that a resumed run must know, as flat arrays (safetensors takes them as they are)."""
        return {
            "space": numpy.frombuffer(json.dumps(self.space.names).encode(), dtype=numpy.uint8).copy(),
            "counters": numpy.array([self.decisions, self._unlearned, self._optimizer.steps], dtype=numpy.int64),
            "parameters": self.network.parameters.copy(),
            "moments/first": self._optimizer.first.copy(),
            "moments/second": self._optimizer.second.copy(),
            **{f"traces/{name}": array for name, array in self.traces.state_dict().items()},
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take what `state_dict` gave; decisions and learning go on bit for bit.

        Raises:
            CheckpointError: it is of another form, another space, or a network of another size.
        """
        own = self.state_dict()
        if missing := sorted(set(own) - set(state)):
            raise CheckpointError(f"the branching controller's state lacks {', '.join(missing)}")
        names = bytes(state["space"]).decode(errors="replace")
        if names != json.dumps(self.space.names):
            raise CheckpointError(f"the branching controller is of another action space: {names}")
        for name in ("counters", "parameters", "moments/first", "moments/second"):
            if state[name].shape != own[name].shape or state[name].dtype != own[name].dtype:
                raise CheckpointError(
                    f"the branching controller's {name} must be {own[name].dtype} {own[name].shape}: "
                    f"got {state[name].dtype} {state[name].shape}"
                )
        self.traces.load_state_dict(
            {name.removeprefix("traces/"): array for name, array in state.items() if name.startswith("traces/")}
        )
        self.network.parameters[:] = state["parameters"]
        self._optimizer.first[:] = state["moments/first"]
        self._optimizer.second[:] = state["moments/second"]
        self.decisions, self._unlearned, self._optimizer.steps = (int(value) for value in state["counters"])

    def _step(self, places: NDArray[numpy.int64], weights: NDArray[numpy.float64]) -> float:
        config = self.config
        generator = numpy.random.Generator(numpy.random.Philox(key=self._seed << 64 | self._optimizer.steps))
        if len(places) > config.batch_traces:
            places = places[systematic_sample(weights, config.batch_traces, generator.random())]
            weights = numpy.ones(len(places))
        keep = generator.random((len(places), config.hidden_units)) >= config.dropout
        predicted, trail = self.network.forward(self.traces.rows(places), keep / (1.0 - config.dropout))
        errors = predicted - self.traces.gained(places)
        shares = weights / weights.sum()
        gradient = self.network.gradient(trail, shares * huber_slope(errors, config.huber_delta))
        self._optimizer.step(self.network.parameters, limited(gradient, config.max_grad_norm))
        return float(shares @ huber(errors, config.huber_delta))

    def _runnable(self, remaining: int) -> tuple[tuple[Action, ...], NDArray[numpy.float64]]:
        key = max(0, min(remaining, self.space.branch_counts[-1]))
        if key not in self._executable:
            actions = self.space.executable(key)
            self._executable[key] = (actions, self.space.codes(actions))
        return self._executable[key]

    def _coverage(self, pending: Iterable[Prediction]) -> Sequence[int]:
        coverage = self.traces.coverage().tolist()
        for prediction in pending:
            coverage[prediction.action.cell] += 1
        return coverage


def _rows(states: Sequence[State], codes: NDArray[numpy.float64]) -> Rows:
    return Rows(
        scalars=numpy.stack([state.scalars for state in states]),
        hidden=numpy.stack([state.hidden for state in states]),
        embedding=numpy.stack([state.embedding for state in states]),
        codes=codes,
    )
