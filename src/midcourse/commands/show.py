"""Trajectories as text, each token in the colour of who wrote it. A model's words are never read as markup.

What a review rejected is no token of the trajectory any more. It is shown where it stood, struck through. It and what
an intervention wrote are in brackets of their own, so that they are told apart where no terminal shows colours.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from midcourse.evaluation.branches import branch_sentences, summarize_branches
from midcourse.evaluation.reviews import review_sentences, summarize_reviews
from midcourse.methods.branched import branch_statistics
from midcourse.methods.mintrl_statistics import mintrl_statistics
from midcourse.recording.metrics import group_metrics
from midcourse.recording.serialization import branch_to_dict
from midcourse.rollout.chat import ChatFormat
from midcourse.types import BranchRecord, Group, InterventionRecord, ReviewRecord, TokenSource, Trajectory

COLOURS: Mapping[TokenSource, str] = {
    TokenSource.PROMPT: "dim",
    TokenSource.POLICY: "cyan",
    TokenSource.INTERVENTION: "bold magenta",
    TokenSource.ENVIRONMENT: "green",
}
REJECTED = "strike red"
MESSAGE_CHARACTERS = 600
"""Of what a failure says that are shown: it can hold what a tool wrote."""


def legend() -> Text:
    """Return one line that says which colour is whose."""
    line = Text("written by: ")
    for source, style in COLOURS.items():
        line.append(_marked(source.value, source), style=style)
        line.append("  ")
    line.append(_rejected("rejected in a review"), style=REJECTED)
    return line


def coloured(trajectory: Trajectory, chat: ChatFormat, *, first: int = 0) -> Text:
    """Return the text from token `first` on, spans of one writer in one colour, control characters made visible."""
    rejected = {review.cut: review.rejected_ids for review in trajectory.reviews if review.rejected_ids}
    text = Text()
    for start, end in _spans(trajectory, first):
        if start in rejected:
            text.append(_rejected(printable(chat.decode(rejected[start]))), style=REJECTED)
        source = trajectory.sources[start]
        text.append(_marked(printable(chat.decode(trajectory.token_ids[start:end])), source), style=COLOURS[source])
    return text


def _marked(text: str, source: TokenSource) -> str:
    return f"{{+{text}+}}" if source is TokenSource.INTERVENTION else text


def _rejected(text: str) -> str:
    return f"[-{text}-]"


def _spans(trajectory: Trajectory, first: int = 0) -> list[tuple[int, int]]:
    """Return the spans of tokens of one writer; corrections of two reviews are two spans, also side by side."""
    cuts = {review.cut for review in trajectory.reviews}
    sources = trajectory.sources
    borders = [
        position
        for position in range(first + 1, len(sources))
        if sources[position] is not sources[position - 1] or position in cuts
    ]
    return list(pairwise([first, *borders, len(sources)])) if first < len(sources) else []


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
    """Yield what to print for one group: its branches as a tree, members, what they replaced, attempts left over."""
    yield Text(f"\ntask {one_line(group.task_id)}: {printable(query)}", style="bold")
    if group.branches:
        yield branch_tree(group)
    own_turns = _own_turns(group)
    for index, member in enumerate(group.members):
        yield Text(f"[{index}] {member.origin}, {outcome(member.trajectory)}", style="bold")
        yield from _rollout_lines(member.trajectory, chat, own_turns.get(index))
        if member.replaced is not None:
            yield Text(f"    replaces: {outcome(member.replaced)}", style="dim")
    for index, attempt in enumerate(group.extra):
        yield Text(f"[not a member] {outcome(attempt)}", style="bold")
        yield from _rollout_lines(attempt, chat, own_turns.get(-1 - index))


def _rollout_lines(trajectory: Trajectory, chat: ChatFormat, branch: BranchRecord | None) -> Iterator[Text]:
    """Yield the text of a rollout and what became of its turns; of a branch from the turn on that it wrote first."""
    first = 0
    if branch is not None and branch.parent is not None:
        yield Text(f"    as [{branch.parent}] before turn {branch.turn}", style="dim")
        has_own = branch.turn < len(trajectory.turns)
        first = trajectory.turns[branch.turn].start if has_own else len(trajectory.token_ids)
    yield coloured(trajectory, chat, first=first)
    yield from _intervention_lines(trajectory, first)
    if trajectory.failure_message:
        yield Text(f"    {one_line(trajectory.failure_message)[:MESSAGE_CHARACTERS]}", style="dim")


def _own_turns(group: Group) -> dict[int, BranchRecord]:
    """Return the branch of each rollout that is one: by its place among the members, -1, -2, ... among the extra."""
    return {
        place if _are_members(record, group) else -1 - place: record
        for record in group.branches
        for place in record.rollouts
    }


def _are_members(record: BranchRecord, group: Group) -> bool:
    """Whether a branch's rollouts are members: kept ones, and all of a method that trains on the others too."""
    return record.is_kept or not group.extra


def branch_tree(group: Group) -> Tree:
    """Return which rollouts were branched where, how, and what it brought."""
    tree = Tree(Text(f"{len(group.members)} members, {len(group.extra)} others", style="bold"), guide_style="dim")
    branched = {place for record in group.branches if _are_members(record, group) for place in record.rollouts}
    nodes: dict[int | None, Tree] = {None: tree}
    for index, member in enumerate(group.members):
        if index not in branched:
            nodes[index] = tree.add(Text(f"[{index}] {outcome(member.trajectory)}"))
    for record in group.branches:
        node = nodes[record.parent].add(Text(branch_text(record), style="" if record.is_kept else "dim"))
        for place in record.rollouts:
            if _are_members(record, group):
                nodes[place] = node.add(Text(f"[{place}] {outcome(group.members[place].trajectory)}"))
            else:
                node.add(Text(f"not a member, {outcome(group.extra[place])}", style="dim"))
    return tree


def branch_text(record: BranchRecord) -> str:
    """Return where a branch began, how it was drawn, who chose it, what was predicted and gained."""
    where = "at the start" if record.parent is None else f"before turn {record.turn}"
    regime = f" {one_line(record.regime)}" if record.regime else ""
    parts = [f"{where}: {len(record.rollouts)}{regime} at temperature {record.temperature:g}"]
    parts += [f"by {one_line(record.rule).replace('_', ' ')}"] if record.rule else []
    parts += [f"entropy {record.entropy:.3f}"] if record.entropy is not None else []
    parts += [f"predicted {record.predicted:+.3f}"] if record.predicted is not None else []
    if record.gained is not None:
        parts.append(f"gained {record.gained:+.3f}")
    elif record.predicted is not None:
        parts.append("no reward came")
    return ", ".join([*parts, "kept" if record.is_kept else "not kept"])


def _intervention_lines(trajectory: Trajectory, first: int = 0) -> Iterator[Text]:
    for index, turn in enumerate(trajectory.turns):
        if turn.start < first:
            continue
        if turn.intervention is not None:
            yield Text(f"    turn {index}: {_intervention_text(turn.intervention)}", style="dim")
        for review in turn.reviews:
            yield Text(f"    turn {index}: {_review_text(review)}", style="dim")
    yield from _verdict_lines(trajectory)


def _verdict_lines(trajectory: Trajectory) -> Iterator[Text]:
    """Yield what the environment answered last where that is no token: the verdict on code, for example."""
    if not trajectory.turns or TokenSource.ENVIRONMENT in trajectory.sources[trajectory.turns[-1].end :]:
        return
    for result in trajectory.turns[-1].results:
        yield Text(f"    {one_line(result.name) or 'environment'}: {one_line(result.content)}", style="dim")


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
        "branches": [branch_to_dict(record) for record in group.branches],
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
        "failure_message": trajectory.failure_message,
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


def branches_text(groups: Sequence[Group]) -> str:
    """Return what branches came to in the sentences of a report; "" where nothing was branched."""
    records = [record for group in groups for record in group.branches]
    counts = {"group/count": float(len(groups)), "intervention/branches_kept": float(sum(r.is_kept for r in records))}
    summary = summarize_branches([{**branch_statistics(groups), **counts}], lambda: records)
    return "" if summary is None else " ".join(branch_sentences(summary))


def reviews_text(groups: Sequence[Group]) -> str:
    """Return what reviews came to in the sentences of a report; "" where nothing was under review."""
    # The objective's part of the statistics is left out: it needs advantages.
    unjudged = [[None] * len(group.members) for group in groups]
    found = mintrl_statistics(groups, advantages=unjudged, beta=0.0, kappa=None)
    summary = summarize_reviews([{**group_metrics(groups), **found.metrics()}])
    return "" if summary is None else " ".join(review_sentences(summary))
