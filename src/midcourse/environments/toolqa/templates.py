"""ToolQA's 21 coffee questions: their texts, and what answers them from the table (arXiv:2306.13304).

The readings are ToolQA's own where a text leaves several open. A change over a period goes from the first day's opening
to the last day's closing price; an average price is one of closing prices; "the previous day" is the row before;
an average percentage change is one of the changes within each day; a day that closes where it opened is bearish.
Differs from ToolQA: the range of a period is its highest minus its lowest price. ToolQA's generator lets the lowest
begin at 0, so that its ten references are just the highest price.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from midcourse.environments.toolqa.table import Day, PriceTable

Level = Literal["easy", "hard"]
Span = Literal["day", "day_before", "period"]
"""What a question is about: one day, a day and the row before it, or all days from one to another."""

_DATE = r"(\d{4}-\d{2}-\d{2})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One kind of question."""

    name: str
    level: Level
    span: Span
    text: str  # with a place for each date
    answer: Callable[[Sequence[Day]], str] = field(repr=False)
    decimals: int | None = None  # digits after the point that the answer is rounded to; None: it is not rounded

    def dates(self, question: str) -> tuple[str, ...] | None:
        """Return the dates that a question of this kind names; None for a question of another kind."""
        pattern = re.escape(self.text).replace(re.escape("{}"), _DATE)
        found = re.fullmatch(pattern, question.strip())
        return None if found is None else found.groups()

    def rows(self, table: PriceTable, dates: Sequence[str]) -> Sequence[Day]:
        """Return the rows that a question with these dates is about; none where the table lacks one of the dates."""
        if self.span == "period":
            rows = table.window(dates[0], dates[1])
            return rows if len(rows) > 1 and (rows[0].date, rows[-1].date) == tuple(dates) else ()
        rows = table.with_day_before(dates[0]) if self.span == "day_before" else table.window(dates[0], dates[0])
        return rows if len(rows) == (2 if self.span == "day_before" else 1) else ()


def template_of(question: str) -> tuple[Template, tuple[str, ...]] | None:
    """Return the kind of a question and the dates in it; None for one that ToolQA does not ask."""
    for template in TEMPLATES:
        dates = template.dates(question)
        if dates is not None:
            return template, dates
    return None


def _percent(end: float, begin: float) -> float:
    return (end - begin) / begin * 100


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rises(rows: Sequence[Day]) -> list[tuple[float, str]]:
    return [(day.close - before.close, day.date) for before, day in pairwise(rows)]


def _first_greatest(values: Sequence[tuple[float, str]]) -> str:
    return max(values, key=lambda value: value[0])[1]


def _on_day(name: str, text: str, answer: Callable[[Day], str], *, decimals: int | None = None) -> Template:
    return Template(
        name=name, level="easy", span="day", text=text, answer=lambda rows: answer(rows[0]), decimals=decimals
    )


def _over_days(
    name: str, text: str, answer: Callable[[Sequence[Day]], str], *, decimals: int | None = None, span: Span = "period"
) -> Template:
    return Template(name=name, level="hard", span=span, text=text, answer=answer, decimals=decimals)


TEMPLATES = (
    _on_day("open", "What was the opening price of coffee on {}?", lambda day: str(day.open)),
    _on_day("low", "What was the lowest price of coffee on {}?", lambda day: str(day.low)),
    _on_day("high", "What was the highest price of coffee on {}?", lambda day: str(day.high)),
    _on_day("close", "What was the closing price of coffee on {}?", lambda day: str(day.close)),
    _on_day("volume", "What was the volume of coffee on {}?", lambda day: str(day.volume)),
    _on_day(
        "day_change_percent",
        "What was the percentage change in coffee price on {}, based on the difference between the opening and closing "
        "prices?",
        lambda day: f"{round(_percent(day.close, day.open), 2)}%",
        decimals=2,
    ),
    _on_day(
        "bearish_or_bullish",
        "Was {} a bearish or bullish day for coffee price?",
        lambda day: "bullish" if day.close > day.open else "bearish",
    ),
    _on_day(
        "day_range",
        "What was the range of coffee price on {}, based on the difference between the high and low prices??",
        lambda day: str(round(day.high - day.low, 2)),
    ),
    _over_days(
        "highest",
        "What was the highest coffee price from {} to {}?",
        lambda rows: f"{max(day.high for day in rows)} {rows[0].currency}",
    ),
    _over_days(
        "lowest",
        "What was the lowest coffee price from {} to {}?",
        lambda rows: f"{min(day.low for day in rows)} {rows[0].currency}",
    ),
    _over_days(
        "average_price",
        "What was the average coffee price from {} to {}?",
        lambda rows: f"{_mean([day.close for day in rows]):.1f} {rows[0].currency}",
        decimals=1,
    ),
    _over_days(
        "change",
        "How much did the coffee price change from {} to {}?",
        lambda rows: f"{rows[-1].close - rows[0].open:.1f} {rows[0].currency}",
        decimals=1,
    ),
    _over_days(
        "change_from_day_before_percent",
        "What was the percentage change in coffee price on {} compared to the previous day?",
        lambda rows: f"{_percent(rows[1].close, rows[0].close):.1f}%",
        decimals=1,
        span="day_before",
    ),
    _over_days(
        "date_of_greatest_range",
        "On which date from {} to {} was the difference between the highest and lowest coffee prices the greatest?",
        lambda rows: _first_greatest([(day.high - day.low, day.date) for day in rows]),
    ),
    _over_days(
        "average_volume",
        "What was the average daily volume of coffee traded from {} to {}?",
        lambda rows: f"{_mean([day.volume for day in rows]):.1f}",
        decimals=1,
    ),
    _over_days(
        "date_of_greatest_rise",
        "On which date from {} to {} did the coffee price have the highest increase compared to the previous day?",
        lambda rows: _first_greatest(_rises(rows)),
    ),
    _over_days(
        "number_of_rises",
        "How many times from {} to {} did the coffee price increase compared to the previous day?",
        lambda rows: str(sum(rise > 0 for rise, _ in _rises(rows))),
    ),
    _over_days(
        "increase_percent",
        "What was the percentage increase in coffee price from {} to {}?",
        lambda rows: f"{_percent(rows[-1].close, rows[0].open):.1f}%",
        decimals=1,
    ),
    _over_days(
        "range",
        "What was the coffee price range from {} to {}?",
        lambda rows: f"{max(day.high for day in rows) - min(day.low for day in rows):.1f} {rows[0].currency}",
        decimals=1,
    ),
    _over_days(
        "number_of_bullish_days",
        "On how many days from {} to {} did the coffee price close higher than the opening price?",
        lambda rows: str(sum(day.close > day.open for day in rows)),
    ),
    _over_days(
        "average_day_change_percent",
        "What was the average percentage change in coffee price from {} to {}?",
        lambda rows: f"{_mean([_percent(day.close, day.open) for day in rows]):.1f}%",
        decimals=1,
    ),
)
