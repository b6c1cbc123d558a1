"""The figures of a report. Every function takes runs of one or more labels and returns the path it drew, or None.

Seeds of one label are one line: their mean, with a band from the least to the greatest. One file a topic; `axes.py`
holds what they share.
"""

from midcourse.evaluation.plots.axes import COLOURS
from midcourse.evaluation.plots.branches import plot_actions, plot_gains, plot_rollouts_used
from midcourse.evaluation.plots.cost import plot_wall_clock
from midcourse.evaluation.plots.reviews import plot_correction_logprobs, plot_reviews, plot_success
from midcourse.evaluation.plots.rollouts import OUTCOME_GROUPS, plot_authors, plot_outcomes, plot_turns
from midcourse.evaluation.plots.scores import plot_metric, plot_progress, plot_tags

__all__ = [
    "COLOURS",
    "OUTCOME_GROUPS",
    "plot_actions",
    "plot_authors",
    "plot_correction_logprobs",
    "plot_gains",
    "plot_metric",
    "plot_outcomes",
    "plot_progress",
    "plot_reviews",
    "plot_rollouts_used",
    "plot_success",
    "plot_tags",
    "plot_turns",
    "plot_wall_clock",
]
