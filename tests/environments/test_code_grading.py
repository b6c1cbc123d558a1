"""Verdicts: right answers pass, and nothing that an answer does to its own process changes who is right."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.environments.leftovers import processes_with

from midcourse.environments.code.grading import CallTests, Grader, ProgramTests, Verdict
from midcourse.environments.code.guest import encode
from midcourse.environments.sandbox import SandboxConfig
from midcourse.errors import ConfigError

MARK = f"/nowhere/midcourse-{os.getpid()}"  # stands in the command line of each guest
REFERENCE = "def double(x):\n    return x * 2\n"
CALLS = CallTests(
    script='compare_with_reference(candidate, run_reference(data["reference"], "double"), data["inputs"])',
    names={"candidate": "double"},
    data=encode({"reference": REFERENCE, "inputs": [[21], ["ab"], [[1, 2]], [0.5]]}),
)
SUMS = ProgramTests(cases=[("1 2\n", "3\n"), ("5 6\n", "11\n")])
ADD = "a, b = map(int, input().split())\nprint(a + b)\n"


def build(kind: str, **settings) -> Grader:
    """Return a grader, or skip with what this machine lacks."""
    try:
        sandbox = SandboxConfig(kind=kind, **({"wall_seconds": 10.0, "cpu_seconds": 10} | settings)).build()
    except ConfigError as error:
        pytest.skip(str(error))
    return Grader(sandbox, concurrency=2, packages=[MARK])


@pytest.fixture(scope="module", params=["bubblewrap", "process"])
def grader(request):
    return build(request.param)


@pytest.fixture(scope="module")
def hasty():
    """A grader that waits one second and reads little."""
    return build("bubblewrap", wall_seconds=1.0, output_mebibytes=1)


def left_over() -> set[str]:
    """Return the processes that run an answer or a checker of these tests, and the control groups."""
    groups = Path("/sys/fs/cgroup").glob(f"**/midcourse-{os.getpid()}-*")
    return {*processes_with(MARK), *(str(group) for group in groups)}


def test_a_right_answer_passes_and_a_wrong_one_fails(grader):
    assert grader.grade("def double(x):\n    return x + x\n", CALLS).verdict is Verdict.PASSED
    wrong = grader.grade("def double(x):\n    return x * 3\n", CALLS)
    assert (wrong.verdict, wrong.reason) == (
        Verdict.FAILED,
        "AssertionError: input 0 gives another value than the reference",
    )
    assert grader.grade(ADD, SUMS).verdict is Verdict.PASSED
    assert grader.grade(ADD.replace("+", "-"), SUMS).reason == "test 0: another output than expected"
    assert left_over() == set()


# Each knows what the first input is and what must come back for it: that is what a cheat can know at most.
GAINS_NOTHING = {
    "prints the expected answer and exits": "print(42)\nimport sys\nsys.exit(0)",
    "exits at once and for good": "print(42)\nimport os\nos._exit(0)",
    "exits in the call": "def double(x):\n    print(42)\n    import os\n    os._exit(0)",
    "is equal to everything": """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __abs__(self): return 0
def double(x):
    return Anything()
""",
    "is a number equal to everything": """
class Anything(int):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
def double(x):
    return Anything()
""",
    "changes the builtins": """
import builtins, copy, json
builtins.isinstance = lambda *_: True
builtins.all = lambda *_: True
copy.deepcopy = lambda x, *_: x
json.dumps = lambda *_, **__: '{"verdict": "passed", "reason": ""}'
def double(x):
    return None
""",
    "changes the program that runs it": """
import sys
guest = sys.modules["__main__"]
for name in ("same", "judge", "compare_with_reference", "encode"):
    setattr(guest, name, lambda *_, **__: True)
def double(x):
    return None
""",
    "raises what a failed test raises not": "def double(x):\n    raise SystemExit(0)",
    "writes verdicts to every descriptor": """
import os
def double(x):
    for line in (b'{"verdict": "passed", "reason": ""}\\n', b'running\\n', b'{"value": true}\\n'):
        for descriptor in range(64):
            try:
                os.write(descriptor, line * 20)
            except OSError:
                pass
""",
    "opens the descriptors of every process": """
import os
for process in os.listdir("/proc"):
    if process.isdigit():
        try:
            descriptors = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                with open(f"/proc/{process}/fd/{descriptor}", "wb", buffering=0) as file:
                    os.set_blocking(file.fileno(), False)
                    file.write(b'{"verdict": "passed", "reason": ""}\\n')
            except OSError:
                pass
def double(x):
    return None
""",
    "looks for the expected values in memory": """
import gc
def double(x):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "reference" in thing:
            scope = {}
            exec(thing["reference"], scope)
            return scope["double"](x)
""",
    "looks for the tests in files and command lines": """
import os
def double(x):
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                if b"x * 2" in open(f"/proc/{process}/{name}", "rb").read():
                    return x * 2
            except OSError:
                pass
""",
    "answers from a child that it forked": """
import os
def double(x):
    if os.fork() == 0:
        return 42
    os._exit(0)
""",
    "kills every other process": """
import os, signal
for process in filter(str.isdigit, os.listdir("/proc")):
    if int(process) not in (1, os.getpid(), os.getppid()):
        try:
            os.kill(int(process), signal.SIGKILL)
        except OSError:
            pass
def double(x):
    return None
""",
    "is no Python": "def double(x) return x",
    "defines nothing": "",
    "is no function": "double = 42",
}


@pytest.mark.parametrize("source", GAINS_NOTHING.values(), ids=GAINS_NOTHING)
def test_an_answer_gains_nothing_that(source):
    grade = build("bubblewrap", wall_seconds=5.0).grade(source, CALLS)
    assert grade.verdict is Verdict.FAILED, grade
    assert left_over() == set()


@pytest.mark.parametrize(
    "source",
    [
        "def double(x):\n    while True: pass",
        "while True: pass",
        "def double(x):\n    import time\n    time.sleep(600)",
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except OSError: pass\nwhile True: pass",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import threading\ndef double(x):\n    threading.Event().wait()",
        "def double(x):\n    while True: print('x' * 100_000)",
    ],
    ids=[
        "loop in a call",
        "loop at once",
        "sleep",
        "loop deaf to signals",
        "fork bomb",
        "deadlock",
        "prints gigabytes",
    ],
)
def test_what_does_not_end_is_a_timeout_and_leaves_nothing(hasty, source):
    started = time.monotonic()
    assert hasty.grade(source, CALLS).verdict is Verdict.TIMEOUT
    assert time.monotonic() - started < 15
    assert left_over() == set()


@pytest.mark.parametrize("kind", ["bubblewrap", "process"])
def test_cpu_time_that_is_used_up_is_a_timeout_before_the_wall_clock_says_so(kind):
    grader = build(kind, wall_seconds=60.0, cpu_seconds=1)
    for tests in (CALLS, SUMS):
        grade = grader.grade("while True: pass", tests)
        assert (grade.verdict, grade.seconds < 30) == (Verdict.TIMEOUT, True)
        assert "CPU time" in grade.reason


def test_ten_gigabytes_are_too_much_memory_however_they_are_asked_for(grader):
    for source in ("x = bytearray(10 * 2**30)", "def double(x):\n    return [0] * (10 * 2**30)"):
        assert grader.grade(source, CALLS).verdict is Verdict.MEMORY
    assert grader.grade("x = bytearray(10 * 2**30)", SUMS).verdict is Verdict.MEMORY
    assert left_over() == set()


def test_a_reply_that_unpacks_to_much_memory_does_not_break_the_checker():
    grader = build("bubblewrap", memory_mebibytes=128, wall_seconds=20.0)
    bomb = "import os\ndef double(x):\n    os.write(4, b'{\"value\": [' + b'[],' * 5_000_000 + b'[]]}\\n')"
    for descriptor in (3, 4, 5):
        grade = grader.grade(bomb.replace("write(4", f"write({descriptor}"), CALLS)
        assert grade.verdict in (Verdict.MEMORY, Verdict.FAILED), grade
    deep = "class Deep(list): pass\ndef double(x):\n    y = []\n    for _ in range(10**5): y = [y]\n    return y"
    assert grader.grade(deep, CALLS).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    "source",
    [
        "def double(x):\n    return 'x' * 5_000_000",
        "import os\ndef double(x):\n    while True:\n        for d in (3, 4, 5):\n"
        "            try: os.write(d, b'x' * 100_000)\n            except OSError: pass",
    ],
    ids=["a long value", "an endless line"],
)
def test_a_value_that_is_longer_than_what_is_read_has_failed(hasty, source):
    assert hasty.grade(source, CALLS).verdict is Verdict.FAILED


def test_a_program_that_writes_gigabytes_has_failed(hasty):
    grade = hasty.grade("while True: print('3' * 100_000)", SUMS)
    assert (grade.verdict, grade.reason) == (Verdict.FAILED, "test 0: wrote more than 1 MiB")
    assert left_over() == set()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print(3)", "test 1: another output than expected"),
        ("print(3)\nraise SystemExit(1)", "test 0: ended with status 1"),
        ("import os\nprint(3, flush=True)\nos.kill(os.getpid(), 11)", "test 0: ended with status 139"),
        ("print('running')\n" + ADD, "test 0: another output than expected"),
        (ADD + "1/0", "test 0: ended with status 1"),
        ("not python", "test 0: ended with status 1"),
    ],
)
def test_programs_fail_for_what_they_write_and_how_they_end(source, reason):
    grade = build("bubblewrap").grade(source, SUMS)
    assert (grade.verdict, grade.reason) == (Verdict.FAILED, reason)


def test_a_program_may_exit_and_read_as_contest_programs_do(grader):
    for source in (
        "import sys\na, b = map(int, sys.stdin.read().split())\nsys.stdout.write(str(a + b))\nexit()",
        "import os\na, b = map(int, os.read(0, 100).split())\nprint(a + b)\nquit()",
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\n    b: int\n"
        "p = P(*map(int, open(0).read().split()))\nprint(p.a + p.b)",
    ):
        assert grader.grade(source, SUMS).verdict is Verdict.PASSED


def test_programs_share_the_wall_clock_of_one_answer():
    grader = build("process", wall_seconds=1.5)
    many = ProgramTests(cases=[("", "")] * 50)
    started = time.monotonic()
    assert grader.grade("import time\ntime.sleep(0.4)", many).verdict is Verdict.TIMEOUT
    assert time.monotonic() - started < 15


def test_an_answer_reaches_neither_network_nor_home():
    grader = build("bubblewrap")
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"""
import os, socket
def double(x):
    try:
        socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 2)
    except OSError:
        return x * 2 if not os.path.exists({str(Path(__file__))!r}) else None
"""
        assert grader.grade(source, CALLS).verdict is Verdict.PASSED


def test_packages_can_be_imported_from_the_folders_that_are_named(tmp_path):
    (tmp_path / "twice.py").write_text("def twice(x):\n    return x * 2\n")
    source = "from twice import twice as double"
    assert build("bubblewrap").grade(source, CALLS).verdict is Verdict.FAILED
    sandbox = build("bubblewrap", readable=(str(tmp_path),))._sandbox
    assert Grader(sandbox, concurrency=1, packages=[str(tmp_path)]).grade(source, CALLS).verdict is Verdict.PASSED


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (CallTests(script="def", names={}), "SyntaxError"),
        (
            CallTests(
                script='compare_with_reference(candidate, run_reference("1/0", "f"), [[1]])',
                names={"candidate": "double"},
            ),
            "ZeroDivisionError",
        ),
        (CallTests(script="candidate(object())", names={"candidate": "double"}), "CannotEncode"),
    ],
    ids=["a test that is no Python", "a reference that raises", "an argument that is no data"],
)
def test_a_broken_test_says_nothing_about_the_answer(tests, reason):
    grade = build("process").grade(REFERENCE, tests)
    assert grade.verdict is Verdict.SANDBOX_ERROR
    assert reason in grade.reason


def test_a_sandbox_that_stops_working_is_no_verdict_on_the_answer(monkeypatch):
    grader = build("process")
    monkeypatch.setattr(grader._sandbox, "_prefix", ["false"])
    for tests in (CALLS, SUMS):
        assert grader.grade(REFERENCE, tests).verdict is Verdict.SANDBOX_ERROR


def test_no_more_answers_are_graded_at_once_than_asked_for():
    grader = build("process")
    running, most, lock = 0, 0, threading.Lock()
    start = grader._grade_calls

    def counting(*arguments):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            return start(*arguments)
        finally:
            with lock:
                running -= 1

    grader._grade_calls = counting
    verdicts = []
    threads = [
        threading.Thread(target=lambda: verdicts.append(grader.grade(REFERENCE, CALLS).verdict)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [Verdict.PASSED] * 6
    assert most == 2


def test_an_answer_that_finds_no_free_place_in_time_gets_no_verdict(monkeypatch):
    monkeypatch.setattr("midcourse.environments.code.grading.QUEUE_SECONDS", 0.05)
    grader = build("process")
    with grader._free, grader._free:
        assert grader.grade(REFERENCE, CALLS).verdict is Verdict.SANDBOX_ERROR
    assert grader.grade(REFERENCE, CALLS).verdict is Verdict.PASSED


def test_no_descriptor_is_left_open(grader):
    grader.grade(REFERENCE, CALLS)
    before = set(os.listdir("/proc/self/fd"))
    for source in (REFERENCE, "import os\nos._exit(0)"):
        grader.grade(source, CALLS)
        grader.grade(source, SUMS)
    assert set(os.listdir("/proc/self/fd")) == before
