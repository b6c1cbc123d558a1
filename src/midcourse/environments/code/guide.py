"""What the policy and the roles are told about this domain."""

from midcourse.environments.base import RoleGuide

SYSTEM_PROMPT = (
    "You solve programming tasks in Python. Think as long as you need to, then give the whole solution in one fenced "
    "code block. Only the last block counts. It is run on tests that you do not see, without network and with the "
    "standard library alone, under limits of time and memory."
)

ROLE_GUIDE = RoleGuide(
    hard_rules=(
        "The last code block is the answer: it must be complete, with imports, and define what the task names.",
        "Every case that the task states must come out right, the empty and the largest input included.",
        "Names, the order of parameters, and the types that are returned are those of the task.",
        "A program for standard input reads exactly the described input and writes nothing else than the answer.",
        "Style, names of local variables and another correct algorithm are no errors.",
    ),
    error_types=(
        "wrong_algorithm",
        "misread_task",
        "wrong_edge_case",
        "off_by_one",
        "wrong_type",
        "too_slow",
        "does_not_run",
        "incomplete",
    ),
    verifier_rejects=(
        "Speaks of a reference solution, of hidden tests or of their inputs, or uses what nothing visible shows.",
        "Lists answers for single inputs instead of computing them.",
        "Claims the result of a run that was not made.",
    ),
    verifier_allows=(
        "Repeats a rule or an example of the task.",
        "Works an example through by hand.",
        "Begins a line or a step of reasoning again in another way.",
    ),
    forbidden_phrases=(
        "reference solution",
        "reference implementation",
        "canonical solution",
        "hidden test",
        "expected output is",
    ),
)
