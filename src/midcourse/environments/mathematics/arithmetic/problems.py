"""Chains of operations on whole numbers of a fixed number of digits, and how they are drawn and written."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Symbol = Literal["+", "-", "*"]
Difficulty = Literal["easy", "hard"]

EASY_MULTIPLIERS = (2, 3, 4, 5)
HARD_MULTIPLIERS = (6, 7, 8, 9)
_QUERY = re.compile(r"(?P<start>[0-9]+)(?P<operations>(?:[+-][0-9]+|\*[0-9])+)")
_OPERATION = re.compile(r"([+*-])([0-9]+)")


@dataclass(frozen=True, slots=True)
class Operation:
    """One step. The operand of `*` is one digit, that of `+` and `-` a number like any other."""

    symbol: Symbol
    operand: int

    def apply(self, value: int, *, num_digits: int) -> int:
        """Return the last `num_digits` digits of the result; a number below zero is counted down from 10**num_digits.

        With three digits 700 + 450 is 150, and 47 - 138 is 909.
        """
        if self.symbol == "+":
            result = value + self.operand
        elif self.symbol == "-":
            result = value - self.operand
        else:
            result = value * self.operand
        return result % 10**num_digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A number and the operations that are applied to it one after another, from left to right, without precedence.

    Example: 47 with +138, -29, *7 on three digits is written `047+138-029*7`; the values on the way are 185, 156 and
    92 (156 * 7 = 1092), and the answer is `092`.

    Raises:
        ValueError: no digits or operations, or a number that does not fit.
    """

    num_digits: int
    start: int
    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        if self.num_digits < 1 or not self.operations:
            raise ValueError(f"a chain needs digits and operations: got {self.num_digits}, {len(self.operations)}")
        for number in (self.start, *(operation.operand for operation in self.operations)):
            if not 0 <= number < 10**self.num_digits:
                raise ValueError(f"a number of {self.num_digits} digits is expected: got {number}")
        for operation in self.operations:
            if operation.symbol == "*" and operation.operand > 9:
                raise ValueError(f"a multiplier has one digit: got {operation.operand}")

    @property
    def values(self) -> Sequence[int]:
        """The result of each operation, in order."""
        values, value = [], self.start
        for operation in self.operations:
            value = operation.apply(value, num_digits=self.num_digits)
            values.append(value)
        return values

    @property
    def answer(self) -> str:
        """The last result, with all its digits."""
        return self.written(self.values[-1])

    @property
    def query(self) -> str:
        """The chain as the policy is given it."""
        return self.written(self.start) + "".join(map(self.written_operation, self.operations))

    def written(self, number: int) -> str:
        """Return a number with leading zeros."""
        return f"{number:0{self.num_digits}d}"

    def written_operation(self, operation: Operation) -> str:
        """Return an operation as query and steps have it: `+138`, `*7`."""
        return operation.symbol + (
            str(operation.operand) if operation.symbol == "*" else self.written(operation.operand)
        )


def read_chain(query: str) -> Chain:
    """Return the chain that a query asks for.

    Raises:
        ValueError: it is none, or its numbers differ in length.
    """
    match = _QUERY.fullmatch(query)
    if match is None:
        raise ValueError(f"a chain is a number and operations, as 047+138*7: got {query[:80]!r}")
    num_digits = len(match["start"])
    operations: list[Operation] = []
    for symbol, operand in _OPERATION.findall(match["operations"]):
        if symbol != "*" and len(operand) != num_digits:
            raise ValueError(f"operand {operand} must have {num_digits} digits, as the number before it")
        operations.append(Operation(symbol, int(operand)))
    return Chain(num_digits=num_digits, start=int(match["start"]), operations=tuple(operations))


def draw_chain(
    rng: random.Random, *, num_digits: int, num_steps: int, difficulty: Difficulty, num_hard_steps: int = 2
) -> Chain:
    """Return a chain whose operations all differ, so that each has one successor.

    Args:
        rng: draws numbers, operations and their order.
        num_digits: of every number.
        num_steps: operations.
        difficulty: "easy": multipliers from 2 to 5 alone; "hard": `num_hard_steps` steps multiply by 6 to 9.
        num_hard_steps: at most 4 and at most `num_steps`; not used for easy chains.

    Raises:
        ValueError: more hard steps than there are steps or hard multipliers.
    """
    num_hard = num_hard_steps if difficulty == "hard" else 0
    if num_hard > min(num_steps, len(HARD_MULTIPLIERS)):
        raise ValueError(f"num_hard_steps = {num_hard}: expected at most {min(num_steps, len(HARD_MULTIPLIERS))}")
    operations = [Operation("*", multiplier) for multiplier in rng.sample(HARD_MULTIPLIERS, num_hard)]
    while len(operations) < num_steps:
        symbol: Symbol = rng.choice(("+", "-", "*"))
        operand = rng.choice(EASY_MULTIPLIERS) if symbol == "*" else rng.randrange(1, 10**num_digits)
        if Operation(symbol, operand) not in operations:
            operations.append(Operation(symbol, operand))
    rng.shuffle(operations)
    return Chain(num_digits=num_digits, start=rng.randrange(10**num_digits), operations=tuple(operations))
