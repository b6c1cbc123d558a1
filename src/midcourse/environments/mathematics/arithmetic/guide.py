"""What the policy and the roles are told about this domain."""

from midcourse.environments.base import RoleGuide
from midcourse.environments.mathematics.guide import ROLE_GUIDE as MATHEMATICS_GUIDE

SYSTEM_PROMPT = (
    "Apply the operations to the number from left to right, without precedence. Numbers keep their length: only the "
    "last digits of a result stay, and below zero counting goes on from the largest number. Write one step an "
    "operation: the value, the operation, a colon, then for every digit from the last to the first the digit, the "
    "operand's digit, the carry in, the result's digit and the carry out, columns joined by commas, then =, the result "
    "and a semicolon. End with # and the answer. No spaces, no line breaks. For 047+138*7:\n"
    "047+138:78051,43180,01010=185;185*7:57053,87395,17521=295;#295"
)

ROLE_GUIDE = RoleGuide(
    hard_rules=(
        "Operations are applied from left to right; each step starts with the result of the step before it.",
        "A column is the value's digit, the operand's digit, the carry in, the result's digit and the carry out.",
        "The result's digits are those of the columns, the last column's first; a carry out of the first digit is "
        "dropped.",
        "The response ends with # and the last result.",
    ),
    error_types=("wrong_calculation", "wrong_copy", "wrong_form"),
    verifier_rejects=MATHEMATICS_GUIDE.verifier_rejects,
    verifier_allows=("Keeps the right beginning of the draft and goes on from there.",),
    forbidden_phrases=MATHEMATICS_GUIDE.forbidden_phrases,
)
