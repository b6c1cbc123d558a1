"""VIP: more rollouts for tasks whose gradient varies most (arXiv:2602.01601). A rival of RAIL.

The allocation, its source and what differs are in branching/rivals/vip.py, the predictor in vip_predictor.py. Ours:
tasks are embedded by their words, hashed (the paper has a sentence encoder).
"""

import itertools
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import numpy
from numpy.typing import NDArray
from pydantic import Field

from midcourse.advantages.group import group_advantages
from midcourse.advantages.leave_one_out import leave_one_out_advantages
from midcourse.branching.rivals.vip import VIPAllocationConfig, allocate_rollouts
from midcourse.branching.rivals.vip_predictor import VIPPredictor, VIPPredictorConfig
from midcourse.environments.base import Task
from midcourse.errors import ConfigError
from midcourse.methods.base import METHODS, RolloutTools, RunFacts
from midcourse.methods.branched import BranchedRollouts, mean
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.types import Group

EMBEDDING_SIZE = 384
"""Numbers of a task's embedding, as many as the paper's encoder has."""


@METHODS.register("vip")
class VIPConfig(VIPAllocationConfig):
    """VIP: a budget of rollouts is given out among an update's tasks, most where gradients vary most."""

    name: Literal["vip"] = "vip"
    """The method."""
    predictor: VIPPredictorConfig = Field(default_factory=VIPPredictorConfig)
    """How success is predicted before a task is rolled out."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """Clip, aggregation and KL."""

    @property
    def group_size(self) -> int:
        """Rollouts of one task, on average."""
        return self.rollouts_per_task

    def build(self) -> "VIP":
        """Return the method."""
        return VIP(self)


class VIP:
    """GRPO with groups of sizes that fit the tasks."""

    def __init__(self, config: VIPConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)
        self._predictor: VIPPredictor | None = None
        self._rows: Mapping[str, int] = {}  # task id -> row of the predictor
        self._sizes: Mapping[str, int] = {}  # task id -> rollouts in this update
        self._predicted: Mapping[str, float] = {}

    def begin(self, facts: RunFacts) -> None:
        """Build the predictor over the run's tasks."""
        self._rows = {task.task_id: row for row, task in enumerate(facts.tasks)}
        self._predictor = VIPPredictor(
            numpy.stack([embed_words(task.query) for task in facts.tasks]), self.config.predictor
        )

    def begin_update(self, update: int, tasks: Sequence[Task]) -> None:
        """Give out the update's rollouts."""
        names = [task.task_id for task in tasks]
        probabilities = self._trained.predict([self._rows[name] for name in names]).tolist()
        self._predicted = dict(zip(names, probabilities, strict=True))
        self._sizes = dict(zip(names, allocate_rollouts(probabilities, self.config), strict=True))

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return as many rollouts as the task was given."""
        rollouts = BranchedRollouts(task, tools, seed=seed, update=update)
        await rollouts.begin(self._sizes.get(task.task_id, self.config.rollouts_per_task))
        return rollouts.group()

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] Dr. GRPO's or RLOO's, as the allocation takes for granted."""
        if self.config.estimator == "rloo":
            return leave_one_out_advantages(group.rewards)
        return group_advantages(group.rewards, normalize=False)

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return how the rollouts were given out and how far predictions were off."""
        sizes = [len(group.members) for group in groups]
        errors = [
            abs(self._predicted[group.task_id] - rate)
            for group in groups
            if group.task_id in self._predicted and (rate := success_rate(group)) is not None
        ]
        found = {
            "intervention/rollouts_a_task": mean(sizes),
            "intervention/rollouts_least": min(sizes, default=None),
            "intervention/rollouts_most": max(sizes, default=None),
            "intervention/prediction/mean_absolute_error": mean(errors),
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def learn(self, groups: Sequence[Group], *, update: int) -> Mapping[str, float]:
        """Take the mean rewards of an update's tasks."""
        seen = [(self._rows[group.task_id], rate) for group in groups if (rate := success_rate(group)) is not None]
        self._trained.observe([row for row, _ in seen], [rate for _, rate in seen])
        return {}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the predictor's."""
        return dict(self._trained.state_dict())

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take what `state_dict` gave. Raises CheckpointError where it is of other tasks."""
        self._trained.load_state_dict(state)

    @property
    def _trained(self) -> VIPPredictor:
        if self._predictor is None:
            raise ConfigError("vip: rollouts cannot be given out before `begin`, which builds the predictor")
        return self._predictor


def embed_words(text: str) -> NDArray[numpy.float64]:
    """Return [EMBEDDING_SIZE] of length 1: each word and pair of words adds 1 or -1 at a place that its hash names."""
    words = text.lower().split()
    vector = numpy.zeros(EMBEDDING_SIZE)
    for item in (*words, *(f"{one} {two}" for one, two in itertools.pairwise(words))):
        number = int.from_bytes(blake2b(item.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "big")
        vector[(number >> 1) % EMBEDDING_SIZE] += 1.0 if number & 1 else -1.0
    length = float(numpy.sqrt(vector @ vector))
    return vector / length if length else vector


def success_rate(group: Group) -> float | None:
    """Return the mean reward, in [0, 1]: one outside counts as the nearer end; None where no member was scored."""
    reward = mean([reward for reward in group.rewards if reward is not None])
    return None if reward is None else min(max(reward, 0.0), 1.0)
