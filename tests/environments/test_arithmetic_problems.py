"""Chains: what they compute, how they are written and read, how they are drawn."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.environments.mathematics.arithmetic import Chain, Operation, draw_chain, read_chain

seeds = st.integers(0, 2**32)


def test_a_chain_by_hand():
    # 47 + 138 = 185; 185 - 29 = 156; 156 * 7 = 1092, of which three digits stay.
    chain = Chain(num_digits=3, start=47, operations=(Operation("+", 138), Operation("-", 29), Operation("*", 7)))
    assert chain.query == "047+138-029*7"
    assert chain.values == [185, 156, 92]
    assert chain.answer == "092"


@pytest.mark.parametrize(
    ("operation", "value", "result"),
    [
        (Operation("+", 450), 700, 150),
        (Operation("-", 138), 47, 909),
        (Operation("-", 1), 0, 999),
        (Operation("*", 9), 999, 991),
    ],
)
def test_only_the_last_digits_stay(operation, value, result):
    assert operation.apply(value, num_digits=3) == result


@given(seed=seeds, num_digits=st.integers(2, 5), num_steps=st.integers(2, 12), hard=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_drawn_chain_is_read_back_from_its_query(seed, num_digits, num_steps, hard):
    difficulty = "hard" if hard else "easy"
    chain = draw_chain(random.Random(seed), num_digits=num_digits, num_steps=num_steps, difficulty=difficulty)
    assert read_chain(chain.query) == chain
    assert len(chain.operations) == num_steps
    assert len(set(chain.operations)) == num_steps
    multipliers = [operation.operand for operation in chain.operations if operation.symbol == "*"]
    assert sum(multiplier > 5 for multiplier in multipliers) == (2 if hard else 0)
    assert all(2 <= multiplier <= 9 for multiplier in multipliers)


def test_the_seed_decides_the_chain():
    drawn = [draw_chain(random.Random(seed), num_digits=3, num_steps=6, difficulty="hard").query for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("query", ["", "047", "047+", "047+13", "047*12", "047/138", "x047+138", "047+138 ", "+138"])
def test_a_query_that_is_no_chain_is_refused(query):
    with pytest.raises(ValueError, match=r"a chain is a number|must have 3 digits"):
        read_chain(query)


@pytest.mark.parametrize(
    ("start", "operations", "message"),
    [
        (1000, (Operation("+", 1),), "a number of 3 digits is expected: got 1000"),
        (0, (Operation("-", -1),), "a number of 3 digits is expected: got -1"),
        (0, (Operation("*", 10),), "a multiplier has one digit: got 10"),
        (0, (), "a chain needs digits and operations"),
    ],
)
def test_a_chain_that_cannot_be_written_is_refused(start, operations, message):
    with pytest.raises(ValueError, match=message):
        Chain(num_digits=3, start=start, operations=operations)


def test_more_hard_steps_than_there_are_multipliers_are_refused():
    with pytest.raises(ValueError, match="num_hard_steps = 5: expected at most 4"):
        draw_chain(random.Random(0), num_digits=3, num_steps=6, difficulty="hard", num_hard_steps=5)
