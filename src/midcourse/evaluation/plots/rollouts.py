"""What rollouts are made of: turns, authors, steps that roles looked at. Of one run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from midcourse.evaluation.compare import OUTCOME_PREFIX
from midcourse.evaluation.plots.axes import stack
from midcourse.types import TokenSource

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


def plot_turns(lines: Sequence[Mapping[str, float]], label: str, path: Path) -> Path | None:
    """Draw the shares of rollouts by number of turns over updates, of one run (Fig. 5b); None if all have one."""
    lines = [line for line in lines if "turns/1" in line]
    if all(line["turns/1"] == 1.0 for line in lines):
        return None
    shares = [[line.get(f"turns/{name}", 0.0) for line in lines] for name in TURN_BINS]
    names = [f"{name} turn{'' if name == '1' else 's'}" for name in TURN_BINS]
    return stack(lines, shares, names, path, title=f"Turns per rollout: {label}", y_label="share of rollouts")


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
    return stack(lines, counts, names, path, title=f"Flagged steps: {label}", y_label="steps per update")


def plot_authors(lines: Sequence[Mapping[str, float]], label: str, path: Path) -> Path | None:
    """Draw the mean tokens of a member by who wrote them, over updates, of one run; the prompt is left out."""
    lines = [line for line in lines if line.get(MEMBERS_KEY, 0) > 0]
    rows = [[line.get(f"tokens/{author.value}", 0.0) / line[MEMBERS_KEY] for line in lines] for author in AUTHORS]
    if not any(any(row) for row in rows):
        return None
    names = [author.value for author in AUTHORS]
    return stack(lines, rows, names, path, title=f"Tokens by author: {label}", y_label="tokens per rollout")
