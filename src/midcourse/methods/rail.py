"""RAIL: a learned controller decides where and how rollouts branch (papers: "RAIL", Section 3, Appendix B).

A task begins with a small pool. In the shadow phase a rule branches its most uncertain turns and the controller only
predicts; once promoted, the controller decides. Every branch, kept or not, becomes a trace that it learns from after
the update. GRPO trains on the grown group. The parts are in branching/, each with what is the paper's and what is ours.

Differs from the paper: every turn boundary of the pool is scored when live, and the best pair of anchor and action run
until none passes the gate; a branch that the controller decided on is always kept; `repair` makes continuations under
RTI's corrections.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.advantages.group import group_advantages
from midcourse.branching.actions import SAMPLE, Action, ActionSpaceConfig, Regime
from midcourse.branching.anchors import SHADOW_ANCHORS, anchor_entropy, normalized_entropy, top_anchors
from midcourse.branching.controller import ControllerConfig, RecoverabilityController
from midcourse.branching.gain import GainConfig, branch_cost, chance_gain, realized_gain
from midcourse.branching.promotion import Promotion, PromotionConfig
from midcourse.branching.state import Anchor, Pool, PoolRollout, State, build_states, nothing, unit_rms
from midcourse.branching.traces import Prediction, Trace
from midcourse.branching.warm_up import is_kept, next_trial
from midcourse.engines.base import Feature
from midcourse.environments.base import Task
from midcourse.errors import ConfigError, EngineError
from midcourse.evaluation.estimators import is_success
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.interventions.pipeline import InterventionConfig, InterventionPipeline
from midcourse.methods.base import METHODS, RolloutTools, RunFacts
from midcourse.methods.grpo import group_id
from midcourse.methods.rail_statistics import STATES_FAILED, rail_statistics
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.rollout.branches import Continuing, Place, RolloutPool
from midcourse.rollout.episode import RolloutKey
from midcourse.types import BranchRecord, Group, Member, Origin, Trajectory

REPAIR = "repair"
"""The kind of a regime whose continuations are corrected by RTI's roles."""
WARM_UP, CONTROLLER, EXPLORATION = "warm_up", "controller", "exploration"


@METHODS.register("rail")
class RAILConfig(BaseModel):
    """RAIL: a learned controller decides where and how rollouts are branched."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["rail"] = "rail"
    """The method."""
    initial_rollouts: int = Field(default=4, ge=1)
    """Rollouts of a task before any branch. Paper: 4."""
    rollout_budget: int = Field(default=32, ge=1)
    """Most rollouts of a task, branches that were not kept included. Paper: 32, and 16 as a variant."""
    shadow_anchors: int = Field(default=SHADOW_ANCHORS, ge=1)
    """Most uncertain turns of a pool at which the shadow phase branches. Ours."""
    space: ActionSpaceConfig = Field(default_factory=ActionSpaceConfig)
    """What a branch can be."""
    gain: GainConfig = Field(default_factory=GainConfig)
    """What the controller learns to predict."""
    controller: ControllerConfig = Field(default_factory=ControllerConfig)
    """How it learns and when it acts."""
    promotion: PromotionConfig = Field(default_factory=PromotionConfig)
    """When it takes over."""
    online: bool = True
    """False stops learning once it has taken over (the paper's offline rival)."""
    train_on_rejected: bool = False
    """True trains on branches of the shadow phase that were not kept, too. The paper's plain reading is False."""
    repair: InterventionConfig | None = None
    """RTI's corrections, for a space with the regime `repair`, and only then. Ours."""
    std_ddof: Literal[0, 1] = 0
    """0 divides the squared deviations by the group's size, 1 by one less (as TRL and verl do)."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rollout_budget < self.initial_rollouts:
            raise ConfigError(
                f"rollout_budget must be at least initial_rollouts = {self.initial_rollouts}: got {self.rollout_budget}"
            )
        kinds = {regime.kind for regime in self.space.build().regimes}
        if unknown := sorted(kinds - {SAMPLE, REPAIR}):
            raise ConfigError(
                f"space.regimes = {list(self.space.regimes)}: nobody makes continuations of kind {', '.join(unknown)}; "
                f"expected {SAMPLE} or {REPAIR}"
            )
        if (REPAIR in kinds) != (self.repair is not None):
            raise ConfigError(
                "repair: give its settings where space.regimes holds a regime that repairs, and only there: "
                f"got regimes {list(self.space.regimes)} and repair = {None if self.repair is None else 'its settings'}"
            )
        return self

    @property
    def group_size(self) -> int:
        """Most rollouts of one task that are compared."""
        return self.rollout_budget

    @property
    def needs(self) -> frozenset[Feature]:
        """Entropies propose anchors; the controller sees hidden states unless it is told not to."""
        states = {"hidden", "task_embedding"} - set(self.controller.without_features)
        return frozenset(
            {
                Feature.ENTROPIES,
                *([Feature.HIDDEN_STATES] if states else []),
                *([Feature.PROMPT_SCORES] if self.repair is not None else []),
            }
        )

    def build(self) -> "RAIL":
        """Return the method."""
        return RAIL(self)


class RAIL:
    """Branches where a controller expects them to make the group informative."""

    def __init__(self, config: RAILConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)
        self.space = config.space.build()
        self._unseen = set(config.controller.without_features)
        self._learner: tuple[RecoverabilityController, Promotion] | None = None
        self._is_live = False

    def begin(self, facts: RunFacts) -> None:
        """Build the controller for a run."""
        controller = RecoverabilityController(
            self.config.controller,
            self.space,
            hidden_size=facts.hidden_size if self.wants_hidden else 0,
            embedding_size=facts.hidden_size if self.wants_embedding else 0,
            seed=facts.seed,
        )
        self._learner = (controller, Promotion(self.config.promotion, total_updates=facts.updates))

    def begin_update(self, update: int, tasks: Sequence[Task]) -> None:
        """Say who decides in this update: the rule, or the controller."""
        self._is_live = self.promotion.begin_update(update)

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return the pool, grown by branches.

        Raises:
            ConfigError: a repairing role is to be played by an engine or a script that this run does not have.
        """
        growth = _Growth(self, task, tools, key=RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=0))
        await growth.begin()
        if growth.can_branch:
            try:
                await growth.embed_task()
                await (growth.branch_by_controller() if self._is_live else growth.branch_by_rule())
            except EngineError:  # rollouts fail by themselves: it is a state of the policy that did not come
                growth.measured = {STATES_FAILED: (1.0,)}
        return growth.group()

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] GRPO's, over the grown group."""
        return group_advantages(group.rewards, std_ddof=self.config.std_ddof)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return what the branches were, cost and brought, under intervention/."""
        return rail_statistics(groups, names=self.space.names)

    def learn(self, groups: Sequence[Group], *, update: int) -> Mapping[str, float]:
        """Take the traces of an update, in the order of its tasks, and fit the controller to them."""
        traces = [
            trace for group in groups for record in group.branches if (trace := self._trace(group, record, update))
        ]
        self.controller.absorb(traces, decisions=sum(group.decisions for group in groups))
        for trace in traces:
            if trace.is_first_trial:
                self.promotion.observe(trace.prediction.gain, trace.gained)
        is_learning = self.config.online or not self._is_live
        learned = self.controller.learn() if is_learning else None
        age = self.controller.mean_age(update)
        agreement = self.promotion.rolling_agreement
        return {
            "intervention/controller/is_live": float(self._is_live),
            "intervention/controller/decisions": float(self.controller.decisions),
            **({} if learned is None or learned.loss is None else {"intervention/controller/loss": learned.loss}),
            **({} if age is None else {"intervention/controller/trace_age": age}),
            **({} if agreement is None else {"intervention/controller/rolling_agreement": agreement}),
            **{
                f"intervention/controller/window_{name}": value
                for name, value in self.controller.window_skill().metrics().items()
            },
        }

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return controller, traces and promotion as flat arrays."""
        return {
            **{f"controller/{name}": array for name, array in self.controller.state_dict().items()},
            **{f"promotion/{name}": array for name, array in self.promotion.state_dict().items()},
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take what `state_dict` gave. Raises CheckpointError where it is of another controller."""

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}

        self.controller.load_state_dict(part("controller/"))
        self.promotion.load_state_dict(part("promotion/"))

    @property
    def controller(self) -> RecoverabilityController:
        """Who decides once live. Raises ConfigError before `begin`."""
        return self._begun[0]

    @property
    def promotion(self) -> Promotion:
        """Says when that is. Raises ConfigError before `begin`."""
        return self._begun[1]

    @property
    def _begun(self) -> tuple[RecoverabilityController, Promotion]:
        if self._learner is None:
            raise ConfigError("rail: nothing can be branched before `begin`, which builds the controller")
        return self._learner

    @property
    def wants_hidden(self) -> bool:
        """Whether the controller sees the policy's state at an anchor."""
        return "hidden" not in self._unseen

    @property
    def wants_embedding(self) -> bool:
        """Whether the controller sees the task's embedding."""
        return "task_embedding" not in self._unseen

    def _trace(self, group: Group, record: BranchRecord, update: int) -> Trace | None:
        if record.gained is None or record.predicted is None or record.cell is None:
            return None
        action = Action(cell=record.cell, rollouts=len(record.rollouts), regime=self.space.cells[record.cell].regime)
        state = State(
            scalars=numpy.array(record.scalars),
            hidden=numpy.array(record.hidden, numpy.float32),
            embedding=numpy.array(group.task_embedding, numpy.float32),
        )
        prediction = Prediction(
            state=state,
            action=action,
            code=self.space.codes([action])[0],
            gain=record.predicted,
            update=update,
            is_live=record.rule != WARM_UP,
            is_exploration=record.rule == EXPLORATION,
        )
        return prediction.realize(record.gained, is_first_trial=record.is_first_trial)


class _Growth:
    """One task's pool while it grows."""

    def __init__(self, method: RAIL, task: Task, tools: RolloutTools, *, key: RolloutKey) -> None:
        self.method, self.config, self.tools = method, method.config, tools
        self.ledger = CostLedger()
        self.pool = RolloutPool(
            task=task, chat=tools.chat, environment=tools.environment, config=tools.rollout, key=key
        )
        self.reader = MeteredEngine(tools.engine, purpose="controller_state", ledger=self.ledger)
        limit = tools.rollout.max_turns
        self.max_rounds = tools.environment.max_turns if limit is None else min(limit, tools.environment.max_turns)
        self.embedding = nothing()
        self.decisions = 0
        self.measured: Mapping[str, Sequence[float]] = {}
        self._records: list[PoolRollout] = []  # of the members, as far as they were looked at

    @property
    def remaining(self) -> int:
        """Rollouts left of the budget."""
        return self.config.rollout_budget - self.pool.used

    @property
    def failed_anchors(self) -> int:
        """Anchors at which no branch so far brought a gain."""
        tried = {(record.parent, record.turn) for record in self.pool.branches}
        gained = {(r.parent, r.turn) for r in self.pool.branches if r.gained is not None and r.gained > 0}
        return len(tried - gained)

    @property
    def can_branch(self) -> bool:
        """Whether there is a reward to compare with, and budget."""
        return self.remaining > 0 and any(reward is not None for reward in self.pool.rewards)

    async def begin(self) -> None:
        """Draw the initial pool."""
        policy = MeteredEngine(self.tools.engine, purpose="policy", ledger=self.ledger)
        drawn = await self.pool.draw(Place(), self.config.initial_rollouts, Continuing(engine=policy))
        self.pool.keep(drawn, origin=Origin.ROOT)

    async def embed_task(self) -> None:
        """Ask what the policy makes of the task.

        Behind the rollouts: where the prompt is too long for the engine, they fail, and nobody asks for its states.
        """
        if not self.method.wants_embedding:
            return
        environment, task = self.tools.environment, self.pool.task
        ids = self.tools.chat.open(system_prompt=environment.system_prompt, tools=environment.tools, query=task.query)
        scores = await self.reader.score(ids[:1], ids[1:], want_hidden=True)
        self.embedding = unit_rms(scores.hidden.mean(dim=0).numpy())

    async def branch_by_rule(self) -> None:
        """Shadow: at the most uncertain turns, counts in increasing order, while the pool's mean nears 0.5 (B.3.4)."""
        places = self.pool.places(range(len(self.pool.members)))
        best = top_anchors([self._entropy(place) for place in places], self.config.shadow_anchors)
        anchors = await self._anchors([places[index] for index in best])
        for place, anchor in anchors:
            trials_done = 0
            while action := next_trial(
                self.method.space, self.pool.rewards, trials_done=trials_done, remaining=self.remaining
            ):
                (state,) = self._states([anchor])
                # Before anything is drawn: the prediction must not know the outcome.
                prediction = self.method.controller.predict(state, action, update=self.pool.key.update)
                if not await self._run(place, anchor, prediction, rule=WARM_UP):
                    break
                trials_done += 1

    async def branch_by_controller(self) -> None:
        """Live: the best action at the best turn, until none passes the gate or the budget is spent."""
        anchors = await self._anchors(self.pool.places(range(len(self.pool.members))))
        pending: list[Prediction] = []
        while anchors and self.remaining > 0:
            with self.ledger.timed("controller"):
                draw = self.pool.key.turn_seed(self.decisions, "decision") / 2**63
                decision = self.method.controller.decide(
                    self._states([anchor for _, anchor in anchors]),
                    remaining=self.remaining,
                    draw=draw,
                    update=self.pool.key.update,
                    pending=pending,
                )
            self.decisions += 1
            if decision.choice is None or decision.anchor is None:
                return
            pending.append(decision.choice)
            place, anchor = anchors[decision.anchor]
            rule = EXPLORATION if decision.choice.is_exploration else CONTROLLER
            first = len(self.pool.members)
            await self._run(place, anchor, decision.choice, rule=rule)
            anchors += await self._anchors(self.pool.places(range(first, len(self.pool.members))))

    def group(self) -> Group:
        """Return what has grown."""
        pool, members, extra, branches = self.pool, self.pool.members, self.pool.extra, self.pool.branches
        if self.config.train_on_rejected:
            branches = [
                record
                if record.is_kept
                else replace(record, rollouts=tuple(len(members) + place for place in record.rollouts))
                for record in branches
            ]
            members = [*members, *(Member(trajectory=trajectory, origin=Origin.BRANCH) for trajectory in extra)]
            extra = []
        return Group(
            group_id=group_id(pool.key),
            task_id=pool.task.task_id,
            members=tuple(members),
            extra=tuple(extra),
            cost=self.ledger.cost(),
            branches=tuple(branches),
            task_embedding=tuple(self.embedding.tolist()),
            decisions=self.decisions,
            measured=self.measured,
        )

    async def _run(self, place: Place, anchor: Anchor, prediction: Prediction, *, rule: str) -> bool:
        """Draw a branch, keep it or not, write it down; return whether it was kept."""
        action, before = prediction.action, self.pool.rewards
        drawn = await self.pool.draw(place, action.rollouts, self._continuing(action.regime))
        kept = rule != WARM_UP or is_kept(before, drawn.rewards, self.config.gain)
        self.pool.branches.append(
            BranchRecord(
                parent=place.parent,
                turn=place.turn,
                rollouts=self.pool.keep(drawn) if kept else self.pool.reject(drawn),
                is_kept=kept,
                rule=rule,
                regime=action.regime.name,
                temperature=self.tools.rollout.temperature * action.regime.temperature_factor,
                cell=action.cell,
                entropy=anchor.entropy,
                scalars=tuple(prediction.state.scalars.tolist()),
                hidden=tuple(prediction.state.hidden.tolist()),
                predicted=prediction.gain,
                gained=realized_gain(before, drawn.rewards, action, self.config.gain),
                chance=_chance(before, action, self.config.gain),
                is_first_trial=all(
                    (earlier.parent, earlier.turn) != (place.parent, place.turn) for earlier in self.pool.branches
                ),
            )
        )
        return kept

    def _continuing(self, regime: Regime) -> Continuing:
        purpose = "branch" if regime.kind == SAMPLE else "repaired_branch"
        hook = None
        if regime.kind == REPAIR:
            assert self.config.repair is not None
            hook = InterventionPipeline(self.tools, config=self.config.repair, ledger=self.ledger)
        return Continuing(
            engine=MeteredEngine(self.tools.engine, purpose=purpose, ledger=self.ledger),
            temperature_factor=regime.temperature_factor,
            step_hook=hook,
        )

    def _states(self, anchors: Sequence[Anchor]) -> list[State]:
        new = self.pool.members[len(self._records) :]
        self._records += [self._pool_rollout(member.trajectory) for member in new]
        pool = Pool(
            rollouts=self._records,
            rollouts_used=self.pool.used,
            rollout_budget=self.config.rollout_budget,
            failed_anchors=self.failed_anchors,
            task_embedding=self.embedding,
        )
        return build_states(anchors, pool)

    def _pool_rollout(self, trajectory: Trajectory) -> PoolRollout:
        entropies = [entropy for turn in trajectory.turns for entropy in turn.entropies]
        return PoolRollout(
            reward=trajectory.reward,
            entropy=normalized_entropy(entropies, self.tools.vocabulary_size),
            tool_calls=tuple(call.name for turn in trajectory.turns for call in turn.message.tool_calls),
        )

    def _entropy(self, place: Place) -> float:
        trajectory, turn = self.pool.turn_at(place)
        return anchor_entropy(trajectory.turns[turn].entropies, self.tools.vocabulary_size)

    async def _anchors(self, places: Sequence[Place]) -> list[tuple[Place, Anchor]]:
        hidden = await asyncio.gather(*map(self._hidden, places))
        return [
            (place, Anchor(round=place.turn, max_rounds=self.max_rounds, entropy=self._entropy(place), hidden=vector))
            for place, vector in zip(places, hidden, strict=True)
        ]

    async def _hidden(self, place: Place) -> NDArray[numpy.float32]:
        """Return what the policy knew before the turn: its state is cached, so nothing is computed for it."""
        if not self.method.wants_hidden:
            return nothing()
        trajectory, turn = self.pool.turn_at(place)
        start = trajectory.turns[turn].start
        ids = trajectory.token_ids
        scores = await self.reader.score(ids[:start], ids[start : start + 1], want_hidden=True)
        return unit_rms(scores.hidden[0].numpy())


def _chance(rewards: Sequence[float | None], action: Action, config: GainConfig) -> float | None:
    """Return the gain to be expected of as many rollouts from the start; None where rewards are not 0 and 1."""
    scored = [reward for reward in rewards if reward is not None]
    if config.target != "midpoint" or not scored or any(reward not in (0.0, 1.0) for reward in scored):
        return None
    successes = sum(map(is_success, scored))
    expected = chance_gain(successes, len(scored) - successes, action.rollouts)
    return expected - config.cost_weight * branch_cost(action)
