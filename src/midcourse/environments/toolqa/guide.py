"""What the policy and the roles are told about this domain."""

from midcourse.environments.base import RoleGuide
from midcourse.environments.toolqa.episode import MAX_TURNS
from midcourse.environments.toolqa.table import COLUMNS, PriceTable


def system_prompt(table: PriceTable) -> str:
    """Return what the policy is told before every task."""
    return (
        "You answer questions about a table of daily coffee prices by running Python with python_interpreter. The "
        f"table is the pandas data frame df, one row a trading day from {table.days[0].date} to {table.days[-1].date}, "
        f"with the columns {', '.join(COLUMNS)}; Date is text in the form YYYY-MM-DD. pandas is there as pd, numpy as "
        "np. Names that you define stay for later calls; df is a fresh copy in every call. Long output is cut. When "
        "you know the answer, call answer_action once, with the value alone: a number, a date, or a word. You have "
        f"{MAX_TURNS} turns."
    )


ROLE_GUIDE = RoleGuide(
    hard_rules=(
        "Numbers and dates in an answer come from results that code printed, not from memory.",
        "A period includes its first and its last day; days that the table lacks are no trading days.",
        "A change over a period goes from the first day's opening price to the last day's closing price.",
        "The previous day is the row before; days are compared by their closing prices, and an average price is one "
        "of closing prices.",
        "An average percentage change is the average of each day's own change from opening to closing.",
        "A day that closes where it opened counts as bearish.",
        "The highest price is taken from High, the lowest from Low.",
        "answer_action is final and holds the value alone.",
        "Code that failed is changed before it is run again.",
        "Looking first, taking several steps, another correct way to compute and style are no errors.",
    ),
    error_types=(
        "wrong_column",
        "wrong_period",
        "wrong_aggregation",
        "misread_question",
        "does_not_run",
        "nothing_printed",
        "lost_names",
        "answered_too_early",
        "wrong_answer_form",
        "repeated_code",
    ),
    verifier_rejects=(
        "Speaks of a reference, a label or a known answer, or uses a value that nothing visible shows.",
        "Claims the result of code that was not run or has not answered yet.",
        "Answers before a result shows the answer.",
        "Writes the answer into the code in place of computing it.",
    ),
    verifier_allows=(
        "Looks at the table or at a part of it once more.",
        "Computes a result again in another way.",
        "Repeats dates of the question, or values of earlier results, in code.",
    ),
    forbidden_phrases=(
        "ground truth",
        "groundtruth",
        "reference answer",
        "expected answer",
        "gold answer",
        "known answer",
    ),
)
