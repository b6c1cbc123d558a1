"""Worlds with tasks, tools, reward, evidence. Evidence goes to roles alone; nothing that renders a prompt sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from midcourse.registry import Registry
from midcourse.types import AssistantTurn, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool as the policy is told of it. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the reward knows and the policy must not: given to roles, never to a rollout prompt.

    `private_values` are the strings of the evidence that may occur in a correction only if something visible holds
    them already (coordinates, hidden names); `text` is the evidence as a role reads it.
    """

    text: str = field(repr=False)
    private_values: Sequence[str] = field(repr=False)
    facts: Mapping[str, Any] = field(repr=False, default_factory=dict)  # for scripted roles and audits


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. `query` is all that the policy is told besides the tools."""

    task_id: str
    split: str
    query: str
    tags: Sequence[str] = ()  # difficulty and kind: "easy", "hard", "order:3", ...
    evidence: Evidence = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the environment answers to one turn. With `done` nothing more is asked of the policy."""

    results: Sequence[ToolResult] = ()
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGuide:
    """What the roles must know of this domain; goes into their prompts as it stands."""

    hard_rules: Sequence[str]
    error_types: Sequence[str]
    verifier_rejects: Sequence[str]
    verifier_allows: Sequence[str]
    forbidden_phrases: Sequence[str] = ()  # a correction that holds one leaks ("reference answer", "gold", ...)


class Episode(Protocol):
    """One run of one task. Synchronous: the rollout loop calls it in a thread, under a timeout."""

    def act(self, turn: AssistantTurn) -> Observation:
        """Run the turn's tool calls in order. A bad call is an error result, not an exception."""
        ...

    def score(self) -> float:
        """Return the reward of what was done so far."""
        ...

    def close(self) -> None:
        """Free what the episode holds; safe to call twice."""
        ...


@runtime_checkable
class ForkableEpisode(Episode, Protocol):
    """An episode that can copy itself. Any other can be forked by doing again what was done: see replay.py."""

    def fork(self) -> "ForkableEpisode":
        """Return an independent episode in the same state: closing or playing one changes no other.

        The episode must not be in a call. Where the fork is played, and in which thread, is its caller's choice.
        """
        ...


class Environment(Protocol):
    """A family of tasks."""

    name: str
    system_prompt: str
    tools: Sequence[Tool]
    max_turns: int
    role_guide: RoleGuide

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the split's tasks, always in the same order.

        Raises:
            ConfigError: no such split; the message lists them.
        """
        ...

    def start(self, task: Task, *, seed: int) -> Episode:
        """Return a fresh episode of the task."""
        ...


class EnvironmentConfig(Protocol):
    """What a pydantic class registered here offers besides its settings."""

    def build(self) -> Environment:
        """Return the environment."""
        ...


@runtime_checkable
class LimitsTurns(Protocol):
    """Settings of an environment that ends what a turn runs, and says so, before it is given up itself."""

    @property
    def turn_limits(self) -> Mapping[str, float]:
        """Setting, by its key below [environment] -> seconds after which what a turn runs is ended."""
        ...


ENVIRONMENTS: Registry[Any] = Registry("environment")
