"""report.md of one or several runs: what the interventions did, in sentences, figures and examples from the record."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from midcourse.errors import OutputError
from midcourse.evaluation.branches import branch_sentences
from midcourse.evaluation.compare import (
    Comparison,
    RunSummary,
    compare_runs,
    policy_and_role_tokens,
    recorded_branches,
)
from midcourse.evaluation.examples import Decode, RecordedRun, example_texts
from midcourse.evaluation.markdown import escape_text, markdown_table, percent
from midcourse.evaluation.plots import (
    OUTCOME_GROUPS,
    plot_actions,
    plot_authors,
    plot_correction_logprobs,
    plot_gains,
    plot_metric,
    plot_outcomes,
    plot_progress,
    plot_reviews,
    plot_rollouts_used,
    plot_success,
    plot_tags,
    plot_turns,
    plot_wall_clock,
)
from midcourse.evaluation.reviews import TOKEN_FRACTION, review_sentences
from midcourse.recording.reader import RunReader

NOT_FLAGGED = ("valid", "validator_unreadable")
COST_NOTE = (
    "Means over updates. Prompt tokens are as asked for, whether or not the engine had them cached. Requests wait side "
    "by side, so awaited seconds add up to more than the wall clock. A role on a server tells no tokens."
)
BRANCH_NOTE = (
    "Gain: how much nearer to one half the pool's mean reward came, less the cost of the rollouts; over chance: less "
    "what as many rollouts from the task's start would be expected to bring. Predictions were made before a branch was "
    "run. Majority: the best constant answer, chosen afterwards; balanced: the mean over gains above zero and the "
    "others; r: Pearson's, of predicted and realised gain, and of entropy at the branch's start and gain."
)
MEAN_OVER = "last 5 updates, or all so far where they are fewer"
PERPLEXITY_KEYS = ("intervention/accepted_perplexity_mean", "intervention/perplexity_accepted")
"""RTI's own number (accepted steps of successful rollouts, Fig. 5a), else that of all accepted steps."""


def write_report(
    folders: Path | str | Sequence[Path | str], output: Path | str | None = None, *, decode: Decode | None = None
) -> Path:
    """Write report.md, its plots as PNG and comparison.json, and return the path of report.md.

    Args:
        folders: one run folder or several; unfinished ones too, with or without interventions.
        output: where to write; None is the run's own folder, for a single run.
        decode: tokens to text, for the examples; without it they are shown as token ids.

    Raises:
        RunFolderError: a folder is no run, or what is in it cannot be read.
        OutputError: `output` is missing with several runs, or cannot be written.
    """
    chosen = [folders] if isinstance(folders, str | Path) else list(folders)
    if output is None and len(chosen) != 1:
        raise OutputError(f"a report on {len(chosen)} runs needs a folder to be written to")
    folder = Path(chosen[0] if output is None else output)
    comparison = compare_runs(chosen)
    readers = {run.folder: RunReader(run.folder) for run in comparison.runs}
    lines = {name: reader.metrics() for name, reader in readers.items()}
    recorded = [
        RecordedRun(title=run.title, reader=readers[run.folder], lines=lines[run.folder]) for run in comparison.runs
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plots = draw_plots(comparison, lines, folder)
        # JSON reads half a surrogate pair as backslashreplace spells it.
        json_text = comparison.to_json() + "\n"
        (folder / "comparison.json").write_text(json_text, encoding="utf-8", errors="backslashreplace")
        text = _report_text(comparison, plots, example_texts(recorded, decode))
        (folder / "report.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder / "report.md"


def draw_plots(
    comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], folder: Path
) -> list[tuple[str, Path]]:
    """Draw every figure that the runs have numbers for; return (caption, path) each.

    Args:
        comparison: of the runs.
        lines: metrics lines by run folder.
        folder: where the PNG files go.
    """
    found = [
        (
            "Evaluation (solid) and share of training groups with a success, as the policy wrote them (dotted)"
            + (" and after interventions (dashed)" if any(run.outcomes for run in comparison.runs) else "")
            + f"; training is a mean over the {MEAN_OVER}"
            + (", without members under review." if any(run.reviews for run in comparison.runs) else "."),
            plot_progress(comparison, lines, folder / "progress.png"),
        ),
        (
            "Evaluation pass@1 by difficulty and split.",
            plot_tags(comparison, _difficulty_names(comparison), folder / "difficulty.png"),
        ),
        (
            "Perplexity of accepted corrections under the rollout prompt (temperature 1).",
            plot_metric(
                comparison,
                lines,
                PERPLEXITY_KEYS,
                folder / "perplexity.png",
                title="Perplexity of intervened steps",
                y_label="perplexity (1 = certain)",
            ),
        ),
        *_review_plots(comparison, lines, folder),
        (
            "Rollouts that a task took, branches that were not kept included; for a method that branches.",
            plot_rollouts_used(comparison, lines, folder / "rollouts_used.png"),
        ),
        (
            "Wall clock of an update, mean. The seconds of rollouts are shared out by whom the rollouts waited for.",
            plot_wall_clock(comparison, lines, folder / "wall_clock.png"),
        ),
    ]
    for index, run in enumerate(comparison.runs):
        turns = plot_turns(lines[run.folder], run.title, folder / f"turns_{index}.png")
        outcomes = plot_outcomes(lines[run.folder], run.title, folder / f"outcomes_{index}.png")
        reviews = plot_reviews(lines[run.folder], run.title, folder / f"reviews_{index}.png")
        authors = plot_authors(lines[run.folder], run.title, folder / f"authors_{index}.png")
        found += [
            (f"Turns per rollout, {run.title}.", turns),
            (f"What became of flagged steps, {run.title}.", outcomes),
            (f"What became of reviewed chunks, {run.title}.", reviews),
            (f"Tokens per rollout by who wrote them, without the prompt, {run.title}.", authors),
            *_branch_plots(run, lines[run.folder], folder, index),
        ]
    return [(caption, path) for caption, path in found if path is not None]


def _branch_plots(
    run: RunSummary, lines: Sequence[Mapping[str, float]], folder: Path, index: int
) -> list[tuple[str, Path | None]]:
    if run.branches is None:
        return []
    records = recorded_branches(RunReader(run.folder))
    return [
        (
            f"What every branch brought against what had been predicted for it, {run.title}. Predictions were made "
            "before the branch was run; on the dotted line they were right.",
            plot_gains(records, run.title, folder / f"gains_{index}.png"),
        ),
        (f"Branches by what was run, {run.title}.", plot_actions(lines, run.title, folder / f"actions_{index}.png")),
    ]


def _review_plots(
    comparison: Comparison, lines: Mapping[str, Sequence[Mapping[str, float]]], folder: Path
) -> list[tuple[str, Path | None]]:
    return [
        (
            "Success of members that the policy wrote alone (solid) and of those under review (dashed); means over the "
            f"{MEAN_OVER}.",
            plot_success(comparison, lines, folder / "success.png"),
        ),
        (
            "Log-probability of a correction's tokens, by the policy before the update (solid) and by the judge that "
            "wrote them (dotted). Corrections are new in every update: a line that rises says that the policy comes to "
            "write what it is corrected to.",
            plot_correction_logprobs(comparison, lines, folder / "correction_logprobs.png"),
        ),
        (
            "Part of the tokens that train in members under review which the judge wrote.",
            plot_metric(
                comparison,
                lines,
                (TOKEN_FRACTION,),
                folder / "token_fraction.png",
                title="Tokens of the judge in members under review",
                y_label="share of tokens that train",
                lowest=0.0,
            ),
        ),
    ]


def _difficulty_names(comparison: Comparison) -> list[str]:
    points = [point for run in comparison.runs for point in run.curve]
    tags = dict.fromkeys(name for point in points for name in point.tags if name.endswith(("/easy", "/hard")))
    splits = dict.fromkeys(name for point in points for name in point.splits)
    first = next(iter(splits), "")
    # The first split's difficulties, then the other splits whole: more than four lines a run cannot be told apart.
    return ([tag for tag in tags if tag.startswith(f"{first}/")] + [name for name in splits if name != first])[:4]


def _report_text(comparison: Comparison, plots: Sequence[tuple[str, Path]], examples: Sequence[str]) -> str:
    titles = ", ".join(comparison.by_label())
    parts = [f"# {escape_text(titles)}", comparison.table(), "## What the interventions did"]
    parts += [intervention_sentences(run) for run in comparison.runs]
    parts += ["## Branches", comparison.branch_table(), BRANCH_NOTE] if comparison.branch_table() else []
    parts += ["## Cost per update", comparison.cost_tables(), COST_NOTE]
    if len(comparison.runs) > 1:
        parts += ["## At equal cost", *_equal_cost_tables(comparison)]
    if any(run.intervention_means for run in comparison.runs):
        parts += ["## Statistics of the method", _statistics_table(comparison)]
    parts += ["## Figures"] if plots else []
    parts += [f"![{escape_text(caption)}]({path.name})\n\n{escape_text(caption)}" for caption, path in plots]
    parts += ["## Example interventions", *examples] if examples else []
    return "\n\n".join(parts) + "\n"


def intervention_sentences(run: RunSummary) -> str:
    """Return what the interventions of a run did, in plain sentences with the record's numbers."""
    name = escape_text(run.title)
    failed = ", ".join(f"{count:,.0f} {kind}" for kind, count in run.errors.items() if count)
    said = [
        f"**{name}**: {run.num_updates} updates, {run.num_rollouts:,.0f} rollouts"
        + (f", of which could not be scored: {escape_text(failed)}." if failed else ".")
    ]
    if run.signal_fraction is not None:
        said.append(f"{percent(run.signal_fraction)} of the groups had something to learn from.")
    steps = _step_sentences(run) if sum(run.outcomes.values()) else []
    reviews = [] if run.reviews is None else review_sentences(run.reviews)
    branches = [] if run.branches is None else branch_sentences(run.branches)
    return " ".join([*said, *(steps + reviews + branches or ["No step was intervened on."])])


def _step_sentences(run: RunSummary) -> list[str]:
    """Return what became of the steps that roles looked at."""
    total = sum(run.outcomes.values())
    # A role that failed before the validator spoke flagged nothing; only the method's own count knows.
    unflagged = sum(run.outcomes.get(name, 0.0) for name in NOT_FLAGGED)
    flagged = run.intervention_counts.get("intervention/num_flagged", total - unflagged)
    said = [f"Roles reviewed {total:,.0f} steps and flagged {flagged:,.0f} ({percent(flagged / total)})."]
    if flagged:
        shares = [
            (title, sum(run.outcomes.get(outcome, 0.0) for outcome in outcomes)) for title, outcomes in OUTCOME_GROUPS
        ]
        listed = ", ".join(f"{title} {count:,.0f} ({percent(count / flagged)})" for title, count in shares if count)
        said.append(f"Of the flagged: {listed}.")
    unreadable = run.outcomes.get("validator_unreadable", 0.0)
    if unreadable:
        said.append(f"In {unreadable:,.0f} steps the validator's answer could not be read; the draft was kept.")
    said.append(f"{run.num_rescued:,.0f} groups that had failed as a whole were rescued by an intervened rollout.")
    policy, roles = policy_and_role_tokens(run)
    if policy:
        said.append(f"The roles wrote {roles:,.0f} tokens, {roles / policy:.2f} for each token of the policy.")
    return said


def _statistics_table(comparison: Comparison) -> str:
    """Return every intervention number a run (RTI Table 6): totals of counts, means over updates of the rest."""
    numbers = [{**run.intervention_counts, **run.intervention_means} for run in comparison.runs]
    keys = sorted({key for found in numbers for key in found})
    rows = [
        [key.removeprefix("intervention/"), *(f"{found[key]:,.3g}" if key in found else "-" for found in numbers)]
        for key in keys
    ]
    return markdown_table(("total, or mean over updates", *(run.title for run in comparison.runs)), rows)


def _equal_cost_tables(comparison: Comparison) -> list[str]:
    tables = []
    for unit, found in comparison.at_equal.items():
        if not found["scores"]:
            continue
        rows = []
        for label, splits in found["scores"].items():
            for split, scores in splits.items():
                names = sorted((name for name in scores if name.startswith("pass@")), key=lambda name: int(name[5:]))
                cells = [f"{name}: {_seed_text(scores[name])}" for name in dict.fromkeys((*names[:1], *names[-1:]))]
                rows.append([label, split, "; ".join(cells)])
        heading = f"At {found['budget']:,.0f} {unit} (mean, and least to greatest over seeds):"
        tables.append(f"{heading}\n\n{markdown_table(('method', 'split', 'scores'), rows)}")
    return tables


def _seed_text(interval: Sequence[float]) -> str:
    mean, least, greatest = interval
    return percent(mean) if least == greatest else f"{percent(mean)} ({percent(least)} to {percent(greatest)})"
