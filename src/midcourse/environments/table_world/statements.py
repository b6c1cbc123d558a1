"""The statements that solve requests, and reading the rows that the database answers with."""

import ast
from collections.abc import Sequence

from midcourse.environments.table_world.schemas import GUIDE, KEY, MEANING, WORD

ORDERS = ("", f" ORDER BY {KEY}", " ORDER BY cid DESC")
"""Ways to list a table's columns that differ in order alone."""


def look_up(word: str) -> str:
    """Return the statement that asks the guide what a word stands for."""
    return f"SELECT {MEANING} FROM {GUIDE} WHERE {WORD} = '{word}'"


def columns_of(table: str, *, order: str = "") -> str:
    """Return the statement that lists a table's columns; `order` is one of ORDERS."""
    return f"SELECT {KEY} FROM pragma_table_info('{table}'){order}"


def value_of(table: str, column: str, name: str) -> str:
    """Return the statement that asks for one value."""
    return f"SELECT {column} FROM {table} WHERE {KEY} = '{name}'"


def extreme(table: str, column: str, *, most: bool) -> str:
    """Return the statement that asks which row has the most, or the least, of a column."""
    return f"SELECT {KEY} FROM {table} ORDER BY {column}{' DESC' if most else ''} LIMIT 1"


def change(table: str, column: str, name: str, value: str) -> str:
    """Return the statement that gives one row a value."""
    return f"UPDATE {table} SET {column} = '{value}' WHERE {KEY} = '{name}'"


def addition(table: str, column: str, name: str, value: str) -> str:
    """Return the statement that adds a row with a name and one value."""
    return f"INSERT INTO {table} ({KEY}, {column}) VALUES ('{name}', '{value}')"


def removal(table: str, name: str) -> str:
    """Return the statement that takes out a row."""
    return f"DELETE FROM {table} WHERE {KEY} = '{name}'"


def first_values(result: str) -> list[str]:
    """Return the first value of each row of a result, as the database shows rows.

    Raises:
        ValueError: the text shows no rows.
    """
    try:
        rows = ast.literal_eval(result)
        return [str(row[0]) for row in rows]
    except (SyntaxError, TypeError, IndexError) as error:
        raise ValueError(f"expected rows as a list of tuples: got {result[:80]!r}") from error


def only_value(values: Sequence[str]) -> str:
    """Return the value of a result of one row.

    Raises:
        ValueError: another number of rows.
    """
    if len(values) != 1:
        raise ValueError(f"expected one row: got {len(values)}")
    return values[0]
