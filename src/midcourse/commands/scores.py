"""The table of an evaluation's scores."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from midcourse.commands.show import printable


def score_table(title: str, result: Mapping[str, Any]) -> Table:
    """Return the scores of an evaluation, a row a split and a tag; `result` as `EvaluationResult.to_dict` gives it."""
    table = Table("", *(f"pass@{k}" for k in range(1, result["attempts"] + 1)), f"pass^{result['attempts']}", "tasks")
    table.title = Text(title)
    for kind in ("splits", "tags"):
        for name, sheet in result[kind].items():
            values = [*sheet["pass_at"].values(), sheet["pass_hat"][str(result["attempts"])]]
            shares = (_percent(value["value"]) for value in values)
            table.add_row(Text(printable(name)), *shares, str(sheet["num_tasks"]))
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
