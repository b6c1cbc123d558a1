"""What every file format is read into."""

from dataclasses import dataclass, field

from midcourse.environments.code.grading import CallTests, ProgramTests


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One programming task with its tests."""

    task_id: str
    query: str
    tests: CallTests | ProgramTests = field(repr=False)
    reference: str | None = field(repr=False)  # a solution as a policy would write it; None where the file has none
    tags: tuple[str, ...] = ()
