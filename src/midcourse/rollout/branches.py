"""Branches: several continuations of one rollout from one of its turns on, and the pool that they grow.

A branch shares its parent's tokens, whose keys and values the engine has cached, and its world, which is forked by
replay (environments/replay.py): each continuation leads an episode of its own through the turns before it, in its own
thread, and fails with `replay_mismatch` if it does not answer as it had. Log-probabilities are at the rollout's
temperature, whatever a continuation was drawn at: that is what training compares with.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from midcourse.branching.lineage import Lineage
from midcourse.engines.base import Engine
from midcourse.environments.base import Environment, Task
from midcourse.environments.replay import replayed
from midcourse.rollout.chat import ChatFormat
from midcourse.rollout.edits import fork
from midcourse.rollout.episode import RolloutKey, StepHook, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import BranchRecord, Member, Origin, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuing:
    """How continuations are made: by whom, how warm, under which step hook."""

    engine: Engine
    temperature_factor: float = 1.0  # times the rollout's, for the draws alone
    step_hook: StepHook | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A turn of a rollout, by its place among the pool's members; None, 0 is the task's start."""

    parent: int | None = None
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Continuations of one place that nobody has decided on yet."""

    place: Place
    first_attempt: int  # numbers of the attempts: this one and those that follow it
    trajectories: Sequence[Trajectory]

    @property
    def rewards(self) -> list[float | None]:
        """Of the continuations."""
        return [trajectory.reward for trajectory in self.trajectories]


@dataclass(slots=True, kw_only=True)
class RolloutPool:
    """The rollouts of one task. `members` are kept, in the order of `keep`; `extra` were drawn and are not."""

    task: Task
    chat: ChatFormat
    environment: Environment
    config: RolloutConfig
    key: RolloutKey
    members: list[Member] = field(default_factory=list[Member])
    extra: list[Trajectory] = field(default_factory=list[Trajectory])
    branches: list[BranchRecord] = field(default_factory=list[BranchRecord])
    parents: list[int | None] = field(default_factory=list[int | None])  # of each member
    own_turns: list[int] = field(default_factory=list[int])  # of each member: the first turn that is not its parent's
    used: int = 0  # rollouts asked for so far, those that were not kept included
    _worlds: list[int] = field(default_factory=list[int])  # of each member: the attempt whose episode it goes on with

    @property
    def rewards(self) -> list[float | None]:
        """Of the members."""
        return [member.trajectory.reward for member in self.members]

    @property
    def lineage(self) -> Lineage:
        """Which member wrote which turn."""
        return Lineage(parents=tuple(self.parents), forks=tuple(self.own_turns))

    async def draw(self, place: Place, count: int, continuing: Continuing) -> Drawn:
        """Return `count` fresh continuations from `place` on, run together; `keep` or `reject` them.

        Attempts are numbered in the order of the calls, so calls may run side by side.

        Raises:
            ValueError: there is no such turn.
        """
        parent = None if place.parent is None else self.members[place.parent].trajectory
        prefix = None if parent is None else fork(parent, place.turn)
        first = self.used
        self.used += count

        async def one(attempt: int) -> Trajectory:
            resume_from = None
            if prefix is not None:
                world = replace(self.key, attempt=self._world(place, attempt)).turn_seed(0, "environment")
                episode = replayed(self.environment, self.task, seed=world, turns=prefix.turns)
                resume_from = (prefix, episode)
            return await run_episode(
                self.task,
                engine=continuing.engine,
                chat=self.chat,
                environment=self.environment,
                config=self.config,
                key=replace(self.key, attempt=attempt),
                step_hook=continuing.step_hook,
                resume_from=resume_from,
                temperature_factor=continuing.temperature_factor,
            )

        trajectories = await asyncio.gather(*(one(first + index) for index in range(count)))
        return Drawn(place=place, first_attempt=first, trajectories=trajectories)

    def keep(self, drawn: Drawn, *, origin: Origin = Origin.BRANCH) -> tuple[int, ...]:
        """Make the continuations members and return their places."""
        first = len(self.members)
        for index, trajectory in enumerate(drawn.trajectories):
            self.members.append(Member(trajectory=trajectory, origin=origin))
            self.parents.append(drawn.place.parent)
            self.own_turns.append(drawn.place.turn)
            self._worlds.append(self._world(drawn.place, drawn.first_attempt + index))
        return tuple(range(first, len(self.members)))

    def reject(self, drawn: Drawn) -> tuple[int, ...]:
        """Put the continuations beside the pool and return their places there."""
        first = len(self.extra)
        self.extra.extend(drawn.trajectories)
        return tuple(range(first, len(self.extra)))

    def places(self, members: Sequence[int]) -> list[Place]:
        """Return where these members can be branched and no other member can: the start, then their own turns.

        A member's first own turn begins where a turn of its parent begins, which is a place already.
        """
        at_start = [Place()] if 0 in members and self._first_begun() is not None else []
        return at_start + [
            Place(parent=member, turn=turn)
            for member in members
            for turn in range(self.own_turns[member] + 1, len(self.members[member].trajectory.turns))
        ]

    def turn_at(self, place: Place) -> tuple[Trajectory, int]:
        """Return a rollout that has a turn at `place`, and the turn; at the task's start the first that began there.

        Raises:
            ValueError: no rollout has a turn there.
        """
        parent = self._first_begun() if place.parent is None else place.parent
        if parent is None or place.turn >= len(self.members[parent].trajectory.turns):
            raise ValueError(f"task {self.task.task_id!r}: no rollout has a turn at {place}")
        return self.members[parent].trajectory, place.turn

    def _first_begun(self) -> int | None:
        return next(
            (
                index
                for index, member in enumerate(self.members)
                if self.own_turns[index] == 0 and member.trajectory.turns
            ),
            None,
        )

    def _world(self, place: Place, attempt: int) -> int:
        return attempt if place.parent is None else self._worlds[place.parent]
