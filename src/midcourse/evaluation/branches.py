"""Branched rollouts of a run (RAIL): metrics lines and records of branches in; numbers, sentences and a table out.

Counts come from the metrics. Gains and predictions come from the records of all branches, since a correlation or a
balanced accuracy over a run is no mean of those of its updates; they are not known where rollouts were not kept.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from midcourse.branching.skill import Skill, pearson, skill
from midcourse.evaluation.markdown import Escape, escape_text, markdown_table, percent
from midcourse.types import BranchRecord

BRANCHES_KEY, USED_KEY = "intervention/branches", "intervention/rollouts_a_task"
RULE_PREFIX, ACTION_PREFIX = "intervention/rule/", "intervention/action/"
LIVE_KEY, LIVE_RULES = "intervention/controller/is_live", ("controller", "exploration")
HEADINGS = (
    "run",
    "rollouts a task",
    "branches",
    "kept",
    "gain",
    "over chance",
    "mean error",
    "sign agreement",
    "majority",
    "balanced",
    "r",
    "r of entropy",
    "success of the first",
    "of branches",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """What branches brought, and whether that was foreseen."""

    branches: int  # with a gain
    mean: float
    positive_fraction: float
    over_chance: float | None  # mean over as many rollouts from the start; None: rewards other than 0 and 1
    told: Skill  # of the predictions, each made before its branch was run
    entropy_pearson: float | None  # between the entropy at a branch's start and its gain


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSummary:
    """What the branches of a run came to. None where there is nothing to take a mean of."""

    num_branches: float
    num_kept: float | None  # None: the method keeps all
    num_rollouts: float  # of branches
    used: float | None  # rollouts a task, mean
    rules: Mapping[str, float]  # branches by who chose them
    actions: Mapping[str, float]  # branches by what was run
    first_live_update: int | None  # that the controller decided in
    success_initial: float | None  # of the pools before any branch, in [0, 1]
    success_branches: float | None  # of kept branches
    gains: Gains | None  # None: no rollouts were kept, or the method measures none
    live_gains: Gains | None  # of branches that the controller decided on


def summarize_branches(
    lines: Sequence[Mapping[str, float]], records: Callable[[], Sequence[BranchRecord]]
) -> BranchSummary | None:
    """Return what the branches of a run came to; None where nothing was branched.

    Args:
        lines: of metrics.jsonl, in order.
        records: returns the branches of all updates whose rollouts were kept; asked only where there are branches.
    """
    if not any(line.get(BRANCHES_KEY, 0) > 0 for line in lines):
        return None
    found = records()
    kept = "intervention/branches_kept"
    return BranchSummary(
        num_branches=_total(lines, BRANCHES_KEY),
        num_kept=_total(lines, kept) if any(kept in line for line in lines) else None,
        num_rollouts=_total(lines, "intervention/branch_rollouts"),
        used=_pooled(lines, USED_KEY, lambda line: line.get("group/count", 1.0)),
        rules=_by_name(lines, RULE_PREFIX) or _counted(record.rule for record in found if record.rule),
        actions=_by_name(lines, ACTION_PREFIX),
        first_live_update=next((int(line["update"]) for line in lines if line.get(LIVE_KEY)), None),
        success_initial=_pooled(lines, "intervention/success_initial", lambda line: line.get("group/count", 1.0)),
        success_branches=_pooled(lines, "intervention/success_branches", _kept_rollouts),
        gains=_gains(found),
        live_gains=_gains([record for record in found if record.rule in LIVE_RULES]),
    )


def _gains(records: Sequence[BranchRecord]) -> Gains | None:
    gained = [(record, record.gained) for record in records if is_known(record.gained)]
    if not gained:
        return None
    chance = [gain - record.chance for record, gain in gained if is_known(record.chance)]
    told = [(record.predicted, gain) for record, gain in gained if is_known(record.predicted)]
    entropies = [(record.entropy, gain) for record, gain in gained if is_known(record.entropy)]
    return Gains(
        branches=len(gained),
        mean=_mean([gain for _, gain in gained]),
        positive_fraction=_mean([float(gain > 0) for _, gain in gained]),
        over_chance=_mean(chance) if chance else None,
        told=skill([predicted for predicted, _ in told], [gain for _, gain in told]),
        entropy_pearson=pearson([entropy for entropy, _ in entropies], [gain for _, gain in entropies]),
    )


def is_known(number: float | None) -> TypeGuard[float]:
    """Whether a record's number is there, and finite: a file can hold anything."""
    return number is not None and math.isfinite(number)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _total(lines: Iterable[Mapping[str, float]], key: str) -> float:
    return sum(line.get(key, 0.0) for line in lines)


def _pooled(
    lines: Sequence[Mapping[str, float]], key: str, weight: Callable[[Mapping[str, float]], float]
) -> float | None:
    known = [(line[key], weight(line)) for line in lines if key in line]
    total = sum(share for _, share in known)
    return sum(value * share for value, share in known) / total if total else None


def _kept_rollouts(line: Mapping[str, float]) -> float:
    return line.get("intervention/branch_rollouts", 0.0) - line.get("intervention/rejected_rollouts", 0.0)


def _by_name(lines: Sequence[Mapping[str, float]], prefix: str) -> dict[str, float]:
    keys = dict.fromkeys(key for line in lines for key in line if key.startswith(prefix))
    totals = {key.removeprefix(prefix).replace("_", " "): _total(lines, key) for key in keys}
    return {name: total for name, total in totals.items() if total}


def _counted(names: Iterable[str]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for name in names:
        counts[name.replace("_", " ")] = counts.get(name.replace("_", " "), 0.0) + 1
    return counts


def branch_sentences(found: BranchSummary) -> list[str]:
    """Return where rollouts were branched, by whom, and what it was worth, in plain sentences."""
    kept = "" if found.num_kept is None else f"; {found.num_kept:,.0f} of the branches were kept"
    said = [f"Rollouts were branched {found.num_branches:,.0f} times into {found.num_rollouts:,.0f} more{kept}."]
    if found.used is not None:
        said.append(f"A task took {found.used:,.1f} rollouts on average.")
    for title, counts in (("Chosen by", found.rules), ("Actions", found.actions)):
        if counts:
            said.append(f"{title}: {_shares(counts)}.")
    if found.first_live_update is not None:
        said.append(f"The controller decided from update {found.first_live_update} on.")
    if found.success_initial is not None and found.success_branches is not None:
        said.append(
            f"Success: {percent(found.success_initial)} of rollouts from the start, "
            f"{percent(found.success_branches)} of kept branches."
        )
    if found.gains is not None:
        said += _gain_sentences(found.gains, "A branch")
    if found.live_gains is not None:
        said += _gain_sentences(found.live_gains, "A branch of the controller")
    return said


def _shares(counts: Mapping[str, float]) -> str:
    total = sum(counts.values())
    return ", ".join(f"{escape_text(name)} {count:,.0f} ({percent(count / total)})" for name, count in counts.items())


def _gain_sentences(found: Gains, what: str) -> list[str]:
    chance = "" if found.over_chance is None else f", {found.over_chance:+.3f} over what chance would bring"
    told = found.told
    said = [
        f"{what} gained {found.mean:+.3f} on average{chance}; {percent(found.positive_fraction)} gained something.",
    ]
    if told.traces:
        said.append(
            f"Predicted beforehand: off by {told.mean_absolute_error:.3f} on average, the sign right in "
            f"{percent(told.sign_agreement)} (always the same answer: {percent(told.majority_agreement)}; "
            f"balanced: {percent(told.balanced_accuracy)}), r = {_number(told.pearson)}; "
            f"r of entropy and gain = {_number(found.entropy_pearson)}."
        )
    return said


def branch_table(named: Sequence[tuple[str, BranchSummary]], *, escape: Escape = escape_text) -> str:
    """Return (title, summary) of several runs as a Markdown table. `escape`: as in `Comparison.table`."""
    return markdown_table(HEADINGS, [[title, *_cells(found)] for title, found in named], escape=escape)


def _cells(found: BranchSummary) -> list[str]:
    counts = [_number(found.used, ".1f"), f"{found.num_branches:,.0f}"]
    counts.append("-" if found.num_kept is None else percent(found.num_kept / found.num_branches))
    gains = found.gains
    if gains is None:
        values = ["-"] * 8
    else:
        told = gains.told
        values = [
            _number(gains.mean, "+.3f"),
            _number(gains.over_chance, "+.3f"),
            _number(told.mean_absolute_error, ".3f"),
            *map(percent, (told.sign_agreement, told.majority_agreement, told.balanced_accuracy)),
            _number(told.pearson),
            _number(gains.entropy_pearson),
        ]
    return [*counts, *values, percent(found.success_initial), percent(found.success_branches)]


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
