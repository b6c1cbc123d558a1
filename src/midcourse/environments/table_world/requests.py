"""Requests in plain words, the database that each is about, and what solves it.

A database has three tables with the same columns and the same names in their rows, but other numbers, no number
twice. So a statement on the wrong table or column answers as smoothly as the right one, with what is wrong. A fourth
table, the guide, says for each table and column by which word it is called as well:

    tables stock depot yard . in north , set the worth of cup to the price of lamp

Here `north` and `worth` are such words; which table and column they stand for differs from database to database.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from midcourse.environments.agentbench_db.tables import Table
from midcourse.environments.agentbench_db.task_file import Operation, Problem
from midcourse.environments.table_world.schemas import (
    COLUMN_WORDS,
    COLUMNS_OF_A_TABLE,
    GUIDE,
    KEY,
    MEANING,
    NUMBERS,
    TABLE_WORDS,
    WORD,
    Schema,
    draw_schema,
)
from midcourse.environments.table_world.statements import addition, change, removal

Kind = Literal["value", "best", "copy", "add", "remove"]
ROWS_OF_A_TABLE = COLUMNS_OF_A_TABLE
"""So many that each column can have its most in a row of its own."""

OPERATIONS: Mapping[Kind, Operation] = {
    "value": "select",
    "best": "select",
    "copy": "update",
    "add": "insert",
    "remove": "delete",
}
SLOTS: Mapping[Kind, int] = {"value": 2, "best": 3, "copy": 3, "add": 2, "remove": 2}
"""How many names of tables and columns a request has: as many may be said in other words."""
KINDS: Sequence[Kind] = tuple(SLOTS)
MAX_TRAPS = max(SLOTS.values())
PHRASES: Mapping[Kind, Sequence[str]] = {
    "value": ("what is the {first} of {name} in {table} ?", "in {table} , tell me the {first} of {name}"),
    "best": (
        "what is the {second} of the one with most {first} in {table} ?",
        "in {table} , find the one with most {first} and tell me its {second}",
    ),
    "copy": (
        "in {table} , set the {second} of {other} to the {first} of {name}",
        "take the {first} of {name} in {table} as the {second} of {other}",
    ),
    # The state's hash leaves out what a row does not have, so what is added stands in the column that it came from.
    "add": ("in {table} , add {other} with the {first} of {name}", "add {other} to {table} with the {first} of {name}"),
    "remove": ("in {table} , remove the one with least {first}", "remove the one with least {first} in {table}"),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A table or column of a request. `word` is how it is said; None: by its name."""

    name: str
    word: str | None = None

    @property
    def said(self) -> str:
        """What stands in the request."""
        return self.name if self.word is None else self.word


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request and its database."""

    kind: Kind
    phrase: str
    schema: Schema
    tables: Sequence[Table] = field(repr=False)  # the guide is the last
    table: Slot
    first: Slot  # the column that is looked at
    second: Slot | None  # the column that is asked for or changed; None: the kind has none
    name: str  # of the row that is looked at; "" where the request does not name it
    other: str  # of the row that is changed or added

    @property
    def num_traps(self) -> int:
        """How many tables and columns are said in other words."""
        slots = (self.table, self.first, self.second)
        return sum(slot is not None and slot.word is not None for slot in slots)

    @property
    def query(self) -> str:
        """The request as the policy is given it."""
        text = self.phrase.format(
            table=self.table.said,
            first=self.first.said,
            second=self.second.said if self.second else "",
            name=self.name,
            other=self.other,
        )
        return f"tables {' '.join(self.schema.tables)} . {text}"

    def cell(self, column: str, name: str) -> str:
        """Return the value that a row of the table that is meant has in a column."""
        table = next(table for table in self.tables if table.name == self.table.name)
        return next(row[table.columns.index(column)] or "" for row in table.rows if row[0] == name)

    def found(self) -> str:
        """Return what the first statement about the data finds: a number, or the name of a row."""
        if self.kind not in ("best", "remove"):
            return self.cell(self.first.name, self.name)
        table = next(table for table in self.tables if table.name == self.table.name)
        place = table.columns.index(self.first.name)
        chosen = (max if self.kind == "best" else min)(table.rows, key=lambda row: row[place] or "")
        return chosen[0] or ""

    def problem(self, *, tags: Sequence[str] = ()) -> Problem:
        """Return the request as the AgentBench-DB environment plays it."""
        operation = OPERATIONS[self.kind]
        content = (self.query, *((table.name, *table.columns, *table.rows) for table in self.tables))
        return Problem(
            task_id=f"table-world-{blake2b(repr(content).encode(), digest_size=6).hexdigest()}",
            query=self.query,
            operation=operation,
            tables=self.tables,
            reference_values=(self._answer(),) if operation == "select" else (),
            reference_statement=None if operation == "select" else self._statement(),
            recorded_state=None,
            tags=(*tags, f"kind:{self.kind}", f"traps:{self.num_traps}"),
        )

    def _answer(self) -> str:
        return self.found() if self.second is None else self.cell(self.second.name, self.found())

    def _statement(self) -> str:
        if self.kind == "remove":
            return removal(self.table.name, self.found())
        if self.second is None:
            return addition(self.table.name, self.first.name, self.other, self.found())
        return change(self.table.name, self.second.name, self.other, self.found())


def draw_request(rng: random.Random, *, num_traps: int, unseen: bool = False) -> Request:
    """Return a request over a database of its own.

    Args:
        rng: draws everything.
        num_traps: how many of its tables and columns are said in other words, in [0, 3].
        unseen: whether the schema is of those that are kept for a split of their own.

    Raises:
        ValueError: no kind of request has so many tables and columns.
    """
    kinds: list[Kind] = [kind for kind in KINDS if SLOTS[kind] >= num_traps]
    if not kinds or num_traps < 0:
        raise ValueError(f"num_traps must lie in [0, {MAX_TRAPS}]: got {num_traps}")
    kind: Kind = rng.choice(kinds)
    schema = draw_schema(rng, unseen=unseen)
    *names, other = rng.sample(schema.names, ROWS_OF_A_TABLE + 1)
    words = _draw_words(rng, schema)
    said_otherwise = set(rng.sample(range(SLOTS[kind]), num_traps))
    meant = [rng.choice(schema.tables), *rng.sample(schema.columns, SLOTS[kind] - 1)]
    slots = [Slot(name, words[name] if index in said_otherwise else None) for index, name in enumerate(meant)]
    name = rng.choice(names)
    if kind == "copy":
        other = rng.choice([candidate for candidate in names if candidate != name])
    return Request(
        kind=kind,
        phrase=rng.choice(PHRASES[kind]),
        schema=schema,
        tables=(*_draw_tables(rng, schema, names), _guide(rng, words)),
        table=slots[0],
        first=slots[1],
        second=slots[2] if len(slots) > 2 else None,
        name=name if kind in ("value", "copy", "add") else "",
        other=other if kind in ("copy", "add") else "",
    )


def _draw_words(rng: random.Random, schema: Schema) -> dict[str, str]:
    """Return name -> word, for every table and column."""
    return {
        **dict(zip(schema.tables, rng.sample(TABLE_WORDS, len(schema.tables)), strict=True)),
        **dict(zip(schema.columns, rng.sample(COLUMN_WORDS, len(schema.columns)), strict=True)),
    }


def _draw_tables(rng: random.Random, schema: Schema, names: Sequence[str]) -> list[Table]:
    """Return the tables with their rows; no number stands twice in a database."""
    num_columns = len(schema.columns)
    numbers = rng.sample(NUMBERS, num_columns * len(names) * len(schema.tables))
    tables: list[Table] = []
    for table in schema.tables:
        # Each column has its most and its least in rows of its own: else a wrong column could name the right row.
        rows = list(range(len(names)))
        rng.shuffle(rows)
        shift = rng.randrange(1, len(rows))
        columns: list[list[str]] = []
        for place in range(num_columns):
            least, *between, most = sorted(numbers.pop() for _ in rows)
            rng.shuffle(between)
            chosen = {rows[place]: most, rows[place - shift]: least}
            columns.append([chosen[row] if row in chosen else between.pop() for row in range(len(rows))])
        table_rows = [(name, *(column[row] for column in columns)) for row, name in enumerate(names)]
        tables.append(Table(name=table, columns=(KEY, *schema.columns), rows=tuple(table_rows)))
    return tables


def _guide(rng: random.Random, words: Mapping[str, str]) -> Table:
    rows = [(word, name) for name, word in words.items()]
    rng.shuffle(rows)
    return Table(name=GUIDE, columns=(WORD, MEANING), rows=tuple(rows))
