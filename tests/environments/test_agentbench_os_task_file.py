"""Reading AgentBench's files: every form that a task has, what is refused, and the real files where they lie."""

import json
from pathlib import Path

import pytest
from tests.environments.agentbench_os_tasks import CHANGE, COUNT, MATCH, write_tasks
from tests.environments.code_data import official

from midcourse.environments.agentbench_os import TaskFiles
from midcourse.environments.agentbench_os.task_file import Comparison, Script, problem_from, read_problems
from midcourse.errors import DataError


def problem(record, scripts=None):
    return problem_from(record, set_name="7", number=3, scripts=scripts)


def test_a_question_is_compared_with_the_output_of_its_example():
    found = problem(COUNT)
    assert found.check == (
        Script(language="bash", source="find ~ -name '*.txt' | wc -l"),
        Comparison(name="integer-match"),
    )
    assert (found.needs_answer, found.grading, found.match) == (True, "integer-match", None)
    task = found.task("train")
    assert task.tags == ("set:7", "grading:integer-match")
    assert "find ~" in task.evidence.text
    assert "find ~" not in task.query


def test_a_change_is_checked_by_a_script_alone():
    found = problem(CHANGE)
    assert (found.needs_answer, found.grading) == (False, "script")
    assert found.init == (Script(language="bash", source=CHANGE["create"]["init"]),)
    assert found.task("test").evidence.private_values == ()


def test_a_match_is_private():
    found = problem(MATCH | {"example": {"code": "echo $colour"}})
    assert (found.match, found.start) == ("blue", "colour=blue; cd /tmp")
    assert found.example == Script(language="bash", source="echo $colour")
    assert found.task("test").evidence.private_values == ("blue",)


def test_a_list_in_the_place_of_create_creates_nothing():
    assert problem(COUNT | {"create": [None, {"file": "check/integer-match.py"}]}).init == ()


def test_scripts_take_their_arguments_as_agentbench_gives_them():
    assert Script(language="bash", source="x").command(["a", "b"]) == ["/bin/bash", "-c", "x", "--", "a", "b"]
    assert Script(language="bash", source="x").command(prologue="y\n") == ["/bin/bash", "-c", "y\nx"]
    assert Script(language="python", source="x").command(["a"]) == ["python3", "-c", "x", "a"]


def test_script_files_are_read_and_those_that_are_missing_are_named(tmp_path):
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "words.sh").write_text("echo words")
    record = COUNT | {"create": {"init": {"file": "init/words.sh"}}}
    assert problem(record, tmp_path).init == (Script(language="bash", source="echo words"),)
    path = write_tasks(tmp_path, COUNT, record)
    with pytest.raises(DataError, match=r"words.sh is named, and no folder of scripts is.*leave_out"):
        read_problems(Path(path))
    assert len(read_problems(Path(path), leave_out=True)) == 1
    with pytest.raises(DataError, match="holds no task"):
        read_problems(Path(write_tasks(tmp_path, record)), leave_out=True)


def test_a_script_outside_its_folder_is_refused(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "scripts").mkdir()
    with pytest.raises(DataError, match="lies outside"):
        problem(COUNT | {"create": {"init": {"file": "../secret"}}}, tmp_path / "scripts")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluation": {}}, "either match or check"),
        ({"evaluation": {"match": "a", "check": "true"}}, "either match or check"),
        ({"evaluation": {"check": [None]}}, "there is none"),
        ({"evaluation": {"check": [{"file": "check/in.py"}]}}, "needs a script before it"),
        ({"evaluation": {"check": [{"language": "c", "code": "x"}]}}, "language"),
        ({"create": {"local": "windows"}}, "unknown image 'windows'"),
        ({"create": {"init": {}}}, "either code or file"),
        ({"description": ""}, "description"),
    ],
)
def test_what_is_no_task_is_an_error_that_says_where(tmp_path, change, message):
    with pytest.raises(DataError, match=message) as caught:
        read_problems(Path(write_tasks(tmp_path, COUNT, COUNT | change)))
    assert "entry 1" in str(caught.value)


def test_a_folder_of_sets_is_read_in_order_single_objects_too(tmp_path):
    for name, content in (("2/b.json", [COUNT, CHANGE]), ("2/a.json", MATCH), ("1/x.json", [CHANGE])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content, indent=4))
    (tmp_path / "backup.json").write_text("[]")
    tags = [(item.set_name, item.grading) for item in read_problems(tmp_path)]
    assert tags == [("1", "script"), ("2", "match"), ("2", "integer-match"), ("2", "script")]
    assert len({item.task_id for item in read_problems(tmp_path)}) == 4
    with pytest.raises(DataError, match="digest of a file"):
        read_problems(tmp_path, sha256="0" * 64)


def test_positions_choose_tasks(tmp_path):
    path = write_tasks(tmp_path, COUNT, CHANGE, MATCH)
    assert [item.grading for item in TaskFiles(path=path, first=1, count=1).read()] == ["script"]
    with pytest.raises(DataError, match="none is left from position 3 on"):
        TaskFiles(path=path, first=3).read()


def test_the_official_training_file_is_read_whole():
    problems = read_problems(Path(official("agentbench_os/training.json")))
    assert len(problems) == 1000
    counts = {
        name: sum(item.grading == name for item in problems) for name in ("integer-match", "string-match", "size-match")
    }
    assert counts == {"integer-match": 930, "string-match": 47, "size-match": 23}


def test_the_official_standard_sets_are_read_but_for_those_with_script_files():
    folder = Path(official("agentbench_os/training.json")).parent / "data"
    problems = read_problems(folder, leave_out=True)
    sizes = {name: sum(item.set_name == name for item in problems) for name in "1234567"}
    # 144 in all: 7 of set 1 and 3 of set 2 begin with a script file, 3 of set 5 are checked by one
    assert sizes == {"1": 0, "2": 2, "3": 6, "4": 19, "5": 7, "6": 9, "7": 88}
