"""How `midcourse doctor` tells what it found."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from midcourse.doctor import Finding, Status

STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "red"}


def finding_text(finding: Finding) -> Text:
    """Return one line, and a second one where there is something to do."""
    line = Text(f"{finding.status.value:<8}", style=STYLES[finding.status])
    line.append(f"{finding.name:<16} {finding.value}", style="default")
    if finding.advice:
        line.append(f"\n         -> {finding.advice}", style="default")
    return line


def is_healthy(findings: Sequence[Finding]) -> bool:
    """Return whether a run can work."""
    return all(finding.status is not Status.FAILED for finding in findings)


def doctor_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all of it."""
    return {
        "healthy": is_healthy(findings),
        "findings": [
            {"name": item.name, "value": item.value, "status": item.status.value, "advice": item.advice}
            for item in findings
        ],
    }
