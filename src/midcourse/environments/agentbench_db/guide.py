"""What the policy and the roles are told about this domain."""

from collections.abc import Mapping
from typing import Literal

from midcourse.environments.agentbench_db.episode import MAX_TURNS
from midcourse.environments.base import RoleGuide

Dialect = Literal["sqlite", "mysql"]

DIALECTS: Mapping[Dialect, str] = {
    "sqlite": "The database is SQLite. Backslash escapes work in strings, and text compares without regard to case.",
    "mysql": "The database is MySQL.",
}


def system_prompt(dialect: Dialect) -> str:
    """Return what the policy is told before every task."""
    return (
        f"You answer questions about database tables, or change them, with SQL. {DIALECTS[dialect]} Every column holds "
        "text: convert it where numbers are compared or added up. Names with spaces or signs stand between backticks. "
        "Run one statement a call with sql_query; long results are cut. Look at the table before you rely on how it "
        "writes its values. When you are done, call answer_action once: with exactly the value that was asked for, "
        "several as a list, and with none where there is no such row. If a change was asked for, make it first; then "
        f"the answer may be any text. You have {MAX_TURNS} turns."
    )


ERROR_TYPES = (
    "wrong_table_or_column",
    "wrong_condition",
    "wrong_value",
    "wrong_aggregation",
    "text_compared_as_number",
    "wrong_operation",
    "changed_too_much",
    "no_change_made",
    "invalid_sql",
    "answered_too_early",
    "wrong_answer_form",
    "repeated_statement",
)

ROLE_GUIDE = RoleGuide(
    hard_rules=(
        "Names of tables and columns, and the spelling of values, come from the task or from earlier results.",
        "A change touches exactly the rows and columns that were asked for; one that cannot be undone is made only "
        "when its condition has been checked or is plain from the task.",
        "A question is answered from results, not from what is known of the world; nothing is changed for it.",
        "Columns hold text: comparing, sorting or adding them up as numbers needs a conversion.",
        "answer_action is final: it is called only after the value was seen in a result, or after the change was made.",
        "A statement that failed is changed before it is tried again.",
        "Looking first, taking several steps, another correct statement and style are no errors.",
    ),
    error_types=ERROR_TYPES,
    verifier_rejects=(
        "Speaks of a reference, a label or a known answer, or uses a value that nothing visible shows.",
        "Claims the result of a statement that was not run or has not answered yet.",
        "Answers a question before a result shows the answer.",
        "Changes rows that the task does not speak of, or drops the table.",
    ),
    verifier_allows=(
        "Looks at the table, its columns or its values once more.",
        "Repeats values of the task in another case or between other quotes.",
        "Checks a change that was made.",
    ),
    forbidden_phrases=(
        "ground truth",
        "groundtruth",
        "reference answer",
        "reference statement",
        "expected answer",
        "gold query",
        "gold sql",
    ),
)
