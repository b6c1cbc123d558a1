"""How well a run does: evaluations and training groups over updates, and any one metric."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midcourse.evaluation.compare import Comparison, CurvePoint, RunSummary
from midcourse.evaluation.plots.axes import Series, draw, new_axes, save, smoothed


def _evaluated(run: RunSummary, pick: Callable[[CurvePoint], Mapping[str, Any] | None], k: str) -> Series:
    found = {}
    for point in run.curve:
        sheet = pick(point)
        estimate = None if sheet is None else sheet.get("pass_at", {}).get(k)
        if estimate is not None and estimate["value"] is not None:
            found[point.update] = estimate["value"]
    return found


def largest_k(comparison: Comparison) -> str:
    """Return the largest k that every evaluation has a pass@k for, as text; "1" without any."""
    ks = [
        set(sheet.get("pass_at", {}))
        for run in comparison.runs
        for point in run.curve
        for sheet in point.splits.values()
    ]
    return max(set.intersection(*ks), key=int, default="1") if ks else "1"


def plot_progress(
    comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], path: Path
) -> Path | None:
    """Draw evaluation pass@k (solid) and training groups with a success before and after intervention (RTI Fig. 4)."""
    k = largest_k(comparison)
    figure, axes = new_axes("Evaluation and training groups", "update", "share of tasks or groups solved")
    drawn = False
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        splits = dict.fromkeys(split for run in runs for point in run.curve for split in point.splits)
        for split in list(splits)[:1]:
            curves = [_evaluated(run, lambda point, split=split: point.splits.get(split), k) for run in runs]
            drawn |= draw(axes, curves, f"{label}: {split} pass@{k}", style)
        shown = [("group/pass_before", "training", ":")]
        if any(run.outcomes for run in runs):
            shown = [("group/pass_before", "training, before", ":"), ("group/pass_after", "training, after", "--")]
        for key, name, dash in shown:
            series = [smoothed(lines[run.folder], key) for run in runs]
            drawn |= draw(axes, series, f"{label}: {name}", style, dashed=dash, marker=False)
    axes.set_ylim(-0.02, 1.02)
    return save(figure, axes, path) if drawn else None


def plot_tags(comparison: Comparison, names: Sequence[str], path: Path) -> Path | None:
    """Draw evaluation pass@1 of each split or tag ("test/hard") in `names`, one line style each."""
    figure, axes = new_axes("Evaluation by difficulty", "update", "pass@1")
    drawn = False
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        for name, dash in zip(names, ("-", "--", ":", "-."), strict=False):
            curves = [
                _evaluated(run, lambda point, name=name: {**point.splits, **point.tags}.get(name), "1") for run in runs
            ]
            drawn |= draw(axes, curves, f"{label}: {name}", style, dashed=dash)
    axes.set_ylim(-0.02, 1.02)
    return save(figure, axes, path) if drawn else None


def plot_metric(
    comparison: Comparison,
    lines: Mapping[str, Sequence[Mapping[str, float]]],
    keys: Sequence[str],
    path: Path,
    *,
    title: str,
    y_label: str,
    lowest: float | None = None,
) -> Path | None:
    """Draw the first of `keys` that a run has, over updates (Fig. 5a with the perplexity of intervened steps).

    The y axis begins at `lowest`; None: where the numbers do.
    """
    figure, axes = new_axes(title, "update", y_label)
    drawn = False
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        key = next((key for key in keys if any(key in line for run in runs for line in lines[run.folder])), None)
        if key is not None:
            series = [{line["update"]: line[key] for line in lines[run.folder] if key in line} for run in runs]
            drawn |= draw(axes, series, label, style, sparse=True)
    axes.set_ylim(bottom=lowest)
    return save(figure, axes, path) if drawn else None
