"""What a method is: how a group is collected, what its members' advantages are, which objective trains on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from midcourse.engines.base import Engine, TextEngine
from midcourse.environments.base import Environment, Task
from midcourse.objectives.base import Objective
from midcourse.registry import Registry
from midcourse.rollout.chat import ChatFormat
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTools:
    """Everything that collecting a group may use. `role_engines` has an entry only where a role is not the policy."""

    engine: Engine
    chat: ChatFormat
    environment: Environment
    rollout: RolloutConfig
    role_engines: Mapping[str, TextEngine] = field(default_factory=dict)  # "validator" | "corrector" | "verifier"


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


class MethodConfig(Protocol):
    """What a pydantic class registered here offers besides its settings."""

    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared."""
        ...

    def build(self) -> Method:
        """Return the method."""
        ...


METHODS: Registry[type[Any]] = Registry("method")
"""Name -> pydantic config class; see `MethodConfig`."""
