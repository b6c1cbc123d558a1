"""Tables of text, and the hash that stands for a table's state."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Row = Sequence[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table as an episode finds it. Every column holds text, whatever type the task file names."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Row] = field(repr=False)


def state_hash(rows: Iterable[Row]) -> str | None:
    """Return AgentBench's hash of a table's rows, None where there is no row.

    A row's hash is the first five hexadecimal digits of the MD5 of its values, joined by commas without the NULLs; the
    table's is the MD5 of its rows' hashes, sorted and joined by commas. So the order of rows does not matter.

    Differs from AgentBench: there MySQL joins them, and cuts what is joined at 1,024 bytes (170 rows).
    """
    row_hashes = sorted(_md5(",".join(value for value in row if value is not None))[:5] for row in rows)
    return _md5(",".join(row_hashes)) if row_hashes else None


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
