"""Multi-step arithmetic whose every token can be checked: the task family of the built-in policy (see steps.py)."""

from midcourse.environments.mathematics.arithmetic.environment import (
    ArithmeticConfig,
    ArithmeticEnvironment,
    make_task,
)
from midcourse.environments.mathematics.arithmetic.problems import Chain, Operation, draw_chain, read_chain
from midcourse.environments.mathematics.arithmetic.steps import (
    ARITHMETIC_VOCABULARY,
    ColumnRule,
    Slip,
    column_result,
    continuation,
    expected_character,
    reference_solution,
    slips,
)

__all__ = [
    "ARITHMETIC_VOCABULARY",
    "ArithmeticConfig",
    "ArithmeticEnvironment",
    "Chain",
    "ColumnRule",
    "Operation",
    "Slip",
    "column_result",
    "continuation",
    "draw_chain",
    "expected_character",
    "make_task",
    "read_chain",
    "reference_solution",
    "slips",
]
