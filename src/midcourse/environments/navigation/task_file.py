"""Navigation tasks from a file: for a live map, on which nothing can be drawn in advance. docs/amap.md has the form."""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from midcourse.environments.base import Task
from midcourse.environments.navigation.construction import make_evidence
from midcourse.environments.navigation.places import Place, parse_point
from midcourse.environments.navigation.tools import MAX_WAYPOINTS
from midcourse.errors import DataError


class Stop(BaseModel):
    """One place of a reference route."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    region: str = Field(min_length=1)
    coordinates: str

    @field_validator("coordinates")
    @classmethod
    def _are_on_the_map(cls, coordinates: str) -> str:
        parse_point(coordinates, profile="full")
        return coordinates


class TaskLine(BaseModel):
    """One line of a task file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: str = Field(min_length=1)
    query: str
    order_level: Literal[0, 1, 2, 3, 4]
    route: tuple[Stop, ...] = Field(min_length=2, max_length=MAX_WAYPOINTS + 2)
    tags: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _query_names_the_route(self) -> "TaskLine":
        names = [stop.name for stop in self.route]
        if len(set(names)) < len(names):
            raise ValueError("the places of a route must have different names")
        absent = [name for name in names if name not in self.query]
        if absent:
            raise ValueError(f"the query must name every place of the route: it lacks {', '.join(absent)}")
        return self

    def task(self) -> Task:
        """Return the task."""
        route = [Place(name=stop.name, region=stop.region, coordinates=stop.coordinates) for stop in self.route]
        digest = blake2b(self.query.encode(), digest_size=6).hexdigest()
        return Task(
            task_id=f"navigation-file-{digest}",
            split=self.split,
            query=self.query,
            tags=(*self.tags, f"order:{self.order_level}", f"places:{len(route)}"),
            evidence=make_evidence(route, order_level=self.order_level, atlas={"profile": "full"}),
        )


def read_tasks(path: Path) -> list[Task]:
    """Return the tasks of a file, one JSON object a line; empty lines are skipped.

    Raises:
        DataError: the file cannot be read, holds no task, a line is no task, or two tasks have the same query.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a query may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    tasks: dict[str, Task] = {}
    for number, task in _numbered_tasks(path, lines):
        if task.task_id in tasks:
            raise DataError(f"{path}, line {number}: an earlier line has the same query")
        tasks[task.task_id] = task
    if not tasks:
        raise DataError(f"{path} holds no task")
    return list(tasks.values())


def _numbered_tasks(path: Path, lines: list[str]) -> Iterator[tuple[int, Task]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, TaskLine.model_validate_json(line, strict=True).task()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            raise DataError(f"{path}, line {number}{', ' + where if where else ''}: {message}") from error
