"""TAMPO: a policy over sampling temperatures, taught by GRPO's own advantages (arXiv:2602.11779). A rival of RAIL.

The rule, its source and what differs are in branching/rivals/tampo.py. Ours: each task of an update draws its own
temperature; log-probabilities in training stay at the run's.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy
from numpy.typing import NDArray
from pydantic import Field

from midcourse.advantages.group import group_advantages
from midcourse.branching.rivals.branches import uniform_draw
from midcourse.branching.rivals.tampo import TemperaturePolicy, TemperaturePolicyConfig
from midcourse.engines.base import Feature
from midcourse.environments.base import Task
from midcourse.errors import EngineError
from midcourse.interventions.metering import MeteredEngine
from midcourse.methods.base import METHODS, RolloutTools, RunFacts
from midcourse.methods.branched import BranchedRollouts
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.types import Group, TokenSource, Trajectory

MEASURED = "mean_logprobs"
"""Name in Group.measured: members' mean log-probabilities, nats, one after the other, at each temperature."""


@METHODS.register("tampo")
class TAMPOConfig(TemperaturePolicyConfig):
    """TAMPO: the sampling temperature is drawn by a policy of its own, which learns from the group's advantages."""

    name: Literal["tampo"] = "tampo"
    """The method."""
    group_size: int = Field(default=16, ge=1)
    """Rollouts of one task that are compared."""
    std_ddof: Literal[0, 1] = 0
    """0 divides the squared deviations by the group's size, 1 by one less (as TRL and verl do)."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL."""

    @property
    def needs(self) -> frozenset[Feature]:
        """A rollout is scored at every temperature."""
        return frozenset({Feature.PROMPT_SCORES})

    def build(self) -> "TAMPO":
        """Return the method."""
        return TAMPO(self)


class TAMPO:
    """GRPO at temperatures that pay."""

    def __init__(self, config: TAMPOConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)
        self.temperatures = TemperaturePolicy(config)

    def begin(self, facts: RunFacts) -> None:
        """Start from equal temperatures."""
        self.temperatures = TemperaturePolicy(self.config)

    def begin_update(self, update: int, tasks: Sequence[Task]) -> None:
        """Do nothing: each task draws when it is rolled out, from what earlier updates taught."""

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return the rollouts, with how likely each is at every temperature."""
        rollouts = BranchedRollouts(task, tools, seed=seed, update=update)
        factor = self.temperatures.choose(uniform_draw(*rollouts.draw_key, "temperature"))
        await rollouts.begin(self.config.group_size, temperature_factor=factor)
        group = rollouts.group()
        scorer = MeteredEngine(tools.engine, purpose="temperatures", ledger=rollouts.ledger)
        base = tools.rollout.temperature
        measured: dict[str, Sequence[float]] = {"temperature_factor": (factor,)}
        with contextlib.suppress(EngineError):  # the rollouts are whole; this group teaches the temperatures nothing
            measured[MEASURED] = tuple(
                await asyncio.gather(
                    *(
                        _mean_logprob(scorer, member.trajectory, temperature=base * other)
                        for member in group.members
                        for other in self.config.temperature_factors
                    )
                )
            )
        return replace(group, measured=measured, cost=rollouts.ledger.cost())

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] GRPO's."""
        return group_advantages(group.rewards, std_ddof=self.config.std_ddof)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return the temperatures that were drawn."""
        drawn = [group.measured["temperature_factor"][0] for group in groups]
        if not drawn:
            return {}
        failed = sum(MEASURED not in group.measured for group in groups)
        return {"intervention/temperature_factor": sum(drawn) / len(drawn), "intervention/states_failed": float(failed)}

    def learn(self, groups: Sequence[Group], *, update: int) -> Mapping[str, float]:
        """Take what the temperatures earned."""
        groups = [group for group in groups if MEASURED in group.measured]
        logprobs = [value for group in groups for value in group.measured[MEASURED]]
        self.temperatures.learn(logprobs, [value for group in groups for value in self.advantages(group)])
        factors = numpy.array(self.config.temperature_factors)
        return {"intervention/temperature_factor_expected": float(self.temperatures.probabilities() @ factors)}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what each temperature has earned."""
        return dict(self.temperatures.state_dict())

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take what `state_dict` gave. Raises CheckpointError where it is of other temperatures."""
        self.temperatures.load_state_dict(state)


async def _mean_logprob(engine: MeteredEngine, trajectory: Trajectory, *, temperature: float) -> float:
    """Return the mean log-probability of what the policy wrote, at `temperature`; 0 where it wrote nothing.

    Turn by turn: the engine holds each turn's states, so that only the last layer is computed again. A rollout that
    failed earns nothing and is not scored: what failed it may be the engine.
    """
    if trajectory.reward is None:
        return 0.0
    scores = await asyncio.gather(
        *(
            engine.score(
                trajectory.token_ids[: turn.start],
                trajectory.token_ids[turn.start : turn.end],
                temperature=temperature,
            )
            for turn in trajectory.turns
            if turn.end > turn.start and trajectory.sources[turn.start] is TokenSource.POLICY
        )
    )
    values = [logprob for score in scores for logprob in score.logprobs]
    return sum(values) / len(values) if values else 0.0
