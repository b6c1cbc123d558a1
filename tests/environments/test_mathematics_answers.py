"""Which part of a response is its answer, under each policy."""

import time

import pytest

from midcourse.environments.mathematics.answers import find_answer, last_boxed, last_number, last_tagged


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so \\boxed{70}", "70"),
        ("first \\boxed{1}, then \\boxed{ 70 }.", "70"),
        ("\\boxed{\\frac{1}{2}} and a set {3}", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\fbox{7}", "7"),
        ("\\boxed {8}", "8"),
        ("\\boxed{a\\\\}", "a\\\\"),
        ("70", None),
        ("\\boxed 70", None),
        ("\\boxed{}", None),
        ("\\boxed{70} or \\boxed{7", None),
        ("", None),
    ],
)
def test_the_answer_is_the_inside_of_the_last_box(response, answer):
    assert find_answer(response, "boxed") == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("the answer is 70.", "70"),
        ("x = -3", "-3"),
        ("x = \u22123", "-3"),
        ("10-3", "3"),
        ("about 3.14", "3.14"),
        ("costs $1,234,567.50", "1234567.50"),
        ("the points 1,2 and 1,23", "23"),
        ("the ratio 3/4", "3/4"),
        ("-3/4 of it", "-3/4"),
        ("the version 3/4.5", "4.5"),
        (".5", ".5"),
        ("\u7b54\u6848\u662f70\u3002", "70"),
        ("in R2D2 there are 7km", "7"),
        ("\u0663", None),
        ("no number at all", None),
    ],
)
def test_the_answer_is_the_last_number_as_it_is_written(response, answer):
    assert find_answer(response, "last_number") == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("7, so \\boxed{x}, 8", "x"),
        ("7, so 8", "8"),
        ("7, so \\boxed{}", None),
        ("7, so \\boxed{8", None),
    ],
)
def test_the_last_number_counts_only_where_there_is_no_box(response, answer):
    assert find_answer(response, "boxed_then_last_number") == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer>a</answer> <answer>\n1 2\n3 4\n</answer>", "1 2\n3 4"),
        ("<answer>a</answer> <answer>b", None),
        ("b</answer>", None),
        ("<answer> </answer>", None),
    ],
)
def test_the_answer_is_between_the_last_tags(response, answer):
    assert find_answer(response, "tagged") == answer


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 200_000, "{" * 1_000_000, "1" * 1_000_000, "1,234" * 200_000, "1/" * 500_000, "<answer>" * 100_000],
)
def test_a_million_characters_take_no_more_than_a_moment(text):
    started = time.process_time()
    for find in (last_boxed, last_number, last_tagged):
        find(text)
    assert time.process_time() - started < 3.0
