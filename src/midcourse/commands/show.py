"""Trajectories as text, each token in the colour of who wrote it. A model's words are never read as markup.

What a review rejected is no token of the trajectory any more. It is shown where it stood, struck through and in
brackets of its own, so that it is told from the trajectory where a terminal strikes nothing through.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from midcourse.evaluation.reviews import review_sentences, summarize_reviews
from midcourse.methods.mintrl_statistics import mintrl_statistics
from midcourse.recording.metrics import group_metrics
from midcourse.rollout.chat import ChatFormat
from midcourse.types import Group, InterventionRecord, ReviewRecord, TokenSource, Trajectory

COLOURS: Mapping[TokenSource, str] = {
    TokenSource.PROMPT: "dim",
    TokenSource.POLICY: "cyan",
    TokenSource.INTERVENTION: "bold magenta",
    TokenSource.ENVIRONMENT: "green",
}
REJECTED = "strike red"


def legend() -> Text:
    """Return one line that says which colour is whose."""
    line = Text("written by: ")
    for source, style in COLOURS.items():
        line.append(source.value, style=style)
        line.append("  ")
    line.append(_rejected("rejected in a review"), style=REJECTED)
    return line


def coloured(trajectory: Trajectory, chat: ChatFormat) -> Text:
    """Return the whole text, spans of one writer in one colour, control characters made visible."""
    rejected = {review.cut: review.rejected_ids for review in trajectory.reviews if review.rejected_ids}
    text = Text()
    for start, end in _spans(trajectory):
        if start in rejected:
            text.append(_rejected(printable(chat.decode(rejected[start]))), style=REJECTED)
        text.append(printable(chat.decode(trajectory.token_ids[start:end])), style=COLOURS[trajectory.sources[start]])
    return text


def _rejected(text: str) -> str:
    return f"[-{text}-]"


def _spans(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Return the spans of tokens of one writer; corrections of two reviews are two spans, also side by side."""
    cuts = {review.cut for review in trajectory.reviews}
    sources = trajectory.sources
    borders = [
        position
        for position in range(1, len(sources))
        if sources[position] is not sources[position - 1] or position in cuts
    ]
    return list(pairwise([0, *borders, len(sources)])) if sources else []


def printable(text: str) -> str:
    """Return `text` with terminal control characters spelled out, line breaks and tabs kept."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else repr(character)[1:-1] for character in text
    )


def one_line(text: str) -> str:
    """Return `text` as `printable` does, line breaks and tabs spelled out too: a word of a model begins no line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def outcome(trajectory: Trajectory) -> str:
    """Return "reward 1" or the failure, and how long the rollout was."""
    result = f"reward {trajectory.reward:g}" if trajectory.reward is not None else f"failed: {trajectory.failure}"
    return f"{result}, {len(trajectory.turns)} turns, {len(trajectory.token_ids)} tokens, {trajectory.stop_reason}"


def group_lines(group: Group, query: str, chat: ChatFormat) -> Iterator[RenderableType]:
    """Yield what to print for one group: members, what they replaced, attempts left over."""
    yield Text(f"\ntask {group.task_id}: {printable(query)}", style="bold")
    for index, member in enumerate(group.members):
        yield Text(f"[{index}] {member.origin}, {outcome(member.trajectory)}", style="bold")
        yield coloured(member.trajectory, chat)
        yield from _intervention_lines(member.trajectory)
        if member.replaced is not None:
            yield Text(f"    replaces: {outcome(member.replaced)}", style="dim")
    for attempt in group.extra:
        yield Text(f"[not a member] {outcome(attempt)}", style="bold")
        yield coloured(attempt, chat)
        yield from _intervention_lines(attempt)


def _intervention_lines(trajectory: Trajectory) -> Iterator[Text]:
    for index, turn in enumerate(trajectory.turns):
        if turn.intervention is not None:
            yield Text(f"    turn {index}: {_intervention_text(turn.intervention)}", style="dim")
        for review in turn.reviews:
            yield Text(f"    turn {index}: {_review_text(review)}", style="dim")


def _intervention_text(record: InterventionRecord) -> str:
    parts = [record.outcome.value]
    if record.diagnosis:
        parts.append(one_line(record.diagnosis))
    if record.perplexity is not None:
        parts.append(f"perplexity {record.perplexity:.2f}")
    return ", ".join(parts)


def _review_text(review: ReviewRecord) -> str:
    parts = [f"review of tokens {review.start} to {review.end - 1}: {review.outcome.value}"]
    if review.cut is not None:
        parts += [f"cut at {review.cut}", f"tokens rejected: {len(review.rejected_ids)}"]
        parts += [f"written: {review.correction_tokens}"]
    parts += ["the correction ends the turn"] if review.ends_turn else []
    parts += ["it holds a private value of the evidence"] if review.holds_answer else []
    parts += [f"quote: {one_line(review.quote)}"] if review.quote else []
    parts += [f"reason: {one_line(review.reason)}"] if review.reason else []
    return ", ".join(parts)


def group_json(group: Group, query: str, chat: ChatFormat) -> dict[str, Any]:
    """Return one group as plain values: texts in spans by writer, outcomes, intervention records."""
    return {
        "task_id": group.task_id,
        "query": query,
        "members": [
            {
                "origin": member.origin.value,
                **trajectory_json(member.trajectory, chat),
                "replaced": None if member.replaced is None else trajectory_json(member.replaced, chat),
            }
            for member in group.members
        ],
        "extra": [trajectory_json(attempt, chat) for attempt in group.extra],
    }


def trajectory_json(trajectory: Trajectory, chat: ChatFormat) -> dict[str, Any]:
    """Return one trajectory as plain values."""
    spans = [
        {"source": trajectory.sources[start].value, "text": chat.decode(trajectory.token_ids[start:end])}
        for start, end in _spans(trajectory)
    ]
    return {
        "reward": trajectory.reward,
        "failure": trajectory.failure.value if trajectory.failure else None,
        "stop_reason": trajectory.stop_reason.value,
        "num_turns": len(trajectory.turns),
        "num_tokens": len(trajectory.token_ids),
        "spans": spans,
        "interventions": [
            {
                "turn": index,
                "outcome": turn.intervention.outcome.value,
                "diagnosis": turn.intervention.diagnosis,
                "perplexity": turn.intervention.perplexity,
            }
            for index, turn in enumerate(trajectory.turns)
            if turn.intervention is not None
        ],
        "reviews": [
            {"turn": index, **_review_json(review, chat)}
            for index, turn in enumerate(trajectory.turns)
            for review in turn.reviews
        ],
    }


def _review_json(review: ReviewRecord, chat: ChatFormat) -> dict[str, Any]:
    return {
        "outcome": review.outcome.value,
        "start": review.start,
        "end": review.end,
        "cut": review.cut,
        "rejected": chat.decode(review.rejected_ids),
        "correction_tokens": review.correction_tokens,
        "ends_turn": review.ends_turn,
        "holds_answer": review.holds_answer,
        "quote": review.quote,
        "reason": review.reason,
    }


def rewards_line(groups: Sequence[Group]) -> str:
    """Return how many members were solved, and how many failed without a reward."""
    rewards = [reward for group in groups for reward in group.rewards]
    solved = sum(reward is not None and reward > 0 for reward in rewards)
    failed = sum(reward is None for reward in rewards)
    return f"{solved} of {len(rewards)} members with reward above 0" + (f", {failed} failed" if failed else "")


def reviews_text(groups: Sequence[Group]) -> str:
    """Return what reviews came to in the sentences of a report; "" where nothing was under review."""
    # The objective's part of the statistics is left out: it needs advantages.
    unjudged = [[None] * len(group.members) for group in groups]
    found = mintrl_statistics(groups, advantages=unjudged, beta=0.0, kappa=None)
    summary = summarize_reviews([{**group_metrics(groups), **found.metrics()}])
    return "" if summary is None else " ".join(review_sentences(summary))
