"""Problems from JSONL, Parquet and dataset folders; what is wrong is named by file, line and field."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from midcourse.environments.mathematics.task_file import FieldNames, Problem, read_problems
from midcourse.errors import DataError

ROWS: list[dict[str, Any]] = [
    {"problem": "What is 1+1?", "answer": 2, "solution": "1+1=2"},
    {"problem": " What is half of one? ", "answer": "$\\frac{1}{2}$", "solution": None},
    {"problem": "What is a third of one?", "answer": "so \\boxed{1/3}", "solution": ""},
    {"problem": "And 0.5 twice?", "answer": "1.0", "solution": "0.5+0.5"},
]
PROBLEMS = [
    Problem(problem="What is 1+1?", answer="2", solution="1+1=2"),
    Problem(problem="What is half of one?", answer="\\frac{1}{2}"),
    Problem(problem="What is a third of one?", answer="1/3"),
    Problem(problem="And 0.5 twice?", answer="1.0", solution="0.5+0.5"),
]


def read(path: Path, **names: str) -> list[Problem]:
    return read_problems(path, fields=FieldNames(**names), max_answer_characters=100)


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_json_lines_become_problems(tmp_path):
    assert read(lines(tmp_path / "a.jsonl", *ROWS[:2], "", *ROWS[2:])) == PROBLEMS


def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_may_begin_the_file(tmp_path):
    row = {"problem": "a\u2028b\u0085c", "answer": "2"}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\r\n", encoding="utf-8-sig", newline="")
    assert read(path) == [Problem(problem="a\u2028b\u0085c", answer="2")]


def test_parquet_becomes_the_same_problems(tmp_path):
    rows = [row | {"answer": str(row["answer"])} for row in ROWS]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == PROBLEMS


def test_a_dataset_folder_becomes_the_same_problems_also_when_shuffled(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
    made = datasets.Dataset.from_list([row | {"answer": str(row["answer"])} for row in ROWS])
    made.save_to_disk(str(tmp_path / "plain"))
    made.select([2, 0]).save_to_disk(str(tmp_path / "chosen"))
    assert read(tmp_path / "plain") == PROBLEMS
    assert read(tmp_path / "chosen") == [PROBLEMS[2], PROBLEMS[0]]
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(DataError, match=r"both holds several splits: name one of its folders: test, train"):
        read(tmp_path / "both")
    assert read(tmp_path / "both" / "train") == PROBLEMS


def test_fields_may_have_other_names(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"prompt": "1+1?", "label": "2", "proof": "count"})
    assert read(path, problem="prompt", answer="label", solution="proof") == [
        Problem(problem="1+1?", answer="2", solution="count")
    ]


def test_solutions_may_be_missing_but_not_under_a_name_of_ones_own(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"problem": "1+1?", "answer": "2"})
    assert read(path)[0].solution == ""
    with pytest.raises(DataError, match=r"a\.jsonl: no row has the field 'proof'"):
        read(path, solution="proof")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"a\.jsonl, line 2: no JSON"),
        ("[1]", r"a\.jsonl, line 2: expected an object, got list"),
        ("[" * 100_000, r"a\.jsonl, line 2: no JSON"),
        ('{"problem": "x", "answer": ' + "9" * 5000 + "}", r"a\.jsonl, line 2: no JSON"),
        ({"answer": "2"}, r"a\.jsonl, line 2: no field 'problem'; it has 'answer'"),
        ({"problem": "x", "solution": "y"}, r"a\.jsonl, line 2: no field 'answer'; it has 'problem', 'solution'"),
        ({"problem": 3, "answer": "2"}, r"a\.jsonl, line 2, field 'problem': expected text, got 3"),
        ({"problem": " ", "answer": "2"}, r"a\.jsonl, line 2, field 'problem': expected text, got ' '"),
        ({"problem": "x", "answer": None}, r"a\.jsonl, line 2, field 'answer': expected text or a finite number"),
        ({"problem": "x", "answer": True}, r"a\.jsonl, line 2, field 'answer': expected text or a finite number"),
        ('{"problem": "x", "answer": NaN}', r"a\.jsonl, line 2, field 'answer': expected text or a finite number"),
        ({"problem": "x", "answer": ["2"]}, r"a\.jsonl, line 2, field 'answer': expected text or a finite number"),
        ({"problem": "x", "answer": " "}, r"a\.jsonl, line 2, field 'answer': expected an answer"),
        ({"problem": "x", "answer": ""}, r"a\.jsonl, line 2, field 'answer': expected an answer, got ''"),
        ({"problem": "x", "answer": "$$"}, r"a\.jsonl, line 2, field 'answer': expected an answer, got '\$\$'"),
        ({"problem": "x", "answer": " $$ $$ "}, r"a\.jsonl, line 2, field 'answer': expected an answer"),
        ({"problem": "x", "answer": "$"}, r"a\.jsonl, line 2, field 'answer': expected an answer"),
        ({"problem": "x", "answer": "so \\boxed{ }"}, r"a\.jsonl, line 2, field 'answer': expected an answer"),
        ({"problem": "x", "answer": "\\boxed{$$}"}, r"a\.jsonl, line 2, field 'answer': expected an answer"),
        ({"problem": "x", "answer": "\\boxed{3"}, r"a\.jsonl, line 2, field 'answer': expected an answer"),
        ({"problem": "x", "answer": "1" * 101}, r"a\.jsonl, line 2, field 'answer': 101 characters, expected at most"),
        ({"problem": "x", "answer": "2", "solution": 5}, r"a\.jsonl, line 2, field 'solution': expected text or null"),
        (
            {"problem": "first", "answer": "2"},
            r"a\.jsonl, line 2, field 'problem': the same .* as in .*a\.jsonl, line 1",
        ),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_field(tmp_path, row, message):
    path = lines(tmp_path / "a.jsonl", {"problem": "first", "answer": "1"}, row)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_bad_row_of_a_table_is_named_by_its_number(tmp_path):
    rows = [{"problem": "x", "answer": "1"}, {"problem": "y", "answer": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row 2, field 'answer'"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "a.jsonl holds no problem"),
        ("a.jsonl", b"\xff\xfe", "a.jsonl cannot be read"),
        ("a.parquet", b"no table", "a.parquet cannot be read"),
        ("a.csv", b"", r"a.csv: expected a .jsonl file, a .parquet file or a folder"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.parquet", "a" * 300 + ".jsonl"])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        read(tmp_path / name)


def test_a_whole_number_may_be_over_every_float(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"problem": "x", "answer": ' + "7" * 400 + "}")
    (found,) = read_problems(tmp_path / "a.jsonl", fields=FieldNames(), max_answer_characters=400)
    assert found.answer == "7" * 400
