"""What an update costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from midcourse.evaluation.compare import Comparison
from midcourse.evaluation.cost import wall_clock_parts
from midcourse.evaluation.plots.axes import COLOURS, HATCHES, drawn, new_axes, save


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

    figure, axes = new_axes("Wall clock of an update", "seconds, mean over updates", "")
    axes.xaxis.set_major_locator(AutoLocator())
    places = range(len(bars))
    left = [0.0] * len(bars)
    for style, name in enumerate(dict.fromkeys(name for bar in bars for name in bar)):
        widths = [bar.get(name, 0.0) for bar in bars]
        # Several methods have more roles than there are colours: the next round of colours is hatched otherwise.
        colour, hatch = COLOURS[style % len(COLOURS)], HATCHES[(style + style // len(COLOURS)) % len(HATCHES)]
        axes.barh(
            places, widths, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=drawn(name)
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, [drawn(run.title) for run in comparison.runs])
    axes.set_ylim(max(len(bars), 3) - 0.4, -0.6)  # the bar of a lone run is no wall
    return save(figure, axes, path)
