"""The figures of a report. Every function takes runs of one or more labels and returns the path it drew, or None.

Seeds of one label are one line: their mean, with a band from the least to the greatest.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midcourse.evaluation.compare import OUTCOME_PREFIX, Comparison, CurvePoint, RunSummary
from midcourse.evaluation.cost import wall_clock_parts
from midcourse.evaluation.markdown import visible
from midcourse.evaluation.reviews import (
    JUDGE_LOGPROB,
    POLICY_LOGPROB,
    REVIEW_PREFIX,
    REVIEW_TITLES,
    SUCCESS_ALONE,
    SUCCESS_REVIEWED,
)
from midcourse.types import TokenSource

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: told apart under every common colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
OUTCOME_GROUPS = (
    ("accepted", ("accepted",)),
    ("rejected by verifier", ("verifier_rejected",)),
    ("rejected: leak", ("leak",)),
    ("rejected by PPL gate", ("gate_rejected",)),
    ("unreadable or no answer", ("corrector_unreadable", "verifier_unreadable", "role_failed")),
    ("correction equals draft", ("unchanged",)),
)
TURN_BINS = ("1", "2", "3", "4", "5", "6", "more")
AUTHORS = (TokenSource.POLICY, TokenSource.INTERVENTION, TokenSource.ENVIRONMENT)
MEMBERS_KEY = "group/members"
HATCHES = ("", "//", "..", "xx", "--", "\\\\", "++")

Series = Mapping[float, float]


def _new_axes(title: str, x_label: str, y_label: str) -> tuple[Any, Any]:
    # No pyplot: its figures are global state and its backend may want a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import AutoLocator

    figure = Figure(figsize=(10, 5.6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(_drawn(title), fontsize=14, loc="left")
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


def _drawn(text: str) -> str:
    """Return text that is drawn as it stands: no formula between dollars, no label that a "_" before it hides."""
    shown = visible(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _save(figure: Any, axes: Any, path: Path) -> Path:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, fontsize=11, frameon=False, loc="outside right upper")
    figure.savefig(path)
    return path


def _draw(
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
        label=_drawn(label),
    )
    if len(series) > 1:
        axes.fill_between(
            positions, [min(c) for c in values], [max(c) for c in values], color=colour, alpha=0.1, linewidth=0
        )
    return True


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
    figure, axes = _new_axes("Evaluation and training groups", "update", "share of tasks or groups solved")
    drawn = False
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        splits = dict.fromkeys(split for run in runs for point in run.curve for split in point.splits)
        for split in list(splits)[:1]:
            curves = [_evaluated(run, lambda point, split=split: point.splits.get(split), k) for run in runs]
            drawn |= _draw(axes, curves, f"{label}: {split} pass@{k}", style)
        shown = [("group/pass_before", "training", ":")]
        if any(run.outcomes for run in runs):
            shown = [("group/pass_before", "training, before", ":"), ("group/pass_after", "training, after", "--")]
        for key, name, dash in shown:
            series = [_smoothed(lines[run.folder], key) for run in runs]
            drawn |= _draw(axes, series, f"{label}: {name}", style, dashed=dash, marker=False)
    axes.set_ylim(-0.02, 1.02)
    return _save(figure, axes, path) if drawn else None


def _smoothed(lines: Sequence[Mapping[str, float]], key: str, window: int = 5) -> Series:
    """Return a trailing mean over `window` updates: single batches of a few groups are too noisy to read."""
    points = [(line["update"], line[key]) for line in lines if key in line]
    return {
        update: sum(value for _, value in points[max(0, index - window + 1) : index + 1]) / min(index + 1, window)
        for index, (update, _) in enumerate(points)
    }


def plot_tags(comparison: Comparison, names: Sequence[str], path: Path) -> Path | None:
    """Draw evaluation pass@1 of each split or tag ("test/hard") in `names`, one line style each."""
    figure, axes = _new_axes("Evaluation by difficulty", "update", "pass@1")
    drawn = False
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        for name, dash in zip(names, ("-", "--", ":", "-."), strict=False):
            curves = [
                _evaluated(run, lambda point, name=name: {**point.splits, **point.tags}.get(name), "1") for run in runs
            ]
            drawn |= _draw(axes, curves, f"{label}: {name}", style, dashed=dash)
    axes.set_ylim(-0.02, 1.02)
    return _save(figure, axes, path) if drawn else None


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
    figure, axes = _new_axes(title, "update", y_label)
    drawn = False
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        key = next((key for key in keys if any(key in line for run in runs for line in lines[run.folder])), None)
        if key is not None:
            series = [{line["update"]: line[key] for line in lines[run.folder] if key in line} for run in runs]
            drawn |= _draw(axes, series, label, style, sparse=True)
    axes.set_ylim(bottom=lowest)
    return _save(figure, axes, path) if drawn else None


def plot_success(comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> Path | None:
    """Draw the success of members that the policy wrote alone (solid) and of those under review (dashed).

    Runs without reviews have the former line alone; without any run that has them nothing is drawn.
    """
    if not any(run.reviews for run in comparison.runs):
        return None
    figure, axes = _new_axes("Success in training, policy alone and under review", "update", "share of members")
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        for key, name, dash in ((SUCCESS_ALONE, "policy alone", "-"), (SUCCESS_REVIEWED, "under review", "--")):
            series = [_smoothed(lines[run.folder], key) for run in runs]
            _draw(axes, series, f"{label}: {name}", style, dashed=dash, marker=False, sparse=True)
    axes.set_ylim(-0.02, 1.02)
    return _save(figure, axes, path)


def plot_correction_logprobs(
    comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], path: Path
) -> Path | None:
    """Draw the mean log-probability of the corrections' tokens, by the policy (solid) and by the judge (dotted)."""
    figure, axes = _new_axes("Log-probability of corrections", "update", "nats a token (0 = certain)")
    drawn = False
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        for key, name, dash in ((POLICY_LOGPROB, "policy", "-"), (JUDGE_LOGPROB, "judge", ":")):
            # RTI has neither; what a judge gives itself says nothing where the policy's is not known.
            if any(run.reviews for run in runs):
                series = [{line["update"]: line[key] for line in lines[run.folder] if key in line} for run in runs]
                drawn |= _draw(axes, series, f"{label}: {name}", style, dashed=dash, sparse=True)
    return _save(figure, axes, path) if drawn else None


def plot_wall_clock(
    comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], path: Path
) -> Path | None:
    """Draw one bar a run: seconds an update, the rollout's shared out by whom its rollouts waited for.

    Rollouts wait side by side, so awaited seconds add up to more than the wall clock; their shares are what is drawn.
    """
    bars = [wall_clock_parts(lines[run.folder]) for run in comparison.runs]
    if not any(bars):
        return None
    from matplotlib.ticker import AutoLocator

    figure, axes = _new_axes("Wall clock of an update", "seconds, mean over updates", "")
    axes.xaxis.set_major_locator(AutoLocator())
    places = range(len(bars))
    left = [0.0] * len(bars)
    for style, name in enumerate(dict.fromkeys(name for bar in bars for name in bar)):
        widths = [bar.get(name, 0.0) for bar in bars]
        # Several methods have more roles than there are colours: the next round of colours is hatched otherwise.
        colour, hatch = COLOURS[style % len(COLOURS)], HATCHES[(style + style // len(COLOURS)) % len(HATCHES)]
        axes.barh(
            places, widths, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=_drawn(name)
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, [_drawn(run.title) for run in comparison.runs])
    axes.set_ylim(max(len(bars), 3) - 0.4, -0.6)  # the bar of a lone run is no wall
    return _save(figure, axes, path)


def plot_turns(lines: Sequence[Mapping[str, float]], label: str, path: Path) -> Path | None:
    """Draw the shares of rollouts by number of turns over updates, of one run (Fig. 5b)."""
    lines = [line for line in lines if "turns/1" in line]
    if not lines:
        return None
    shares = [[line.get(f"turns/{name}", 0.0) for line in lines] for name in TURN_BINS]
    names = [f"{name} turn{'' if name == '1' else 's'}" for name in TURN_BINS]
    return _stack(lines, shares, names, path, title=f"Turns per rollout: {label}", y_label="share of rollouts")


def plot_outcomes(lines: Sequence[Mapping[str, float]], label: str, path: Path) -> Path | None:
    """Draw what became of the flagged steps over updates, of one run."""
    lines = [line for line in lines if any(key.startswith(OUTCOME_PREFIX) for key in line)]
    counts = [
        [sum(line.get(OUTCOME_PREFIX + outcome, 0.0) for outcome in outcomes) for line in lines]
        for _, outcomes in OUTCOME_GROUPS
    ]
    if not any(any(row) for row in counts):
        return None
    names = [name for name, _ in OUTCOME_GROUPS]
    return _stack(lines, counts, names, path, title=f"Flagged steps: {label}", y_label="steps per update")


def plot_reviews(lines: Sequence[Mapping[str, float]], label: str, path: Path) -> Path | None:
    """Draw what became of the reviewed chunks over updates, of one run."""
    lines = [line for line in lines if any(key.startswith(REVIEW_PREFIX) for key in line)]
    counts = [[line.get(REVIEW_PREFIX + outcome.value, 0.0) for line in lines] for outcome in REVIEW_TITLES]
    if not any(any(row) for row in counts):
        return None
    names = list(REVIEW_TITLES.values())
    return _stack(lines, counts, names, path, title=f"Reviews: {label}", y_label="chunks per update")


def plot_authors(lines: Sequence[Mapping[str, float]], label: str, path: Path) -> Path | None:
    """Draw the mean tokens of a member by who wrote them, over updates, of one run; the prompt is left out."""
    lines = [line for line in lines if line.get(MEMBERS_KEY, 0) > 0]
    rows = [[line.get(f"tokens/{author.value}", 0.0) / line[MEMBERS_KEY] for line in lines] for author in AUTHORS]
    if not any(any(row) for row in rows):
        return None
    names = [author.value for author in AUTHORS]
    return _stack(lines, rows, names, path, title=f"Tokens by author: {label}", y_label="tokens per rollout")


def _stack(
    lines: Sequence[Mapping[str, float]],
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    path: Path,
    *,
    title: str,
    y_label: str,
) -> Path:
    figure, axes = _new_axes(title, "update", y_label)
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
                hatch=HATCHES[style % len(HATCHES)],
                linewidth=0.4,
                label=name,
            )
            bottom = [low + value for low, value in zip(bottom, row, strict=True)]
    return _save(figure, axes, path)
