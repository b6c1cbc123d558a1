"""A counterfactual leak audit as a table, as examples and as plain values."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from midcourse.commands.show import printable
from midcourse.interventions.audit import AuditedStep, CounterfactualAudit
from midcourse.rollout.chat import ChatFormat
from midcourse.types import AssistantTurn

MAX_EXAMPLES = 3


def audit_lines(audit: CounterfactualAudit, chat: ChatFormat) -> Iterator[RenderableType]:
    """Yield what to print: the counts, and of the first tasks a step whose correction follows the evidence."""
    table = Table("", "steps", "share", title="Counterfactual leak audit")
    corrected = audit.num_corrected
    table.add_row("seen by the roles", str(len(audit.steps)), "")
    table.add_row("corrected under both kinds of evidence", str(corrected), _share(corrected, len(audit.steps)))
    table.add_row("  the two corrections differ", str(audit.num_changed), _share(audit.num_changed, corrected))
    table.add_row(
        "  the correction follows the evidence", str(audit.num_followed), _share(audit.num_followed, corrected)
    )
    if audit.num_failed:
        table.add_row("a role did not answer", str(audit.num_failed), _share(audit.num_failed, len(audit.steps)))
    yield table
    followed = {step.step.task.task_id: step for step in reversed(audit.steps) if step.follows_evidence}
    for step in list(reversed(followed.values()))[:MAX_EXAMPLES]:
        yield Text(f"\ntask {step.step.task.task_id}, turn {step.step.turn_index}: {printable(step.step.task.query)}")
        for title, text in _texts(step, chat).items():
            yield Text(f"  {title.replace('_', ' ')}: {printable(text)}", style="dim")


def audit_json(audit: CounterfactualAudit, chat: ChatFormat) -> dict[str, Any]:
    """Return the counts, and every step that was corrected under both kinds of evidence."""
    return {
        "steps": len(audit.steps),
        "corrected": audit.num_corrected,
        "changed": audit.num_changed,
        "followed": audit.num_followed,
        "failed": audit.num_failed,
        "followed_fraction": audit.followed_fraction,
        "corrections": [
            {
                "task_id": step.step.task.task_id,
                "attempt": step.step.key.attempt,
                "turn": step.step.turn_index,
                **_texts(step, chat),
                "changed": step.is_changed,
                "followed": step.follows_evidence,
            }
            for step in audit.steps
            if step.is_corrected
        ],
    }


def _texts(step: AuditedStep, chat: ChatFormat) -> dict[str, str]:
    def text(turn: AssistantTurn | None) -> str:
        if turn is None:
            return ""
        try:
            return chat.decode(chat.render(turn))
        except ValueError:  # no turn of the policy's can hold it: as the role meant it
            return str(turn)

    return {
        "draft": chat.decode(step.step.draft_ids),
        "correction": text(step.own),
        "under_other_evidence": text(step.counterfactual),
    }


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
