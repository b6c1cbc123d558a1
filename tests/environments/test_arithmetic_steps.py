"""Worked steps: the reference by hand, and what follows from anything written."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.environments.mathematics.arithmetic import (
    ARITHMETIC_VOCABULARY,
    Chain,
    Slip,
    continuation,
    draw_chain,
    expected_character,
    read_chain,
    reference_solution,
    slips,
)
from midcourse.environments.mathematics.arithmetic import steps as steps_module
from midcourse.environments.mathematics.arithmetic.guide import SYSTEM_PROMPT
from midcourse.environments.mathematics.arithmetic.steps import column_result, shortest_response, states_answer

CHAIN = read_chain("047+138-029*7")
# Columns, last digit first. 7+8+0=15, 4+3+1=8, 0+1+0=1; 5-9-0=-4, 8-2-1=5, 1-0-0=1; 6*7+0=42, 5*7+4=39, 1*7+3=10.
SOLUTION = "047+138:78051,43180,01010=185;185-029:59061,82150,10010=156;156*7:67024,57493,17301=092;#092"

chains = st.builds(
    lambda seed, num_digits, num_steps, difficulty: draw_chain(
        random.Random(seed), num_digits=num_digits, num_steps=num_steps, difficulty=difficulty
    ),
    st.integers(0, 2**32),
    st.integers(2, 4),
    st.integers(2, 8),
    st.sampled_from(["easy", "hard"]),
)
steady = settings(deadline=None, derandomize=True, max_examples=60)


def check_independently(chain: Chain, solution: str) -> None:
    """Check a solution by whole numbers alone, without the rules under test."""
    *written_steps, last = solution.split(";")
    assert len(written_steps) == len(chain.operations)
    size, value = chain.num_digits, chain.start
    for step, operation in zip(written_steps, chain.operations, strict=True):
        left, columns, result = step.replace(":", "=").split("=")
        operand = f"{operation.operand}" if operation.symbol == "*" else f"{operation.operand:0{size}d}"
        assert left == f"{value:0{size}d}{operation.symbol}{operand}"
        signed = {"+": operation.operand, "-": -operation.operand, "*": 0}[operation.symbol]
        before, after = value, (value * operation.operand if operation.symbol == "*" else value + signed)
        for place, column in enumerate(columns.split(",")):
            shown_value, shown_operand, carry_in, digit, carry_out = map(int, column)
            part = 10 ** (place + 1)
            low = before % part
            low_operand = operation.operand if operation.symbol == "*" else operation.operand % part
            low_result = {"+": low + low_operand, "-": low - low_operand, "*": low * low_operand}[operation.symbol]
            assert shown_value == before // 10**place % 10
            assert shown_operand == (
                operation.operand if operation.symbol == "*" else operation.operand // 10**place % 10
            )
            assert digit == low_result % part // 10**place
            assert carry_out == abs(low_result // part)
            assert carry_in == (0 if place == 0 else int(columns.split(",")[place - 1][4]))
        value = after % 10**size
        assert result == f"{value:0{size}d}"
    assert last == f"#{value:0{size}d}"


def test_a_solution_by_hand():
    assert reference_solution(CHAIN) == SOLUTION


def test_the_documented_examples_are_right():
    assert steps_module.__doc__ is not None
    example = "".join(line.strip() for line in steps_module.__doc__.splitlines() if line.startswith("    "))
    assert example == SOLUTION
    assert SYSTEM_PROMPT.endswith(f"\n{reference_solution(read_chain('047+138*7'))}")


@pytest.mark.parametrize(
    ("symbol", "digits", "result"),
    [
        ("+", (7, 8, 0), (5, 1)),
        ("+", (9, 9, 1), (9, 1)),
        ("-", (5, 9, 0), (6, 1)),
        ("-", (0, 9, 1), (0, 1)),
        ("-", (8, 2, 1), (5, 0)),
        ("*", (6, 7, 0), (2, 4)),
        ("*", (9, 9, 8), (9, 8)),
    ],
)
def test_a_column_by_hand(symbol, digits, result):
    assert column_result(symbol, *digits) == result


@given(chain=chains)
@steady
def test_the_reference_solution_is_right_by_whole_numbers(chain):
    solution = reference_solution(chain)
    check_independently(chain, solution)
    assert states_answer(chain, solution)
    assert set(solution) <= set(ARITHMETIC_VOCABULARY)
    assert list(slips(chain, solution, is_ended=True)) == []


@given(chain=chains)
@steady
def test_no_response_is_shorter_than_said(chain):
    size, count = chain.num_digits, len(chain.operations)
    num_long = sum(operation.symbol != "*" for operation in chain.operations)
    expected = shortest_response(num_digits=size, num_steps=count) + num_long * (size - 1)
    assert len(reference_solution(chain)) == expected


@given(chain=chains, data=st.data())
@steady
def test_the_first_slip_is_where_a_response_leaves_the_reference(chain, data):
    solution = reference_solution(chain)
    place = data.draw(st.integers(0, len(solution) - 1))
    wrong = data.draw(st.sampled_from([token for token in ARITHMETIC_VOCABULARY if token != solution[place]]))
    rest = data.draw(st.text(alphabet="".join(ARITHMETIC_VOCABULARY), max_size=40))
    first = next(slips(chain, solution[:place] + wrong + rest))
    assert (first.start, first.end, first.expected) == (place, place + 1, solution[place])
    assert first.step == solution[:place].count(";")


@given(chain=chains, data=st.data())
@steady
def test_what_follows_from_a_wrong_digit_is_no_slip_of_its_own(chain, data):
    solution = reference_solution(chain)
    place = data.draw(st.sampled_from([place for place, token in enumerate(solution) if token.isdigit()]))
    digit = data.draw(st.sampled_from([digit for digit in "0123456789" if digit != solution[place]]))
    response = solution[:place] + digit
    response += continuation(chain, response)
    assert len(response) == len(solution)
    assert [slip.start for slip in slips(chain, response, is_ended=True)] == [place]


@given(chain=chains, data=st.data())
@steady
def test_every_beginning_of_the_reference_goes_on_as_the_reference(chain, data):
    solution = reference_solution(chain)
    place = data.draw(st.integers(0, len(solution)))
    assert continuation(chain, solution[:place]) == solution[place:]
    assert expected_character(chain, solution[:place]) == solution[place : place + 1]


@given(chain=chains, text=st.text(max_size=300), start=st.integers(0, 350), is_ended=st.booleans())
@steady
def test_any_text_can_be_judged(chain, text, start, is_ended):
    found = list(slips(chain, text, start=min(start, len(text)), is_ended=is_ended))
    assert all(start <= slip.start <= slip.end <= len(text) for slip in found if start <= len(text))
    assert [slip.start for slip in found] == sorted({slip.start for slip in found})
    length = len(reference_solution(chain))
    assert len(text + continuation(chain, text)) == max(len(text), length)


def test_a_wrong_value_is_carried_on_as_it_is_written():
    # 186 is written in place of 185: the next step starts with 186, and 186-29 is 157.
    wrong = SOLUTION[: SOLUTION.index("=185") + 3] + "6;"
    assert [slip.start for slip in slips(CHAIN, wrong)] == [SOLUTION.index("=185") + 3]
    assert continuation(CHAIN, wrong).startswith("186-029:69071,")


def test_where_no_digit_is_written_the_reference_is_expected():
    wrong = SOLUTION[:8] + "," + SOLUTION[9:]  # the first column's value digit is a comma
    assert [(slip.start, slip.expected) for slip in slips(CHAIN, wrong, is_ended=True)] == [(8, "7")]


def test_text_behind_the_end_and_an_end_before_the_end_are_slips():
    length = len(SOLUTION)
    assert list(slips(CHAIN, SOLUTION + "00", is_ended=True)) == [Slip(length, length + 1, 3, "")]
    assert list(slips(CHAIN, SOLUTION[:-1], is_ended=True)) == [Slip(length - 1, length - 1, 3, "2")]
    assert list(slips(CHAIN, SOLUTION[:-1])) == []
    assert list(slips(CHAIN, "", is_ended=True)) == [Slip(0, 0, 0, "0")]


def test_slips_before_the_start_are_passed_over():
    wrong = "9" + SOLUTION[1:]
    assert [slip.start for slip in slips(CHAIN, wrong)][:1] == [0]
    assert next(slip.start for slip in slips(CHAIN, wrong, start=1)) > 0


@pytest.mark.parametrize(
    ("response", "is_right"),
    [
        (SOLUTION, True),
        ("#092", True),
        ("#999#092", True),
        ("#92", False),
        ("092", False),
        ("#092 ", False),
        ("#093", False),
        ("#092#", False),
        ("", False),
    ],
)
def test_the_answer_is_what_stands_behind_the_last_mark(response, is_right):
    assert states_answer(CHAIN, response) is is_right


def test_a_very_long_response_is_judged_at_once():
    found = list(slips(CHAIN, SOLUTION + "1" * 1_000_000, is_ended=True))
    assert [slip.start for slip in found] == [len(SOLUTION)]


def test_a_column_rule_is_asked_once_a_column_and_what_follows_goes_on_from_it():
    asked = []

    def forgets_carries(symbol, value, operand, carry):
        asked.append((symbol, value, operand, carry))
        return column_result(symbol, value, operand, 0)

    chain = read_chain("156*7")
    # 6*7 = 42; 5*7 = 35, the 4 forgotten; 1*7 = 7, the 3 forgotten: 752 in place of 1092.
    assert continuation(chain, "", column_rule=forgets_carries) == "156*7:67024,57453,17370=752;#752"
    assert asked == [("*", 6, 7, 0), ("*", 5, 7, 4), ("*", 1, 7, 3)]


def test_a_column_rule_that_works_rightly_changes_nothing():
    chain = read_chain("047+138-029*7")
    assert continuation(chain, "", column_rule=column_result) == reference_solution(chain)
