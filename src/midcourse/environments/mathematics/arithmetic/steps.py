"""The worked steps of a chain: their one right form, and what follows from what is written.

A response to `047+138-029*7` is, without line breaks or spaces,

    047+138:78051,43180,01010=185;
    185-029:59061,82150,10010=156;
    156*7:67024,57493,17301=092;
    #092

One step an operation: the value so far, the operation as the query has it, `:`, one column a digit from the last digit
to the first, joined by `,`, then `=`, the result and `;`. After the last step `#` and the answer. A column is five
digits: of the value, of the operand (the multiplier itself for `*`), what was carried in, the result's digit, what is
carried out. The carry out of the first digit is dropped.

In the first column above, 7 + 8 + 0 is 15: digit 5, carry 1; in 59061 above, 5 - 9 - 0 is -4: digit 6, borrow 1; in
67024, 6 * 7 + 0 is 42: digit 2, carry 4.

Every character stands at a place that the query fixes, and follows from characters before it by a rule (`Slot`). The
reference solution, the next right character behind anything written, and the slips of a response all come from these
rules. The vocabulary is ARITHMETIC_VOCABULARY, each token one character, so that a character's place is its token's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from midcourse.environments.mathematics.arithmetic.problems import Chain, Symbol

ColumnRule = Callable[[Symbol, int, int, int], tuple[int, int]]
"""(symbol, value digit, operand digit, carry in) -> (the result's digit, carry out), all in 0..9."""
ARITHMETIC_VOCABULARY = (*"0123456789", "+", "-", "*", ":", ",", "=", ";", "#")
"""Every token of queries and responses; a chat format adds its own marks."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One place of a response and the rule for what stands there.

    "literal": `text`. "copy": what stands at sources[0]. "digit" and "carry": of the column whose value digit, operand
    digit and carry in stand at the three sources, under operation `symbol`.
    """

    step: int  # from 0; the answer line is the step after the last
    rule: Literal["literal", "copy", "digit", "carry"]
    text: str = ""
    sources: Sequence[int] = ()  # places before this one
    symbol: Symbol = "+"


@dataclass(frozen=True, slots=True)
class Slip:
    """A place where a response is not what follows from the text before it.

    `expected` is the character that should stand there, "" where the response should have ended; `start` and `end` are
    characters of the response, end exclusive, and equal where it ended too early.
    """

    start: int
    end: int
    step: int
    expected: str


def reference_solution(chain: Chain) -> str:
    """Return the whole right response."""
    return continuation(chain, "")


def expected_character(chain: Chain, text: str) -> str:
    """Return the character that follows from `text`, the response so far; "" where it is complete, or too long.

    What is written counts, right or wrong: a result is expected to be copied from its columns, and the next step to
    go on from that result. Where a rule finds no digit to work on, the reference solution's character is expected.
    """
    slots = _slots(chain)
    return _character(chain, slots[len(text)], text, len(text)) if len(text) < len(slots) else ""


def continuation(chain: Chain, text: str, *, column_rule: ColumnRule | None = None) -> str:
    """Return the rest of the response as it follows from `text`; "" where nothing is left to write.

    Args:
        chain: the problem.
        text: the response so far.
        column_rule: how columns are worked out, asked once a column; None: rightly. Later characters follow from what
            it says.
    """
    slots = _slots(chain)
    written = list(text)
    answered: tuple[int, int] | None = None  # by the rule, for the column that is being written
    for position in range(len(text), len(slots)):
        slot = slots[position]
        if slot.rule == "digit" and column_rule is not None:
            value, operand, carry = (int(written[source]) for source in slot.sources)
            answered = column_rule(slot.symbol, value, operand, carry)
            written.append(str(answered[0]))
        elif slot.rule == "carry" and answered is not None:
            written.append(str(answered[1]))
        else:
            written.append(_character(chain, slot, written, position))
    return "".join(written[len(text) :])


def slips(chain: Chain, text: str, *, start: int = 0, is_ended: bool = False) -> Iterator[Slip]:
    """Yield the slips of `text` from character `start` on, in order.

    The first slip of all is where the response leaves the reference solution. Later ones are mistakes of their own:
    what follows rightly from a wrong value is no slip.

    Args:
        chain: the problem.
        text: the response, or its beginning.
        start: where to begin; what stands before is taken as it is.
        is_ended: `text` is the whole response, so that a missing rest is a slip too.
    """
    slots = _slots(chain)
    for position in range(start, min(len(text), len(slots))):
        expected = _character(chain, slots[position], text, position)
        if text[position] != expected:
            yield Slip(position, position + 1, slots[position].step, expected)
    if len(text) > len(slots):
        beyond = max(start, len(slots))
        yield Slip(beyond, min(beyond + 1, len(text)), slots[-1].step, "")
    elif is_ended and len(text) < len(slots):
        step = slots[len(text)].step
        yield Slip(len(text), len(text), step, expected_character(chain, text))


def states_answer(chain: Chain, response: str) -> bool:
    """Return whether a response ends in `#` and exactly the right answer, whatever its steps are."""
    _, mark, answer = response.rpartition("#")
    return bool(mark) and answer == chain.answer


def shortest_response(*, num_digits: int, num_steps: int) -> int:
    """Return the fewest characters of a response: multiplications, whose operand is one digit, are the shortest."""
    column = 5 * num_digits + (num_digits - 1)
    return num_steps * (num_digits + 2 + 1 + column + 1 + num_digits + 1) + 1 + num_digits


def column_result(symbol: Symbol, value: int, operand: int, carry: int) -> tuple[int, int]:
    """Return the result's digit and what is carried out, each in 0..9, for digits in 0..9."""
    if symbol == "-":
        total = value - operand - carry
        return total % 10, -(total // 10)
    total = value + operand + carry if symbol == "+" else value * operand + carry
    return total % 10, total // 10


def _character(chain: Chain, slot: Slot, text: Sequence[str], position: int) -> str:
    if slot.rule == "literal":
        return slot.text
    found = [text[source] for source in slot.sources]
    if not all(character in "0123456789" for character in found):
        return _reference(chain)[position]
    if slot.rule == "copy":
        return found[0]
    value, operand, carry = map(int, found)
    digit, carried = column_result(slot.symbol, value, operand, carry)
    return str(digit if slot.rule == "digit" else carried)


@lru_cache(maxsize=256)
def _reference(chain: Chain) -> str:
    return reference_solution(chain)


@lru_cache(maxsize=256)
def _slots(chain: Chain) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    result: Sequence[int] = ()  # where the digits of the last result stand
    for step, operation in enumerate(chain.operations):
        if step == 0:
            slots += [Slot(step, "literal", digit) for digit in chain.written(chain.start)]
        else:
            slots += [Slot(step, "copy", sources=(place,)) for place in result]
        value = range(len(slots) - chain.num_digits, len(slots))
        written = chain.written_operation(operation)
        operand = range(len(slots) + 1, len(slots) + len(written))
        slots += [Slot(step, "literal", character) for character in f"{written}:"]
        result = _add_columns(slots, step, operation.symbol, value=value, operand=operand)
    last = len(chain.operations)
    return (*slots, Slot(last, "literal", "#"), *(Slot(last, "copy", sources=(place,)) for place in result))


def _add_columns(
    slots: list[Slot], step: int, symbol: Symbol, *, value: Sequence[int], operand: Sequence[int]
) -> Sequence[int]:
    """Append a step's columns and its result, and return where the result's digits stand, the first digit first."""
    digits: list[int] = []
    carry: int | None = None
    for column, value_place in enumerate(reversed(value)):
        if column > 0:
            slots.append(Slot(step, "literal", ","))
        first = len(slots)
        sources = (first, first + 1, first + 2)
        slots += [
            Slot(step, "copy", sources=(value_place,)),
            Slot(step, "copy", sources=(operand[0] if symbol == "*" else operand[-1 - column],)),
            Slot(step, "literal", "0") if carry is None else Slot(step, "copy", sources=(carry,)),
            Slot(step, "digit", sources=sources, symbol=symbol),
            Slot(step, "carry", sources=sources, symbol=symbol),
        ]
        digits.insert(0, first + 3)
        carry = first + 4
    slots.append(Slot(step, "literal", "="))
    result = range(len(slots), len(slots) + len(digits))
    slots += [Slot(step, "copy", sources=(place,)) for place in digits]
    slots.append(Slot(step, "literal", ";"))
    return result
