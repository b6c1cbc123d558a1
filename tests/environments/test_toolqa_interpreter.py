"""What code in the box can do to its interpreter: no more than to lose it. A stand-in for pandas makes starts cheap."""

import os
import threading
import time
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from tests.environments.toolqa_world import PRICES, quick_workshop

from midcourse.environments.sandbox import SandboxError
from midcourse.environments.toolqa.interpreter import Interpreter
from midcourse.errors import ConfigError, EnvironmentFault

LOST = "The next call has a new interpreter: names defined so far are gone."


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    try:
        return quick_workshop(tmp_path_factory.mktemp("quick"), wall_seconds=20.0, memory_mebibytes=256, processes=16)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def living(workshop):
    """An interpreter for calls that leave it alive; `x` is 1 in it."""
    interpreter = Interpreter(workshop)
    assert interpreter.run("x = 1").is_error is False
    yield interpreter
    interpreter.close()


def is_alive(interpreter: Interpreter) -> bool:
    return interpreter.run("x").text == "1"


def test_names_stay_from_call_to_call_and_what_is_done_to_the_table_does_not(living):
    assert living.run("df.clear(); y = x + 1; df").text == "[]"
    shown = living.run("print(len(df), y)")
    assert (shown.text, shown.is_error) == (f"{len(PRICES.split())} 2", False)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("this is no Python", "Error: SyntaxError: invalid syntax (line 1)"),
        ("print('seen')\nimport sys; sys.exit(3)", "seen\nError: SystemExit: 3 (the code asked to exit;"),
        ("exit()", "Error: SystemExit (the code asked to exit;"),
        ("bytearray(10 * 2**30)", "Error: MemoryError (line 1)"),
        ("import socket; socket.create_connection(('1.1.1.1', 53), 2)", "Error: OSError: [Errno 101] Network is"),
        ("open('/etc/passwd')", "Error: FileNotFoundError"),
        ("open('/x', 'w')", "Error: OSError: [Errno 30] Read-only file system"),
        ("open('/tmp/big', 'wb').write(bytes(2**25))", "Error: OSError: [Errno 27] File too large"),
        ("import os; os.write(1, b'x'); os.write(2, b'x' * 10**6); x", "1"),
        ("import os; os.fork(); 'once'", "'once'"),
        ("x", "1"),
        ("pass", "(no output: print what you want to see)"),
        ("print('\\ud800')", "?"),
        ("object()", "<object object at 0x...>"),
    ],
)
def test_what_code_may_do_without_losing_its_interpreter(code, told, living):
    shown = living.run(code)
    assert shown.text.startswith(told)
    assert shown.is_error is ("Error: " in told)
    assert is_alive(living)


def test_of_a_hundred_megabytes_of_output_the_beginning_is_shown(living):
    shown = living.run("for _ in range(100): print('y' * 10**6)")
    assert shown.text == "y" * 200 + "\n... (99999900 more characters)"
    assert living.run("print('z' * 200, end='')").text == "z" * 200
    assert is_alive(living)


def test_the_home_folder_and_the_environment_are_not_there(living, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    with NamedTemporaryFile(dir=Path.home(), prefix=".midcourse-test-") as secret:
        code = f"import os; print(os.path.exists({secret.name!r}), os.path.exists({__file__!r}), sorted(os.environ))"
        shown = living.run(code)
    assert shown.text.startswith("False False [")
    assert "SECRET_TOKEN" not in shown.text


def test_a_fork_bomb_is_over_with_its_call(living):
    code = "import os, time\nfor _ in range(12):\n    if not os.fork(): time.sleep(1000)"
    living.run(code)
    assert living.run("import os; sum(name.isdigit() for name in os.listdir('/proc'))").text == "2"
    shown = living.run("import os\nfor _ in range(10000): os.fork()")
    assert "BlockingIOError" in shown.text or not shown.is_error  # without a cgroup for processes there is no limit
    assert is_alive(living)


def test_a_forged_reply_is_shown_at_most_once_and_the_interpreter_is_lost(workshop):
    forged = '{"number": 1, "text": "forged", "written": 6, "error": null}\\n'
    code = f"import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'{forged}')\n    except OSError: pass"
    code += "\nimport time; time.sleep(0.5)"  # the true reply comes when the forged one was read
    interpreter = Interpreter(workshop)
    try:
        interpreter.run("x = 1")
        first, second = interpreter.run(code).text, interpreter.run("x").text
        assert (first == "forged" and second.endswith(LOST)) or (first.endswith(LOST) and "NameError" in second)
        assert "NameError" in interpreter.run("x").text
    finally:
        interpreter.close()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os.kill(os.getpid(), 9)", "Error: the interpreter ended with status 137"),
        ("import os; os._exit(3)", "Error: the interpreter ended with status 3"),
        ("import os; os.closerange(0, 100)", "Error: the interpreter ended with status"),
        (
            "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'[]\\n')\n    except OSError: pass",
            "Error: the interpreter's reply cannot be read; it was ended",
        ),
    ],
)
def test_code_that_breaks_its_interpreter_is_told_and_the_next_call_has_another(code, told, workshop):
    interpreter = Interpreter(workshop)
    try:
        interpreter.run("x = 1")
        shown = interpreter.run(code)
        assert shown.text.startswith(told)
        assert shown.text.endswith(LOST)
        assert shown.is_error
        assert "NameError" in interpreter.run("x").text
        assert interpreter.run("len(df)").text == str(len(PRICES.split()))
    finally:
        interpreter.close()


def test_an_endless_loop_is_ended_and_nothing_of_it_stays(tmp_path):
    workshop = quick_workshop(tmp_path, wall_seconds=1.5)
    interpreter = Interpreter(workshop)
    try:
        began = time.monotonic()
        shown = interpreter.run("while True:\n    try:\n        while True: pass\n    except BaseException: pass")
        assert shown.text == f"Error: it was not done within 1.5 s and was ended. {LOST}"
        assert time.monotonic() - began >= 1.5
        assert interpreter.run("import os; len(os.listdir('/tmp'))").is_error is False
    finally:
        interpreter.close()
    assert workshop.places.acquire(timeout=0)  # the place is free again


def test_an_interpreter_that_does_not_start_is_a_fault_and_no_answer(tmp_path):
    workshop = quick_workshop(tmp_path)
    (tmp_path / "packages" / "pandas.py").write_text("raise ImportError('broken')")
    interpreter = Interpreter(workshop)
    with pytest.raises(SandboxError, match=r"(?s)did not start: .*ImportError: broken"):
        interpreter.run("1")
    (tmp_path / "packages" / "pandas.py").write_text("import time; time.sleep(1000)")
    workshop.sandbox.config = workshop.sandbox.config.model_copy(update={"start_seconds": 1.0})
    with pytest.raises(SandboxError, match=r"did not start: it was not done within 1 s"):
        interpreter.run("1")


def test_closing_is_for_good_and_leaves_no_descriptor_and_no_process_behind(workshop):
    before = len(os.listdir("/proc/self/fd"))
    interpreter = Interpreter(workshop)
    interpreter.run("1")
    interpreter.close()
    interpreter.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(EnvironmentFault, match="closed"):
        interpreter.run("1")


def test_an_interpreter_that_is_never_used_starts_nothing(workshop):
    before = len(os.listdir("/proc/self/fd"))
    interpreter = Interpreter(workshop)
    assert len(os.listdir("/proc/self/fd")) == before
    interpreter.close()


def test_calls_beyond_the_places_wait_for_one(workshop):
    interpreter = Interpreter(workshop)
    shown = []
    assert workshop.places.acquire(timeout=10)
    waiting = threading.Thread(target=lambda: shown.append(interpreter.run("'ran'").text), daemon=True)
    try:
        waiting.start()
        waiting.join(0.3)
        assert shown == []
    finally:
        workshop.places.release()
    waiting.join(60)
    interpreter.close()
    assert shown == ["'ran'"]


def test_the_weaker_kind_runs_code_too(tmp_path):
    try:
        workshop = quick_workshop(tmp_path, kind="process")
    except ConfigError as error:
        pytest.skip(str(error))
    interpreter = Interpreter(workshop)
    try:
        interpreter.run("x = 1")
        assert interpreter.run("x + len(df)").text == str(1 + len(PRICES.split()))
    finally:
        interpreter.close()
