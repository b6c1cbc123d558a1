"""The names of the world, and which tables may have which columns: families, crossed where a schema is to be unseen."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TABLES_OF_A_DATABASE = 3
COLUMNS_OF_A_TABLE = 4
"""Besides the name: as many columns of numbers."""
KEY = "name"
GUIDE, WORD, MEANING = "guide", "word", "means"
"""The table that says what the words of a request stand for, and its columns."""

TABLES: Mapping[str, Sequence[str]] = {
    "goods": ("stock", "depot", "cellar", "shelf", "yard", "cargo"),
    "people": ("staff", "crew", "pupils", "guests", "club", "choir"),
}
COLUMNS: Mapping[str, Sequence[str]] = {
    "goods": ("price", "cost", "weight", "size", "amount", "volume"),
    "people": ("age", "rank", "score", "wage", "height", "level"),
}
NAMES: Mapping[str, Sequence[str]] = {
    "goods": ("lamp", "cup", "chair", "rope", "bell", "drum", "vase", "tent", "sack", "knife", "clock", "brush"),
    "people": ("anna", "boris", "clara", "david", "emma", "felix", "greta", "hugo", "ida", "jonas", "lena", "max"),
}
TABLE_WORDS = ("north", "south", "east", "west", "old", "new", "main", "spare")
COLUMN_WORDS = ("worth", "mark", "figure", "rate", "measure", "grade", "degree", "extent")
"""Words that requests use in place of a table's or column's name; what they stand for is drawn for every database."""
NUMBERS = tuple(str(number) for number in range(10, 100))
"""Values of the columns; of two digits each, so that text sorts as numbers do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What the tables of one database are called, and what they have in common."""

    tables: Sequence[str]
    columns: Sequence[str]  # of every table, besides KEY
    names: Sequence[str]  # that its rows may have


def draw_schema(rng: random.Random, *, unseen: bool) -> Schema:
    """Return a schema: tables and columns of one family, or for an unseen one columns of the other family.

    So no table of an unseen schema has a column that it has in any other, but every word of it occurs in others.
    """
    family, other = rng.sample(tuple(TABLES), 2)
    return Schema(
        tables=tuple(rng.sample(TABLES[family], TABLES_OF_A_DATABASE)),
        columns=tuple(rng.sample(COLUMNS[other if unseen else family], COLUMNS_OF_A_TABLE)),
        names=NAMES[family],
    )
