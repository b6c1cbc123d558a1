"""What the policy and the roles are told about this domain."""

from collections.abc import Mapping

from midcourse.environments.base import RoleGuide
from midcourse.environments.mathematics.answers import AnswerPolicy

SYSTEM_PROMPTS: Mapping[AnswerPolicy, str] = {
    "boxed": "Solve the problem step by step. End with the final answer inside \\boxed{}; the last box counts.",
    "last_number": "Solve the problem step by step. End with the final answer, a number: the last number counts.",
    "boxed_then_last_number": (
        "Solve the problem step by step. End with the final answer inside \\boxed{}; without a box the last number "
        "counts."
    ),
    "tagged": (
        "Solve the problem step by step. End with the final answer between <answer> and </answer>, in exactly the "
        "form that the problem asks for."
    ),
}

ERROR_TYPES = (
    "misread_problem",
    "wrong_calculation",
    "wrong_deduction",
    "missing_case",
    "unjustified_claim",
    "no_answer",
    "wrong_form",
)

ROLE_GUIDE = RoleGuide(
    hard_rules=(
        "Every step follows from the problem and from the steps before it.",
        "A calculation or deduction that is wrong is an error at the place where it is first made, not where its "
        "consequences show.",
        "The response ends with one final answer in the form that was asked for.",
        "A longer way, another method than the reference's, and style are no errors.",
    ),
    error_types=ERROR_TYPES,
    verifier_rejects=(
        "Speaks of a reference, a label or a known answer.",
        "States the answer, or a value on the way to it, without the steps that lead there.",
        "Contradicts the problem or a right step before it.",
    ),
    verifier_allows=(
        "Repeats a step in other words, checks it, or takes it back.",
        "Computes more carefully, or splits a step into smaller ones.",
    ),
    forbidden_phrases=(
        "ground truth",
        "groundtruth",
        "reference answer",
        "reference solution",
        "expected answer",
        "answer key",
    ),
)
