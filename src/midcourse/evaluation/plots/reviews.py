"""Rollouts under review (MInTRL): what became of the chunks, and what the reviews were worth."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from midcourse.evaluation.compare import Comparison
from midcourse.evaluation.plots.axes import draw, new_axes, save, smoothed, stack
from midcourse.evaluation.reviews import (
    JUDGE_LOGPROB,
    POLICY_LOGPROB,
    REVIEW_PREFIX,
    REVIEW_TITLES,
    SUCCESS_ALONE,
    SUCCESS_REVIEWED,
)


def plot_success(comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> Path | None:
    """Draw the success of members that the policy wrote alone (solid) and of those under review (dashed).

    Runs without reviews have the former line alone; without any run that has them nothing is drawn.
    """
    if not any(run.reviews for run in comparison.runs):
        return None
    figure, axes = new_axes("Success in training, policy alone and under review", "update", "share of members")
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        for key, name, dash in ((SUCCESS_ALONE, "policy alone", "-"), (SUCCESS_REVIEWED, "under review", "--")):
            series = [smoothed(lines[run.folder], key) for run in runs]
            draw(axes, series, f"{label}: {name}", style, dashed=dash, marker=False, sparse=True)
    axes.set_ylim(-0.02, 1.02)
    return save(figure, axes, path)


def plot_correction_logprobs(
    comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], path: Path
) -> Path | None:
    """Draw the mean log-probability of the corrections' tokens, by the policy (solid) and by the judge (dotted)."""
    figure, axes = new_axes("Log-probability of corrections", "update", "nats a token (0 = certain)")
    drawn = False
    for style, (label, runs) in enumerate(comparison.by_label().items()):
        for key, name, dash in ((POLICY_LOGPROB, "policy", "-"), (JUDGE_LOGPROB, "judge", ":")):
            # RTI has neither; what a judge gives itself says nothing where the policy's is not known.
            if any(run.reviews for run in runs):
                series = [{line["update"]: line[key] for line in lines[run.folder] if key in line} for run in runs]
                drawn |= draw(axes, series, f"{label}: {name}", style, dashed=dash, sparse=True)
    return save(figure, axes, path) if drawn else None


def plot_reviews(lines: Sequence[Mapping[str, float]], label: str, path: Path) -> Path | None:
    """Draw what became of the reviewed chunks over updates, of one run."""
    lines = [line for line in lines if any(key.startswith(REVIEW_PREFIX) for key in line)]
    counts = [[line.get(REVIEW_PREFIX + outcome.value, 0.0) for line in lines] for outcome in REVIEW_TITLES]
    if not any(any(row) for row in counts):
        return None
    names = list(REVIEW_TITLES.values())
    return stack(lines, counts, names, path, title=f"Reviews: {label}", y_label="chunks per update")
