"""The price table: daily rows from a CSV file, as questions are asked about them."""

import csv
import hashlib
import io
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Self

from midcourse.errors import DataError

COLUMNS = ("Date", "Open", "High", "Low", "Close", "Volume", "Currency")


@dataclass(frozen=True, slots=True)
class Day:
    """One row. Prices in the table's currency; the date as the file writes it, YYYY-MM-DD."""

    date: str
    open: float
    high: float
    low: float
    close: float
    volume: int
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """All rows by date, and the file's text, which is what the interpreter loads."""

    days: Sequence[Day] = field(repr=False)
    text: str = field(repr=False)

    @classmethod
    def read(cls, path: Path, *, sha256: str | None = None) -> Self:
        """Return the table of a file.

        Raises:
            DataError: the file cannot be read, has another digest, other columns, a row that is none, or days out of
                order.
        """
        try:
            content = path.read_bytes()
            text = content.decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256.lower():
            raise DataError(f"{path} has sha256 {found}, expected {sha256}")
        rows = csv.reader(io.StringIO(text))
        header = tuple(next(rows, ()))
        if header != COLUMNS:
            raise DataError(f"{path}, line 1: expected the columns {','.join(COLUMNS)}, got {','.join(header)[:200]}")
        days: list[Day] = []
        try:
            for row in rows:
                day = _day(row)
                if days and day.date <= days[-1].date:
                    raise ValueError(f"{day.date} comes after {days[-1].date}: expected each day once, in order")
                days.append(day)
        except (ValueError, csv.Error) as error:
            raise DataError(f"{path}, line {rows.line_num}: {error}") from error
        if len(days) < 2:
            raise DataError(f"{path} holds {len(days)} days, expected two or more")
        return cls(days=tuple(days), text=text)

    def window(self, first: str, last: str) -> Sequence[Day]:
        """Return the days from `first` to `last`, both included, as far as the table has them."""
        begin = bisect_left(self.days, first, key=_date)
        return self.days[begin : bisect_right(self.days, last, key=_date)]

    def with_day_before(self, day: str) -> Sequence[Day]:
        """Return the row before a day and the day's own; fewer where the table has not both."""
        end = bisect_right(self.days, day, key=_date)
        return self.days[max(end - 2, 0) : end] if self.window(day, day) else ()


def _date(day: Day) -> str:
    return day.date


def _day(row: Sequence[str]) -> Day:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} values, expected {len(COLUMNS)}")
    day, *prices, volume, currency = row
    if len(day) != 10:
        raise ValueError(f"date {day[:40]!r}: expected YYYY-MM-DD")
    date.fromisoformat(day)
    numbers = [float(price) for price in prices]
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ValueError(f"prices {prices}: expected numbers above 0")
    return Day(day, *numbers, volume=int(volume), currency=currency)
