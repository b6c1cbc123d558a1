"""What a method is: how a group is collected, what its members' advantages are, which objective trains on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from midcourse.engines.base import Engine, Feature, TextEngine
from midcourse.environments.base import Environment, Task
from midcourse.objectives.base import Objective
from midcourse.registry import Registry
from midcourse.rollout.chat import ChatFormat
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """A model that writes tokens, and how they are read. `shares_tokens`: its vocabulary is the policy's."""

    engine: Engine
    chat: ChatFormat
    shares_tokens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTools:
    """Everything that collecting a group may use. `role_engines` has an entry only where a role is not the policy."""

    engine: Engine
    chat: ChatFormat
    environment: Environment
    rollout: RolloutConfig
    role_engines: Mapping[str, TextEngine] = field(default_factory=dict)  # role ("validator", "judge", ...) -> engine
    vocabulary_size: int = 0  # tokens that the policy chooses from; 0: not known, and no entropy can be normalised
    judge: Speaker | None = None  # pi_JI: a frozen copy of the policy or another model, to judge or to teach


class Method(Protocol):
    """One algorithm. The trainer calls these and never asks for the name."""

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Roll the task out. `seed` is the run's; draws are keyed by (seed, update, task, attempt, turn)."""
        ...

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] one advantage a member; None keeps the member out of loss and denominators (it failed)."""
        ...

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return what only this method counts, over one update's groups, under names intervention/*."""
        ...

    @property
    def objective(self) -> Objective:
        """The loss that trains on the group's tokens."""
        ...


@runtime_checkable
class ScheduledMethod(Protocol):
    """A method that trains one way first and another way later. The trainer asks before each update which it is."""

    def phase(self, update: int) -> str:
        """Return the name of the part that an update belongs to; updates count from 1."""
        ...

    def objective_in(self, phase: str) -> Objective:
        """Return the loss of a part."""
        ...

    def finish_update(self, groups: Sequence[Group]) -> None:
        """See the groups of an update that is done; they may decide when the next part begins."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return what a resumed run must know, as plain values; part of a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a method that learns must know of a run before its first update."""

    seed: int
    updates: int  # of the whole run
    hidden_size: int  # H of the policy
    tasks: Sequence[Task]  # that the run draws from


@runtime_checkable
class LearningMethod(Protocol):
    """A method that learns something of its own beside the policy. What it learned is part of a checkpoint."""

    def begin(self, facts: RunFacts) -> None:
        """Make ready for a run; a resumed one gets `load_state_dict` next."""
        ...

    def begin_update(self, update: int, tasks: Sequence[Task]) -> None:
        """Decide what holds for a whole update, before its first rollout. A resumed update asks again."""
        ...

    def learn(self, groups: Sequence[Group], *, update: int) -> Mapping[str, float]:
        """Take what an update brought, in the order of its tasks, and return metrics under intervention/."""
        ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything that a resumed run must know, as flat arrays."""
        ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take what `state_dict` gave. Raises CheckpointError where it is not this method's."""
        ...


class MethodConfig(Protocol):
    """What a pydantic class registered here offers besides its settings."""

    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared."""
        ...

    def build(self) -> Method:
        """Return the method."""
        ...


@runtime_checkable
class NeedsFeatures(Protocol):
    """A method's settings that say what it cannot do without, besides drawn tokens and their log-probabilities."""

    @property
    def needs(self) -> frozenset[Feature]:
        """What the engine must give."""
        ...


METHODS: Registry[type[Any]] = Registry("method")
"""Name -> pydantic config class; see `MethodConfig`."""
