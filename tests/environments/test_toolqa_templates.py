"""ToolQA's formulas, by hand on five days, and on the official files."""

from collections import Counter
from pathlib import Path

import pytest
from tests.environments.code_data import official
from tests.environments.toolqa_world import EASY, HARD, PRICES, WRONG, price_file, prices, question_file

from midcourse.environments.toolqa.questions import make_questions, read_questions
from midcourse.environments.toolqa.table import PriceTable
from midcourse.environments.toolqa.templates import TEMPLATES, template_of
from midcourse.errors import DataError

WHOLE = ("2020-01-02", "2020-01-08")
BY_HAND = {
    "open": (("2020-01-03",), "104.0"),
    "low": (("2020-01-03",), "100.0"),
    "high": (("2020-01-06",), "125.5"),
    "close": (("2020-01-07",), "96.0"),
    "volume": (("2020-01-06",), "40"),
    "day_change_percent": (("2020-01-07",), "-20.66%"),  # (96 - 121) / 121
    "bearish_or_bullish": (("2020-01-03",), "bearish"),  # closes where it opened
    "day_range": (("2020-01-06",), "24.5"),
    "highest": (WHOLE, "125.5 USD"),
    "lowest": (WHOLE, "80.0 USD"),
    "average_price": (WHOLE, "104.8 USD"),  # 524 / 5
    "change": (WHOLE, "-1.0 USD"),  # from opening at 100 to closing at 99
    "change_from_day_before_percent": (("2020-01-06",), "15.4%"),  # 16 / 104
    "date_of_greatest_range": (WHOLE, "2020-01-07"),  # 27
    "average_volume": (WHOLE, "20.0"),
    "date_of_greatest_rise": (WHOLE, "2020-01-06"),  # 16
    "number_of_rises": (WHOLE, "2"),
    "increase_percent": (WHOLE, "-1.0%"),
    "range": (WHOLE, "45.5 USD"),  # 125.5 - 80
    "number_of_bullish_days": (WHOLE, "3"),
    "average_day_change_percent": (WHOLE, "0.1%"),  # (5 + 0 + 13.208 - 20.661 + 3.125) / 5
}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_each_formula_by_hand(template, tmp_path):
    dates, expected = BY_HAND[template.name]
    assert template.answer(template.rows(prices(tmp_path), dates)) == expected
    assert template_of(template.text.format(*dates)) == (template, dates)


def test_a_question_of_no_template_is_of_none():
    assert template_of("What was the opening price of tea on 2020-01-03?") is None
    assert template_of("What was the opening price of coffee on 3 January?") is None


def test_days_that_the_table_lacks_have_no_rows(tmp_path):
    table, by_name = prices(tmp_path), {template.name: template for template in TEMPLATES}
    assert by_name["open"].rows(table, ("2020-01-04",)) == ()
    assert by_name["highest"].rows(table, ("2020-01-02", "2020-01-05")) == ()
    assert by_name["highest"].rows(table, ("2020-01-08", "2020-01-02")) == ()
    assert by_name["change_from_day_before_percent"].rows(table, ("2020-01-02",)) == ()
    assert [day.date for day in by_name["change_from_day_before_percent"].rows(table, ("2020-01-06",))] == [
        "2020-01-03",
        "2020-01-06",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: expected the columns Date,Open"),
        (PRICES.replace("Currency", "Unit"), "line 1: expected the columns"),
        (PRICES.replace("2020-01-03", "2020-01-02"), "line 3: 2020-01-02 comes after 2020-01-02"),
        (PRICES.replace("2020-01-03", "2020-13-03"), "line 3: "),
        (PRICES.replace("2020-01-03", "20200103"), "expected YYYY-MM-DD"),
        (PRICES.replace("104.0,108.0", "nan,108.0"), "expected numbers above 0"),
        (PRICES.replace("104.0,108.0", "x,108.0"), "line 3: could not convert"),
        (PRICES.replace(",20,USD", ",20"), "line 3: 6 values, expected 7"),
        ("\n".join(PRICES.splitlines()[:2]), "holds 1 days"),
    ],
)
def test_a_table_that_is_none_is_refused_with_the_line(text, reason, tmp_path):
    with pytest.raises(DataError, match=reason):
        PriceTable.read(price_file(tmp_path, text))


def test_a_table_of_another_digest_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"has sha256 .*, expected 00"):
        PriceTable.read(price_file(tmp_path), sha256="0" * 64)
    with pytest.raises(DataError, match="cannot be read"):
        PriceTable.read(tmp_path / "absent.csv")


def test_questions_know_their_kind_and_whether_the_table_agrees_with_the_reference(tmp_path):
    other = {"qid": "x", "question": "Why?", "answer": "because"}
    easy, hard, wrong, free = read_questions(question_file(tmp_path, EASY, HARD, WRONG, other), prices(tmp_path))
    assert easy.task("test").tags == ("easy", "kind:open", "reference:right")
    assert hard.task("test").tags == ("hard", "kind:average_price", "reference:right")
    assert wrong.task("test").tags == ("hard", "kind:range", "reference:wrong")
    assert free.task("test").tags == ("other",)
    assert (wrong.derived, wrong.accepts("45.5"), wrong.accepts("125.5")) == ("45.5 USD", False, True)


def test_the_evidence_holds_the_reference_and_the_question_does_not(tmp_path):
    (question,) = read_questions(question_file(tmp_path, HARD), prices(tmp_path))
    task = question.task("train")
    assert task.evidence.text == "Reference answer: 104.8 USD"
    assert task.evidence.private_values == ("104.8 USD", "104.8")
    assert "104.8" not in repr(task)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "holds no question"),
        ([EASY, EASY], "line 2: an earlier record has the same qid, easy-1"),
        ([{**EASY, "answer": 104.0}], r"line 1, field 'answer': expected text, got '104\.0'"),
        ([{"qid": "1", "question": "Why?"}], "field 'answer'"),
        ([[1]], "expected a JSON object"),
    ],
)
def test_a_question_file_that_is_none_is_refused_with_the_place(records, reason, tmp_path):
    with pytest.raises(DataError, match=reason):
        read_questions(question_file(tmp_path, *records), prices(tmp_path))


def test_made_questions_are_spread_over_the_templates_and_are_never_asked_twice(tmp_path):
    table = prices(tmp_path)
    taken = {WRONG["question"]}
    made = make_questions(table, 26, level="hard", seed=3, taken=taken)
    assert made == make_questions(table, 26, level="hard", seed=3, taken=taken)
    assert [question.text for question in made] != [
        question.text for question in make_questions(table, 26, level="hard", seed=4, taken=taken)
    ]
    assert len({question.text for question in made} | taken) == 27
    assert set(Counter(question.template.name for question in made).values()) == {2}
    assert all(question.derived == question.reference for question in made)
    assert {question.template.level for question in make_questions(table, 21, level="both", seed=0, taken=())} == {
        "easy",
        "hard",
    }


def test_a_table_that_is_too_small_for_so_many_questions_is_refused(tmp_path):
    with pytest.raises(DataError, match="of 5 days gives no 200 different questions"):
        make_questions(prices(tmp_path), 200, level="hard", seed=0, taken=())


def test_of_the_official_references_exactly_the_ten_ranges_are_wrong():
    table = PriceTable.read(Path(official("toolqa/coffee.csv")))
    questions = [
        question
        for level in ("easy", "hard")
        for question in read_questions(Path(official(f"toolqa/coffee-{level}.jsonl")), table)
    ]
    wrong = [question for question in questions if question.is_reference_wrong]
    assert (len(questions), len(wrong)) == (230, 10)
    assert [question.task_id for question in wrong] == [f"hard-coffee-{number:04d}" for number in range(100, 110)]
    assert all(question.derived == question.reference for question in questions if question not in wrong)
