"""The navigation benchmark of RTI (App. C.2.1) on seeded maps, or on the live one: config, splits, episodes."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.environments.base import ENVIRONMENTS, Task
from midcourse.environments.navigation.amap import AmapConfig
from midcourse.environments.navigation.atlas import Atlas, make_atlas
from midcourse.environments.navigation.construction import counterfactual, make_task
from midcourse.environments.navigation.episode import MAX_TURNS, NavigationEpisode
from midcourse.environments.navigation.guide import ROLE_GUIDE, SYSTEM_PROMPT
from midcourse.environments.navigation.task_file import read_tasks
from midcourse.environments.navigation.tools import TOOLS, Map
from midcourse.errors import ConfigError

if TYPE_CHECKING:
    from midcourse.environments.navigation.roles import OracleRoles

MAX_REPEATS = 2000
MAX_TASKS = 10_000
"""Most tasks of a split: all are drawn before the first rollout, and no map has many times more trips."""
SPLITS = ("train", "test", "ood")
CONSTRUCTION_FIELDS = ("seed", "train_tasks", "test_tasks", "hard_fraction", "max_ambiguous")
"""Settings of tasks that are drawn on a seeded map; a task file has none of them."""


@ENVIRONMENTS.register("navigation")
class NavigationConfig(BaseModel):
    """Navigation: plan routes over places whose names recur in other regions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    profile: Literal["nano", "full"] = "nano"
    """nano: a few words per turn for a tiny policy; full: sentences, real cities, six-decimal coordinates."""
    seed: int = 0
    """Which map, and which tasks on it."""
    train_tasks: int = Field(default=600, ge=1, le=MAX_TASKS)
    """Tasks of the train split."""
    test_tasks: int = Field(default=150, ge=1, le=MAX_TASKS)
    """Tasks of the test split (same map, other trips) and of the ood split (an unseen map)."""
    hard_fraction: float = Field(default=0.5, ge=0, le=1)
    """Share of tasks in which a bare search of some name returns a place of another region. In [0, 1]."""
    max_ambiguous: int = Field(default=1, ge=1, le=7)
    """Most such names in one task; a hard nano task has at most 2."""

    backend: Literal["atlas", "amap"] = "atlas"
    """Who answers the tools: seeded maps, or the live Amap service, which plays the tasks of `tasks_file` alone."""
    tasks_file: str | None = None
    """The tasks of backend amap, one JSON object a line (docs/amap.md). Tasks of a seeded map have made-up places."""
    amap: AmapConfig = Field(default_factory=AmapConfig)
    """How the live service is reached."""

    @model_validator(mode="after")
    def _has_what_its_backend_needs_and_no_more(self) -> Self:
        fields = type(self).model_fields
        if self.backend == "atlas":
            unused = ("tasks_file", "amap")
        else:
            unused = CONSTRUCTION_FIELDS
            if self.profile != "full":
                raise ValueError(
                    f'environment.profile = "{self.profile}": backend "amap" answers with real places and six-decimal '
                    'coordinates; set environment.profile = "full"'
                )
            if self.tasks_file is None:
                raise ValueError(
                    'backend "amap" needs environment.tasks_file: no task can be drawn on a live map (see docs/amap.md)'
                )
        for name in unused:
            if getattr(self, name) != fields[name].get_default(call_default_factory=True):
                raise ValueError(f'environment.{name} is not used with backend "{self.backend}"')
        return self

    def build(self) -> "NavigationEnvironment":
        """Return the environment.

        Raises:
            DataError: the task file cannot be used.
            ConfigError: the environment variable with the service's key is not set.
        """
        if self.tasks_file is None:
            return NavigationEnvironment(self)
        return NavigationEnvironment(self, tasks=read_tasks(Path(self.tasks_file)), world=self.amap.build())


class NavigationEnvironment:
    """Tasks and episodes of one config. Splits are made on first use and are the same on every platform."""

    name = "navigation"
    system_prompt = SYSTEM_PROMPT
    tools = TOOLS
    max_turns = MAX_TURNS
    role_guide = ROLE_GUIDE

    def __init__(
        self, config: NavigationConfig, *, world: Map | None = None, tasks: Sequence[Task] | None = None
    ) -> None:
        """`world` answers the tools instead of the tasks' own seeded maps; `tasks` take the place of drawn ones."""
        self.config = config
        self._world = world
        self._splits: dict[str, tuple[Task, ...]] = {}
        self._known_splits = SPLITS
        if tasks is not None:
            self._known_splits = tuple(dict.fromkeys(task.split for task in tasks))
            self._splits = {split: tuple(t for t in tasks if t.split == split) for split in self._known_splits}
        self._atlases: dict[tuple[int, bool], Atlas] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split; order level and size are in their tags, and difficulty where they were drawn.

        Drawn tasks have the splits "train", "test" and "ood".

        Raises:
            ConfigError: no such split, or the map has too few different trips for the sizes asked for.
        """
        if split not in self._known_splits:
            raise ConfigError(f"unknown split {split!r} of navigation; known: {', '.join(sorted(self._known_splits))}")
        if split not in self._splits:
            config = self.config
            if split == "ood":
                self._splits["ood"] = self._make(self._atlas(config.seed, held_out=True), ("ood",) * config.test_tasks)
            else:
                both = ("train",) * config.train_tasks + ("test",) * config.test_tasks
                made = self._make(self._atlas(config.seed, held_out=False), both)
                self._splits["train"] = made[: config.train_tasks]
                self._splits["test"] = made[config.train_tasks :]
        return self._splits[split]

    def start(self, task: Task, *, seed: int) -> NavigationEpisode:
        """Return a fresh episode; nothing in it is random, so `seed` changes nothing.

        A seeded map is found by the task's own facts, so tasks that `make_task` drew on any atlas run too.
        """
        atlas = task.evidence.facts["atlas"]
        world = self._world
        if world is None:
            world = self._atlas(atlas["seed"], held_out=atlas["held_out"])
        return NavigationEpisode(task, world=world, profile=atlas["profile"])

    def scripted_roles(self) -> "OracleRoles":
        """Return validator, corrector and verifier without a model."""
        from midcourse.environments.navigation.roles import OracleRoles

        return OracleRoles()

    def counterfactual(self, task: Task) -> Task | None:
        """Return the task with evidence that puts one place elsewhere, for leak audits.

        None if no name recurs, or if the map is live: what it will answer is not known.
        """
        if self._world is not None:
            return None
        atlas = task.evidence.facts["atlas"]
        return counterfactual(self._atlas(atlas["seed"], held_out=atlas["held_out"]), task)

    def _atlas(self, seed: int, *, held_out: bool) -> Atlas:
        key = (seed, held_out)
        if key not in self._atlases:
            if len(self._atlases) >= 64:
                self._atlases.clear()
            self._atlases[key] = make_atlas(self.config.profile, seed, held_out=held_out)
        return self._atlases[key]

    def _make(self, atlas: Atlas, splits: Sequence[str]) -> tuple[Task, ...]:
        """Make one task per entry of `splits`; no two share places and order level, so none leaks over the splits."""
        rng = random.Random(f"tasks/{atlas.profile}/{atlas.seed}/{atlas.held_out}")
        taken: set[tuple[frozenset[str], int]] = set()
        tasks = []
        for split in splits:
            difficulty = "hard" if rng.random() < self.config.hard_fraction else "easy"
            for _ in range(MAX_REPEATS):
                task = make_task(atlas, rng, difficulty, split=split, max_ambiguous=self.config.max_ambiguous)
                facts = task.evidence.facts
                key = (frozenset(place["coordinates"] for place in facts["route"]), facts["order_level"])
                if key not in taken:
                    break
            else:
                raise ConfigError(f"the map has no further {difficulty} trips after {len(tasks)} tasks: ask for fewer")
            taken.add(key)
            tasks.append(task)
        return tuple(tasks)
