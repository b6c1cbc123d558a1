"""math-verify in processes of its own: verdicts, limits, threads, and what is nobody's answer's fault."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from midcourse.environments.mathematics import grading
from midcourse.environments.mathematics.grading import (
    AnswerNotGraded,
    GraderPool,
    GradingConfig,
    MathVerifyGrader,
    Verdict,
)
from midcourse.errors import ConfigError, EnvironmentFault

pytest.importorskip("math_verify", reason="grading needs math-verify")
CPU_SECONDS = 0.5


@pytest.fixture(scope="module")
def grader():
    made = MathVerifyGrader(GradingConfig(cpu_seconds=CPU_SECONDS, processes=2, memory_mb=512))
    yield made
    made.pool.close()


@pytest.fixture(scope="module")
def patient():
    """A grader for answers that are slow the first time and not hostile."""
    made = MathVerifyGrader(GradingConfig(cpu_seconds=20.0, processes=1))
    yield made
    made.pool.close()


def processes_of(pool: GraderPool) -> list[int]:
    return [process._process.pid for process in list(pool._places.queue) if process is not None]


@pytest.mark.parametrize(
    ("reference", "answer", "verdict"),
    [
        ("70", "70", Verdict.CORRECT),
        ("70", "070", Verdict.CORRECT),
        ("1234", "1,234", Verdict.CORRECT),
        ("\\frac{1}{2}", "0.5", Verdict.CORRECT),
        ("\\frac{1}{2}", "1/2", Verdict.CORRECT),
        ("\\sqrt{2}", "2^{1/2}", Verdict.CORRECT),
        ("\\{1, 2\\}", "2, 1", Verdict.CORRECT),
        ("70", "x = 70", Verdict.CORRECT),
        ("70", "71", Verdict.WRONG),
        ("70", "-70", Verdict.WRONG),
        ("70", "70, 71", Verdict.WRONG),
        ("70", "70 \\text{ or } 71", Verdict.WRONG),
        ("70", "71$, $70", Verdict.WRONG),
        ("70", "\\pm 70", Verdict.WRONG),
        ("70", "[69, 71]", Verdict.WRONG),
        ("70", "x", Verdict.WRONG),
        ("\\frac{3}{4}", "-3/4", Verdict.WRONG),
        ("70", None, Verdict.NO_ANSWER),
        ("70", "7" * 1001, Verdict.TOO_LONG),
    ],
)
def test_an_answer_is_right_where_it_equals_the_reference_and_is_no_hedge(patient, reference, answer, verdict):
    assert patient.grade(answer, reference=reference) is verdict


@pytest.mark.parametrize(
    ("reference", "answer", "verdict"),
    [
        ("70", "070", Verdict.CORRECT),
        ("-3", "-3", Verdict.CORRECT),
        ("70", "-70", Verdict.WRONG),
        ("0", "-0", Verdict.CORRECT),
        ("\\sqrt{2}", "\\sqrt{2}", Verdict.CORRECT),
    ],
)
def test_equal_texts_and_whole_numbers_need_no_process(reference, answer, verdict):
    quick = MathVerifyGrader(GradingConfig())
    assert quick.grade(answer, reference=reference) is verdict
    assert processes_of(quick.pool) == []


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "999999!", "10^{10^{10}}", "\\prod_{k=1}^{10000000} k"])
def test_an_answer_that_computes_for_ever_is_wrong_in_bounded_time_and_the_next_is_graded(grader, answer):
    grader.grade("x", reference="70")  # a started process, so that loading is not in the time
    started = time.monotonic()
    assert grader.grade(answer, reference="70") is Verdict.OUT_OF_TIME
    assert time.monotonic() - started < grading.WALL_FACTOR * CPU_SECONDS
    assert grader.grade("140/2", reference="70") is Verdict.CORRECT


@pytest.mark.parametrize(
    "answer",
    [
        "\x00",
        "\ud800",
        "$" * 900,
        "\\boxed{" * 100,
        "}" * 900,
        "\\" * 900,
        "\U0001f600" * 500,
        "\\frac" * 150,
        "\n" * 9,
    ],
)
def test_an_answer_that_is_nonsense_is_wrong(grader, answer):
    assert grader.grade(answer, reference="70") in (Verdict.WRONG, Verdict.OUT_OF_TIME)
    assert grader.grade("140/2", reference="70") is Verdict.CORRECT


def test_many_threads_grade_at_once(grader):
    verdicts: dict[int, Verdict] = {}

    def grade(number: int) -> None:
        verdicts[number] = grader.grade(f"{number}/2", reference="7")

    threads = [threading.Thread(target=grade, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [number for number, verdict in verdicts.items() if verdict is Verdict.CORRECT] == [14]
    assert len(verdicts) == 60
    assert len(processes_of(grader.pool)) <= 2


def test_a_killed_process_is_replaced_and_the_answer_is_graded_again(grader):
    grader.grade("x", reference="70")
    killed = processes_of(grader.pool)
    for process in killed:
        os.kill(process, signal.SIGKILL)
    assert killed
    assert grader.grade("140/2", reference="70") is Verdict.CORRECT


def test_an_answer_that_no_process_survives_has_crashed_its_grader(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, os, sys\n"
        "from multiprocessing.connection import Connection\n"
        "connection = Connection(int(sys.argv[1]))\n"
        "connection.send_bytes(b'{\"ready\": true}')\n"
        "request = json.loads(connection.recv_bytes())\n"
        "os._exit(9)\n"
    )
    monkeypatch.setattr(grading, "WORKER_FILE", worker)
    pool = GraderPool("math_verify", config=GradingConfig(processes=1))
    with pytest.raises(AnswerNotGraded) as raised:
        pool.ask({"reference": "1", "answer": "1"})
    assert raised.value.verdict is Verdict.CRASHED
    pool.close()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import time; time.sleep(60)", "did not load within 0.3 s"),
        ("raise SystemExit(3)", "ended while it loaded: exit status 3"),
    ],
)
def test_a_grader_that_cannot_be_started_is_a_fault_and_no_verdict(tmp_path, monkeypatch, program, message):
    worker = tmp_path / "worker.py"
    worker.write_text(program)
    monkeypatch.setattr(grading, "WORKER_FILE", worker)
    monkeypatch.setattr(grading, "START_SECONDS", 0.3 if "sleep" in program else 60.0)
    pool = GraderPool("math_verify", config=GradingConfig(processes=1))
    with pytest.raises(EnvironmentFault, match=message):
        pool.ask({"reference": "1"})
    pool.close()


@pytest.mark.parametrize(("reference", "message"), [("9^{9^{9^{9}}}", "cannot be graded"), ("", "cannot read")])
def test_a_reference_that_cannot_be_graded_is_a_fault_and_never_the_answers(grader, reference, message):
    with pytest.raises(EnvironmentFault, match=message):
        grader.grade("1", reference=reference)


def test_a_closed_pool_leaves_no_process_behind():
    pool = GraderPool("math_verify", config=GradingConfig(processes=2))
    pool.prepare()
    pool.prepare()
    (process,) = list(pool._places.queue)[-1:]
    assert len(processes_of(pool)) == 1
    pool.close()
    pool.close()
    assert process._process.poll() is not None


def test_a_pool_that_nobody_holds_ends_its_processes():
    pool = GraderPool("math_verify", config=GradingConfig(processes=1))
    pool.prepare()
    process = pool._places.queue[-1]
    del pool
    assert process._process.poll() is not None


def test_a_process_gets_no_keys_of_services(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, os, sys\n"
        "from multiprocessing.connection import Connection\n"
        "connection = Connection(int(sys.argv[1]))\n"
        "connection.send_bytes(b'{\"ready\": true}')\n"
        "connection.recv_bytes()\n"
        "connection.send_bytes(json.dumps({'value': sorted(os.environ)}).encode())\n"
    )
    monkeypatch.setattr(grading, "WORKER_FILE", worker)
    monkeypatch.setenv("SERVICE_API_KEY", "secret")
    pool = GraderPool("math_verify", config=GradingConfig(processes=1))
    names = pool.ask({})
    assert "SERVICE_API_KEY" not in names
    assert "PATH" in names
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts address space")
def test_a_process_takes_no_more_memory_than_it_may():
    program = (
        "from midcourse.environments.mathematics.grading_worker import limit_memory\n"
        "limit_memory(256 * 2**20)\n"
        "kept = bytearray(64 * 2**20)\n"
        "try:\n"
        "    bytearray(512 * 2**20)\n"
        "except MemoryError:\n"
        "    print('refused')\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout == "refused\n"


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(grading, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"math-verify.*\.\[mathematics\]"):
        MathVerifyGrader(GradingConfig())
    with pytest.raises(ConfigError, match=r"reasoning-gym.*\.\[reasoning-gym\]"):
        GraderPool("reasoning_gym", config=GradingConfig())
