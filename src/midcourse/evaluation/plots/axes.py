"""What every figure is made of: axes, lines with a band over seeds, stacked bars over updates."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midcourse.evaluation.markdown import visible

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: told apart under every common colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "--", "\\\\", "++")

Series = Mapping[float, float]


def new_axes(title: str, x_label: str, y_label: str) -> tuple[Any, Any]:
    """Return a figure and its axes, x in whole numbers."""
    # No pyplot: its figures are global state and its backend may want a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import AutoLocator

    figure = Figure(figsize=(10, 5.6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(drawn(title), fontsize=14, loc="left")
    axes.set_xlabel(x_label, fontsize=12)
    axes.set_ylabel(y_label, fontsize=12)
    axes.tick_params(labelsize=11)
    locator = AutoLocator()
    locator.set_params(integer=True)
    axes.xaxis.set_major_locator(locator)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.25, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def drawn(text: str) -> str:
    """Return text that is drawn as it stands: no formula between dollars, no label that a "_" before it hides."""
    shown = visible(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def save(figure: Any, axes: Any, path: Path) -> Path:
    """Write the figure, with a legend beside it where anything is labelled, and return the path."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, fontsize=11, frameon=False, loc="outside right upper")
    figure.savefig(path)
    return path


def draw(
    axes: Any,
    series: Sequence[Series],
    label: str,
    style: int,
    *,
    dashed: str = "-",
    marker: bool = True,
    sparse: bool = False,
) -> bool:
    """Draw the mean of several seeds and the band between them.

    Only positions that all seeds have are drawn, or with `sparse` all positions, over the seeds that have each.
    """
    series = [one for one in series if one]
    if not series:
        return False
    positions = sorted((set.union if sparse else set.intersection)(*(set(one) for one in series)))
    values = [[one[position] for one in series if position in one] for position in positions]
    if not positions:
        return False
    colour = COLOURS[style % len(COLOURS)]
    few = len(positions) <= 40
    axes.plot(
        positions,
        [sum(column) / len(column) for column in values],
        color=colour,
        linestyle=dashed,
        marker=MARKERS[style % len(MARKERS)] if marker and few else None,
        markersize=6,
        linewidth=2 if dashed == "-" else 1.4,
        label=drawn(label),
    )
    if len(series) > 1:
        axes.fill_between(
            positions, [min(c) for c in values], [max(c) for c in values], color=colour, alpha=0.1, linewidth=0
        )
    return True


def smoothed(lines: Sequence[Mapping[str, float]], key: str, window: int = 5) -> Series:
    """Return a trailing mean over `window` updates: single batches of a few groups are too noisy to read."""
    points = [(line["update"], line[key]) for line in lines if key in line]
    return {
        update: sum(value for _, value in points[max(0, index - window + 1) : index + 1]) / min(index + 1, window)
        for index, (update, _) in enumerate(points)
    }


def stack(
    lines: Sequence[Mapping[str, float]],
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    path: Path,
    *,
    title: str,
    y_label: str,
) -> Path:
    """Draw one bar an update, of one piece a row, and return the path; rows of zeros alone are left out."""
    figure, axes = new_axes(title, "update", y_label)
    updates = [line["update"] for line in lines]
    width = 0.9 * min((b - a for a, b in itertools.pairwise(updates) if b > a), default=1)
    bottom = [0.0] * len(updates)
    for style, (row, name) in enumerate(zip(rows, names, strict=True)):
        if any(row):
            axes.bar(
                updates,
                row,
                width=width,
                bottom=bottom,
                color=COLOURS[style % len(COLOURS)],
                edgecolor="white",
                # More rows than colours: the next round of colours is hatched otherwise.
                hatch=HATCHES[(style + style // len(COLOURS)) % len(HATCHES)],
                linewidth=0.4,
                label=name,
            )
            bottom = [low + value for low, value in zip(bottom, row, strict=True)]
    return save(figure, axes, path)
