"""AgentBench-DB's parts without a database: hashes, answers, MySQL's ways in SQLite, task files, calls."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.agentbench_db_tasks import DELETE, INSERT, QUESTION, UPDATE, table, write_tasks
from tests.environments.code_data import official

from midcourse.environments.agentbench_db.answers import answer_matches
from midcourse.environments.agentbench_db.database import TRUNCATED, shown_change, shown_rows
from midcourse.environments.agentbench_db.dialect import compare_text, to_sqlite
from midcourse.environments.agentbench_db.environment import TaskFile
from midcourse.environments.agentbench_db.tables import state_hash
from midcourse.environments.agentbench_db.tools import checked_argument
from midcourse.environments.calls import BadCall
from midcourse.errors import DataError
from midcourse.types import ToolCall

# Hashes


def test_a_tables_hash_is_that_of_its_rows_first_five_digits_sorted():
    # As MariaDB computes it: MD5("a,1") = 9c33a6..., MD5("b") = 92eb5f..., MD5("92eb5,9c33a").
    assert state_hash([("b", None), ("a", "1")]) == "ad86a49787fa7d873f4c976f7d8ed2a6"
    assert state_hash([("a", "1"), (None, "b")]) == state_hash([("b", None), ("a", "1")])
    assert state_hash([]) is None


# Answers


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("Vienna", ["Vienna"]),
        (" 'vienna' ", ["Vienna"]),
        ('"House of Cards"', ['"House of Cards"']),
        ("House of Cards", ['"House of Cards"']),
        ("1174", ["1174.0"]),
        ("1,174.00", ["1174.0"]),
        ("23.3 %", ["23.3"]),
        ("3,729.7", ["3,729.7"]),
        ("7.004", ["7"]),
        ("None", ["0.0"]),
        ("none", ["none"]),
        ("[(None,)]", ["none"]),
        (["a", "b"], ["b", "a"]),
        (["a", "b", "a"], ["b", "a"]),
        ('["a", "b"]', ["b", "a"]),
        ("[('a',), ('b',)]", ["b", "a"]),
        ([["a"], ["b"]], ["b", "a"]),
        ("b\na", ["a", "b"]),
        ("b, a", ["a", "b"]),
        ("[1, 2.0]", ["2", "1"]),
        ("Smith, John", ["Smith, John"]),
        ("''", [""]),
    ],
)
def test_what_is_the_same_in_another_form_is_accepted(answer, reference):
    assert answer_matches(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("", ["none"]),
        ("  ", ["0"]),
        ("''", ["0"]),
        ([], ["none"]),
        ("[]", ["0.0"]),
        ("Vienn", ["Vienna"]),
        ("Vienna or Graz", ["Vienna"]),
        ("the answer is Vienna", ["Vienna"]),
        (["Vienna", "Graz"], ["Vienna"]),
        (["Vienna"], ["Vienna", "Graz"]),
        ("7.02", ["7"]),
        ("-7", ["7"]),
        ("2", ["2 goals"]),
        ("1e999", ["1"]),
        ("nan", ["1"]),
        ("1_1", ["11"]),
        ("1,1", ["11"]),
        ("[" * 5000, ["1"]),
        ("[" * 5000 + "]" * 5000, ["1"]),
        ("9" * 30000, ["9"]),
        ("true", ["1"]),
    ],
)
def test_what_is_something_else_is_not(answer, reference):
    assert not answer_matches(answer, reference)


@given(st.text(max_size=30))
def test_no_text_breaks_the_comparison_and_every_value_equals_itself(text):
    assert answer_matches([text], [text])
    assert answer_matches(text, ["what it is not"]) is False


# MySQL's ways in SQLite


@pytest.mark.parametrize(
    ("mysql", "sqlite"),
    [
        (r"SELECT 'it\'s'", "SELECT 'it''s'"),
        (r"SELECT 'a\nb\tc\\'", "SELECT 'a\nb\tc\\'"),
        (r"SELECT 'it''s\n'", "SELECT 'it''s\n'"),
        (r'SELECT "a\"b"', 'SELECT "a""b"'),
        (r"SELECT '50\%'", r"SELECT '50\%'"),
        ("INSERT INTO 1952_race (No) VALUES (1)", "INSERT INTO `1952_race` (No) VALUES (1)"),
        ("SELECT t.1st FROM t", "SELECT t.`1st` FROM t"),
        ("SELECT 1.5, 1e5, 2.5E-3, 0x1F, 7, 3.", "SELECT 1.5, 1e5, 2.5E-3, 0x1F, 7, 3."),
        ("SELECT a1, b_2c FROM t3x", "SELECT a1, b_2c FROM t3x"),
        (r"SELECT `1st\`, [2nd\], 'x'", r"SELECT `1st\`, [2nd\], 'x'"),
        ("SELECT '1952_race' -- 1952_race", "SELECT '1952_race' -- 1952_race"),
        ("SELECT 'open", "SELECT 'open"),
    ],
)
def test_strings_and_names_are_read_as_mysql_reads_them(mysql, sqlite):
    assert to_sqlite(mysql) == sqlite


def test_text_compares_without_case_accents_and_trailing_spaces():
    assert compare_text("Montréal ", "MONTREAL") == 0
    assert compare_text("Straße", "strasse") == 0
    assert (compare_text("a", "B"), compare_text("b", "A")) == (-1, 1)
    assert compare_text(" a", "a") != 0


# What the policy is shown


def test_rows_are_shown_as_a_python_list_and_cut():
    assert shown_rows([], 80) == "[]"
    assert shown_rows([("it's", 1, None, 2.5)], 80) == '[("it\'s", 1, None, 2.5)]'
    assert shown_rows([("a",), (b"\xff",)], 80) == "[('a',), ('\ufffd',)]"
    assert shown_rows([("abc",)] * 3, 10) == "[('abc',)," + TRUNCATED
    assert (shown_change(1), shown_change(3), shown_change(-1)) == ("ok, 1 row affected", "ok, 3 rows affected", "ok")


def test_no_more_rows_are_taken_than_are_shown():
    taken = []

    def rows():
        for number in range(10**9):
            taken.append(number)
            yield ("x" * 100,)

    assert len(shown_rows(rows(), 800)) == 800 + len(TRUNCATED)
    assert len(taken) < 10


# Calls


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (ToolCall("drop", {}), "unknown tool 'drop'; expected one of sql_query, answer_action"),
        (ToolCall("sql_query", {}), "expects the argument query and no other: got none"),
        (ToolCall("sql_query", {"query": "SELECT 1", "limit": 3}), "got query, limit"),
        (ToolCall("sql_query", {"query": " "}), "to be an SQL statement"),
        (ToolCall("sql_query", {"query": ["SELECT 1"]}), "to be an SQL statement"),
        (ToolCall("sql_query", {"query": "SELECT '\ud800'"}), "half of a surrogate pair"),
        (ToolCall("answer_action", {"answer": None}), "text or an array"),
        (ToolCall("answer_action", {"answer": True}), "text or an array"),
        (ToolCall("answer_action", {"answer": {"a": 1}}), "text or an array"),
        (ToolCall("answer_action", ["x"]), "expects the argument answer"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_call_says_what_was_expected(call, reason):
    with pytest.raises(BadCall, match=reason):
        checked_argument(call)


def test_a_number_is_taken_for_its_text():
    assert checked_argument(ToolCall("answer_action", {"answer": 7})) == "7"
    assert checked_argument(ToolCall("answer_action", {"answer": ["a", 7]})) == ["a", 7]


# Task files


def test_a_column_without_a_name_is_called_by_its_place(tmp_path):
    nameless = table()
    nameless["table_info"]["columns"][1]["name"] = ""
    (problem,) = problems_of(tmp_path, {**QUESTION, "table": nameless})
    assert problem.tables[0].columns == ("Name", "column_2")


def test_records_become_tasks_with_their_operation_and_evidence(tmp_path):
    question, update, insert, delete = problems_of(tmp_path, QUESTION, UPDATE, INSERT, DELETE)
    assert question.tags == ("operation:select", "kind:other")
    assert [problem.tags for problem in (update, insert, delete)] == [
        ("operation:update",),
        ("operation:insert",),
        ("operation:delete",),
    ]
    assert question.query == "Who is the mayor of Bergen?\nThe name of this table is City list."
    assert question.tables[0].columns == ("Name", "Mayor's name")
    task = question.task("test")
    assert (task.split, task.evidence.private_values, task.evidence.facts["values"]) == ("test", ("Zoë",), ("Zoë",))
    assert update.recorded_state == UPDATE["answer_md5"][3:35]
    assert insert.recorded_state is None
    assert update.task("test").evidence.private_values == ("Anna", "ann")
    assert len({problem.task_id for problem in (question, update, insert, delete)}) == 4
    for problem in (question, update):
        for secret in problem.task("test").evidence.private_values:
            assert secret not in repr(problem.task("test")).replace(problem.query, "")


def problems_of(folder, *records):
    return TaskFile(path=write_tasks(folder, *records)).read()


def test_several_tables_a_hint_and_values_that_are_no_text(tmp_path):
    other = table("Other")
    other["table_info"]["rows"] = [[1, 2.0], [None, "x"]]
    record = QUESTION | {"table": [table(), other], "type": "counting", "label": 3, "evidence": "Bergen is a city."}
    (problem,) = problems_of(tmp_path, record)
    assert [table.name for table in problem.tables] == ["City list", "Other"]
    assert problem.tables[1].rows == (("1", "2.0"), ("None", "x"))
    assert problem.reference_values == ("3",)
    assert "Bergen is a city." in problem.query


def broken(**changes):
    return json.loads(json.dumps(QUESTION)) | changes


SHORT_ROW = table()
SHORT_ROW["table_info"]["rows"][1] = ["Bergen"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (broken(label=[]), "line 2, label: "),
        (broken(table=SHORT_ROW), "line 2, table.0: .*row 1: 1 values, expected 2"),
        (broken(table={"table_name": "x"}), "line 2, table.0.table_info: Field required"),
        (broken(type="UPDATE", answer_md5="nothing"), "answer_md5: expected a hash, got 'nothing'"),
        (broken(user_sqlite=True), "database files of their own"),
        (broken(description=""), "line 2, description"),
        ([QUESTION], "line 2: expected a JSON object, got list"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_line(tmp_path, record, reason):
    with pytest.raises(DataError, match=reason):
        problems_of(tmp_path, QUESTION, record)


def test_a_part_of_a_file_may_be_taken_and_its_digest_is_checked(tmp_path):
    path = write_tasks(tmp_path, QUESTION, UPDATE, INSERT)
    assert [problem.operation for problem in TaskFile(path=path, first=1, count=1).read()] == ["update"]
    with pytest.raises(DataError, match="holds 3 tasks: none is left from position 3 on"):
        TaskFile(path=path, first=3).read()
    with pytest.raises(DataError, match="has sha256"):
        TaskFile(path=path, sha256="0" * 64).read()
    with pytest.raises(DataError, match="cannot be read"):
        TaskFile(path=str(tmp_path / "absent")).read()
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(DataError, match="holds no task"):
        TaskFile(path=str(tmp_path / "empty")).read()


def test_the_official_file_has_a_hundred_tasks_of_each_operation():
    problems = TaskFile(path=official("agentbench_db/standard.jsonl")).read()
    operations = [problem.operation for problem in problems]
    assert [operations.count(name) for name in ("select", "insert", "update", "delete")] == [100, 100, 100, 0]
    assert all(problem.recorded_state for problem in problems if problem.operation != "select")
