"""Which answers agree with a reference: the same number, date or word, and nothing next to it."""

import pytest

from midcourse.environments.toolqa.answers import MAX_CHARACTERS, answer_matches


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("147", "147.0"),
        ("147.0", "147"),
        ("147.", "147"),
        (" 147.0 USD ", "147"),
        ("306.25", "306.25 USD"),
        ("$306.25", "306.25 USD"),
        ("usd 306.25", "306.25 USD"),
        ("306.25 dollars.", "306.25 USD"),
        ("-$36.6", "-36.6 USD"),
        ("\N{MINUS SIGN}36.6", "-36.6 USD"),
        ("+91.5", "91.5 USD"),
        ("33,418", "33418"),
        ("3.3418e4", "33418"),
        ("2.0499999999999972", "2.05"),
        ("-1.39", "-1.39%"),
        ("-1.39 percent", "-1.39%"),
        ("2010-06-16", "2010-06-16"),
        ("The Bullish.", "bullish"),
    ],
)
def test_another_way_of_writing_the_same_is_right(answer, reference):
    assert answer_matches(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("36.6", "-36.6 USD"),  # right in ToolQA, which leaves punctuation out
        ("366", "36.6 USD"),  # right in ToolQA
        ("125.45", "125.4"),  # prices move in steps of 0.05
        ("306.25%", "306.25 USD"),
        ("306.25 or 92", "306.25 USD"),
        ("it was 306.25", "306.25 USD"),
        ("33,41,8", "33418"),
        ("nan", "0.0%"),
        ("inf", "1"),
        ("", "0"),
        ("bullish", "2010"),
        ("2010-06-17", "2010-06-16"),
        ("bullish or bearish", "bullish"),
        ("not bullish", "bullish"),
        ("0" * MAX_CHARACTERS + "1", "1"),
    ],
)
def test_another_value_is_wrong(answer, reference):
    assert not answer_matches(answer, reference)


def test_a_rounded_reference_takes_what_may_be_rounded_to_it_and_no_more():
    for given, is_right in (
        ("106.6", False),
        ("106.649", False),
        ("106.65", True),
        ("106.7", True),
        ("106.75", True),
        ("106.751", False),
        ("106.8", False),
    ):
        assert answer_matches(given, "106.7 USD", decimals=1) is is_right, given
    assert not answer_matches("106.65", "106.7 USD")


def test_the_digits_of_the_rounding_count_and_not_those_that_are_written():
    assert answer_matches("-0.004", "0.0%", decimals=2)
    assert not answer_matches("-0.04", "0.0%", decimals=2)
    assert answer_matches("-0.04", "0.0%", decimals=1)
