"""Branched rollouts: predicted against realised gains, the action map over updates, rollouts used a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from midcourse.branching.skill import pearson
from midcourse.evaluation.branches import ACTION_PREFIX, USED_KEY, is_known
from midcourse.evaluation.compare import Comparison
from midcourse.evaluation.plots.axes import COLOURS, MARKERS, draw, drawn, new_axes, save, stack
from midcourse.types import BranchRecord

RULES = ("warm_up", "controller", "exploration")
"""Who chose a branch, in the order of the legend; others follow."""


def plot_gains(records: Sequence[BranchRecord], label: str, path: Path) -> Path | None:
    """Draw predicted against realised gain of every branch that has both, by who chose it, of one run (RAIL, Fig. 3).

    The title holds Pearson's r over all of them. On the diagonal a prediction was right.
    """
    told: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if is_known(record.predicted) and is_known(record.gained):
            told.setdefault(record.rule, []).append((record.predicted, record.gained))
    if not told:
        return None
    pairs = [pair for found in told.values() for pair in found]
    correlation = pearson([predicted for predicted, _ in pairs], [gained for _, gained in pairs])
    r = "no r: no spread" if correlation is None else f"r = {correlation:.2f}"
    figure, axes = new_axes(f"Gains of branches ({r}): {label}", "predicted gain", "realised gain")
    axes.xaxis.get_major_locator().set_params(integer=False)
    for style, rule in enumerate(sorted(told, key=lambda rule: (RULES.index(rule) if rule in RULES else 9, rule))):
        predicted, gained = zip(*told[rule], strict=True)
        colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
        name = drawn(f"{rule.replace('_', ' ')} ({len(told[rule])})")
        axes.scatter(predicted, gained, s=16, alpha=0.6, color=colour, marker=marker, linewidths=0, label=name)
    axes.axhline(0.0, color="#888888", linewidth=0.8)
    axes.axvline(0.0, color="#888888", linewidth=0.8)
    axes.axline((0.0, 0.0), slope=1.0, color="#888888", linewidth=0.8, linestyle=":")
    return save(figure, axes, path)


def plot_actions(lines: Sequence[Mapping[str, float]], label: str, path: Path) -> Path | None:
    """Draw the branches of each action over updates, of one run: does the controller choose one thing everywhere?"""
    names = dict.fromkeys(key for line in lines for key in line if key.startswith(ACTION_PREFIX))
    lines = [line for line in lines if any(name in line for name in names)]
    rows = [[line.get(name, 0.0) for line in lines] for name in names]
    if not any(any(row) for row in rows):
        return None
    titles = [drawn(name.removeprefix(ACTION_PREFIX).replace("_", " ")) for name in names]
    return stack(lines, rows, titles, path, title=f"Actions: {label}", y_label="branches per update")


def plot_rollouts_used(
    comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], path: Path
) -> Path | None:
    """Draw the rollouts that a task took, branches that were not kept included, over updates."""
    if not any(USED_KEY in line for found in lines.values() for line in found):
        return None
    figure, axes = new_axes("Rollouts used a task", "update", "rollouts, mean over tasks")
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        series = [{line["update"]: used for line in lines[run.folder] if (used := _used(line))} for run in runs]
        draw(axes, series, label, style, sparse=True)
    axes.set_ylim(bottom=0.0)
    return save(figure, axes, path)


def _used(line: Mapping[str, float]) -> float | None:
    """Return the rollouts a task of an update; a run that does not branch has them too."""
    if USED_KEY in line:
        return line[USED_KEY]
    return line["rollout/count"] / line["group/count"] if line.get("group/count") and "rollout/count" in line else None
