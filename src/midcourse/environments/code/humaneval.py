"""HumanEval (arXiv:2107.03374) and HumanEval+ (arXiv:2305.01210) files."""

import re
from collections.abc import Mapping
from typing import Any

from midcourse.environments.code.grading import CallTests
from midcourse.environments.code.guest import encode
from midcourse.environments.code.problem import Problem

FIND_ROOT = "HumanEval/32"  # any root of the polynomial is right
# Some of the original tests draw numbers: every answer must meet the same ones.
CHECK_SCRIPT = "import random\nrandom.seed(0)\n{reference}\n{test}\ncheck(candidate)\n"
COMPARE_SCRIPT = """
compare_with_reference(
    candidate, run_reference(data["reference"], data["entry_point"]), data["inputs"], tolerance=data["tolerance"]
)
"""
ROOT_SCRIPT = """
for (coefficients,) in data["inputs"]:
    root = candidate(list(coefficients))
    assert isinstance(root, (int, float)), "a root must be a number"
    value = sum(coefficient * root**power for power, coefficient in enumerate(coefficients))
    assert abs(value) <= data["tolerance"], "the number is no root"
"""


def humaneval_problem(record: Mapping[str, Any]) -> Problem:
    """Return the problem of a HumanEval record, with its own test function. Raises KeyError for a missing field."""
    solution = record["prompt"] + record["canonical_solution"]
    return _problem(
        record,
        CallTests(
            script=CHECK_SCRIPT.format(reference=solution, test=record["test"]),
            names={"candidate": record["entry_point"]},
            prelude=_before_function(record),
        ),
    )


def humaneval_plus_problem(record: Mapping[str, Any]) -> Problem:
    """Return the problem of a HumanEval+ record: base and plus inputs, compared with the reference solution's values.

    Differs from EvalPlus: see docs/code.md.

    Raises:
        KeyError: a field is missing.
        ValueError: there is no input.
    """
    inputs = [*record["base_input"], *record["plus_input"]]
    if not inputs:
        raise ValueError("base_input and plus_input are empty: every answer would pass")
    data = {
        "reference": record["prompt"] + record["canonical_solution"],
        "entry_point": record["entry_point"],
        "inputs": inputs,
        "tolerance": record["atol"],
    }
    return _problem(
        record,
        CallTests(
            script=ROOT_SCRIPT if record["task_id"] == FIND_ROOT else COMPARE_SCRIPT,
            names={"candidate": record["entry_point"]},
            prelude=_before_function(record),
            data=encode(data),
        ),
    )


def _problem(record: Mapping[str, Any], tests: CallTests) -> Problem:
    prompt = record["prompt"]
    query = (
        "Complete this Python function. Answer with the whole function, its imports included.\n\n"
        f"```python\n{prompt.strip()}\n```"
    )
    return Problem(
        task_id=record["task_id"],
        query=query,
        tests=tests,
        reference=f"{prompt}{record['canonical_solution']}".strip() + "\n",
    )


def _before_function(record: Mapping[str, Any]) -> str:
    """Return what stands in the prompt before the function to complete: imports, and helpers it may call."""
    function = re.search(rf"^def {re.escape(record['entry_point'])}\(", record["prompt"], re.MULTILINE)
    if function is None:
        raise KeyError(f"prompt: it defines no {record['entry_point']!r}")
    return record["prompt"][: function.start()]
