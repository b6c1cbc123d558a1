"""Examples for a report: accepted corrections of steps, and revised chunks, from the recorded rollouts."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midcourse.errors import RunFolderError
from midcourse.evaluation.compare import OUTCOME_PREFIX
from midcourse.evaluation.markdown import escape_text
from midcourse.evaluation.reviews import REVIEW_PREFIX
from midcourse.interventions.locate import chunk_text
from midcourse.recording.metrics import rollouts
from midcourse.recording.reader import RunReader
from midcourse.types import Group, InterventionOutcome, ReviewOutcome, ReviewRecord, Trajectory, Turn

Decode = Callable[[Sequence[int]], str]
MAX_EXAMPLES = 3
CORRECTION_KEYS = (
    OUTCOME_PREFIX + InterventionOutcome.ACCEPTED.value,
    REVIEW_PREFIX + ReviewOutcome.REVISED.value,
)
"""Metrics that are above 0 where an update has something to show."""
SURROUNDING = 40
"""Characters shown before the rejected text and behind the correction."""
LONGEST_TEXT = 400
"""Characters shown of a rejected text, a correction, a quote or a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run to take examples from."""

    title: str
    reader: RunReader
    lines: Sequence[Mapping[str, float]]  # of metrics.jsonl

    def corrected_updates(self) -> list[int]:
        """Return the updates with corrections whose rollouts were kept, in order."""
        corrected = {line["update"] for line in self.lines if any(line.get(key, 0) > 0 for key in CORRECTION_KEYS)}
        return [update for update in self.reader.trajectory_updates() if update in corrected]


def example_texts(runs: Sequence[RecordedRun], decode: Decode | None) -> list[str]:
    """Return up to MAX_EXAMPLES corrections as Markdown: runs in turn, of each the latest updates first, one a task.

    Args:
        runs: whose rollouts are looked through, of updates with corrections alone.
        decode: tokens -> text; without it token ids are shown.
    """
    seen: set[str] = set()
    found = [_run_examples(run, seen, decode, of_run=f" of {run.title}" if len(runs) > 1 else "") for run in runs]
    in_turn = (example for examples in itertools.zip_longest(*found) for example in examples if example is not None)
    return list(itertools.islice(in_turn, MAX_EXAMPLES))


def _run_examples(run: RecordedRun, seen: set[str], decode: Decode | None, *, of_run: str) -> Iterator[str]:
    """Yield an example of each task that is not in `seen`, and add the task; a damaged file is named in a warning."""
    for update in reversed(run.corrected_updates()):
        try:
            groups = run.reader.trajectories(update)
        except RunFolderError as error:
            warnings.warn(f"{error}; no example is taken from it", stacklevel=2)
            continue
        for group in groups:
            found = None if group.task_id in seen else next(_corrections(group, decode), None)
            if found is not None:
                seen.add(group.task_id)
                yield f"{escape_text(f'Update {update}{of_run}, task {group.task_id}')}, {found}"


def _corrections(group: Group, decode: Decode | None) -> Iterator[str]:
    for trajectory in rollouts(group):
        for turn in trajectory.turns:
            if turn.intervention is not None and turn.intervention.outcome is InterventionOutcome.ACCEPTED:
                yield _step_text(turn, decode)
            for review in turn.reviews:
                if review.outcome is ReviewOutcome.REVISED and review.cut is not None:
                    yield _revision_text(trajectory, turn, review, decode)


def _step_text(turn: Turn, decode: Decode | None) -> str:
    record: Any = turn.intervention
    perplexity = "-" if record.perplexity is None else f"{record.perplexity:.2f}"
    draft = _ids_text(record.draft_ids) if decode is None else decode(record.draft_ids)
    corrected = _message_text(turn) if decode is None else decode(record.corrected_ids)
    return "\n".join(
        [
            f"perplexity {perplexity}, error types: {escape_text(', '.join(record.error_types) or 'none named')}.",
            "",
            f"<pre>draft      {escape_text(draft)}",
            f"corrected  {escape_text(corrected)}",
            f"diagnosis  {escape_text(record.diagnosis)}</pre>",
        ]
    )


def _message_text(turn: Turn) -> str:
    calls = [
        f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})" for call in turn.message.tool_calls
    ]
    return " ".join(part for part in (turn.message.reasoning, turn.message.content, *calls) if part)


def _revision_text(trajectory: Trajectory, turn: Turn, review: ReviewRecord, decode: Decode | None) -> str:
    """Return one revised chunk: the rejected text struck out, the correction marked as inserted."""
    assert review.cut is not None
    end = review.cut + review.correction_tokens
    standing, corrected = trajectory.token_ids[turn.start : review.cut], trajectory.token_ids[turn.start : end]

    def text_behind(before: Sequence[int], token_ids: Sequence[int]) -> str:
        """Return the text that `token_ids` add: a decoder may write the first token of a text differently."""
        if decode is None:
            return _ids_text(token_ids)
        return chunk_text(decode, before, token_ids).chunk if token_ids else ""

    before = text_behind((), standing)
    after = text_behind(corrected, trajectory.token_ids[end : turn.end])
    reward = "failed" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    rows = [
        ("before", ("..." if len(before) > SURROUNDING else "") + escape_text(before[-SURROUNDING:])),
        ("rejected", f"<del>{_shortened(text_behind(standing, review.rejected_ids))}</del>"),
        ("correction", f"<ins>{_shortened(text_behind(standing, trajectory.token_ids[review.cut : end]))}</ins>"),
        ("after", escape_text(after[:SURROUNDING]) + ("..." if len(after) > SURROUNDING else "")),
        ("quote", _shortened(review.quote)),
        ("reason", _shortened(review.reason)),
    ]
    listed = "\n".join(f"{name:<12}{text}" for name, text in rows if text)
    return (
        f"{reward}, cut at token {review.cut - trajectory.prompt_length} of the response; tokens rejected: "
        f"{len(review.rejected_ids)}, written: {review.correction_tokens}"
        + (", a private value of the evidence among them" if review.holds_answer else "")
        + f".\n\n<pre>{listed}</pre>"
    )


def _shortened(text: str) -> str:
    rest = len(text) - LONGEST_TEXT
    return escape_text(text[:LONGEST_TEXT]) + (f"... ({rest} more characters)" if rest > 0 else "")


def _ids_text(token_ids: Sequence[int]) -> str:
    return "token ids " + " ".join(map(str, token_ids)) if token_ids else ""
