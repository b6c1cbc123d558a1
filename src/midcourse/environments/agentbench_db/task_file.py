"""AgentBench's DB tasks from a file: one JSON object a task (docs/agentbench_db.md says where to get it)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from midcourse.environments.agentbench_db.tables import Table
from midcourse.environments.base import Evidence, Task
from midcourse.environments.records import read_records
from midcourse.errors import DataError

Operation = Literal["select", "insert", "update", "delete"]
WRITES = ("INSERT", "UPDATE", "DELETE")
_QUOTED = re.compile(r"`[^`]*`|'((?:[^'\\]|\\.|'')*)'|\"((?:[^\"\\]|\\.|\"\")*)\"", re.DOTALL)
_STATE = re.compile(r"\b(?:[0-9a-f]{32}|None)(?:_(?:[0-9a-f]{32}|None))*\b")  # None: of a table without rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One task with what its reward knows."""

    task_id: str
    query: str
    operation: Operation
    tables: Sequence[Table] = field(repr=False)
    reference_values: Sequence[str] = field(repr=False)  # of a select; () of the others
    reference_statement: str | None = field(repr=False)  # of the others
    recorded_state: str | None = field(repr=False)  # hash that the file gives for the state afterwards
    tags: Sequence[str]

    def task(self, split: str) -> Task:
        """Return the task as a rollout gets it."""
        if self.operation == "select":
            text = f"Reference answer: {', '.join(self.reference_values)}"
            private = tuple(self.reference_values)
        else:
            text = f"A statement that does what is asked: {self.reference_statement}"
            private = tuple(_literals(self.reference_statement or ""))
        return Task(
            task_id=self.task_id,
            split=split,
            query=self.query,
            tags=self.tags,
            evidence=Evidence(
                text=text,
                private_values=private,
                facts={
                    "operation": self.operation,
                    "tables": tuple(table.name for table in self.tables),
                    "values": tuple(self.reference_values),
                    "statement": self.reference_statement,
                },
            ),
        )


class _Column(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str


class _TableInfo(BaseModel):
    model_config = ConfigDict(extra="ignore")

    columns: list[_Column] = Field(min_length=1)
    rows: list[list[str | int | float | None]]


class _Table(BaseModel):
    model_config = ConfigDict(extra="ignore")

    table_name: str = Field(min_length=1)
    table_info: _TableInfo

    @model_validator(mode="after")
    def _rows_fit(self) -> "_Table":
        width = len(self.table_info.columns)
        for number, row in enumerate(self.table_info.rows):
            if len(row) != width:
                raise ValueError(f"table {self.table_name!r}, row {number}: {len(row)} values, expected {width}")
        return self

    def table(self) -> Table:
        info = self.table_info
        return Table(
            name=self.table_name,
            # A column without a name (the dev file has one) cannot be made on MySQL.
            columns=tuple(column.name or f"column_{number}" for number, column in enumerate(info.columns, start=1)),
            # Written as AgentBench writes them: Python's text of the JSON value, None included.
            rows=tuple(tuple(str(value) for value in row) for row in info.rows),
        )


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore")

    description: str = Field(min_length=1)
    add_description: str = ""
    evidence: str = ""  # AgentBench's word for a hint that the agent is given
    type: list[str] = Field(min_length=1)
    label: list[str | int | float] = Field(min_length=1)
    answer_md5: str = ""
    table: list[_Table]
    user_sqlite: bool = False

    @field_validator("type", "label", "table", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @model_validator(mode="after")
    def _can_be_played(self) -> "_Record":
        if self.user_sqlite:
            raise ValueError("user_sqlite: tasks on database files of their own cannot be played")
        if self.answer_md5 and not _STATE.search(self.answer_md5):
            raise ValueError(f"answer_md5: expected a hash, got {self.answer_md5[:80]!r}")
        return self


def problem_from(record: Mapping[str, Any], *, number: int) -> Problem:
    """Return the problem of a record.

    Args:
        record: as the file has it.
        number: its place in the file, which is part of the task's name.

    Raises:
        ValidationError: a field is missing, of another type, or a row does not fit its table.
    """
    read = _Record.model_validate(record)
    kind = read.type[0]
    operation: Operation = "select"
    if kind.upper() in WRITES:
        operation = kind.lower()  # pyright: ignore[reportAssignmentType] (one of WRITES)
    is_select = operation == "select"
    digest = blake2b(read.model_dump_json().encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    recorded = _STATE.search(read.answer_md5)
    return Problem(
        task_id=f"agentbench-db-{number}-{digest}",
        query="\n".join(part.strip() for part in (read.description, read.evidence, read.add_description) if part),
        operation=operation,
        tables=tuple(table.table() for table in read.table),
        reference_values=tuple(map(str, read.label)) if is_select else (),
        reference_statement=None if is_select else str(read.label[0]),
        recorded_state=recorded.group() if recorded and not is_select else None,
        tags=(f"operation:{operation}", *((f"kind:{kind.lower()}",) if is_select else ())),
    )


def read_problems(path: Path, *, sha256: str | None = None) -> list[Problem]:
    """Return the problems of a file, in its order.

    Raises:
        DataError: the file cannot be read, has another digest, holds no task, or a record is no task.
    """
    problems = []
    for number, (where, record) in enumerate(read_records(path, sha256=sha256)):
        try:
            problems.append(problem_from(record, number=number))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise DataError(f"{where}{', ' + place if place else ''}: {first['msg']}") from error
    if not problems:
        raise DataError(f"{path} holds no task")
    return problems


def _literals(statement: str) -> list[str]:
    """Return the texts between quotes in a statement, each once; names between backticks are none."""
    found = (match[1] or match[2] or "" for match in _QUOTED.finditer(statement))
    return list(dict.fromkeys(text for text in found if text.strip()))
