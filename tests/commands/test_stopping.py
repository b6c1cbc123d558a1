"""A signal ends a command as a cancelled task ends, with a line that says how to go on."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from midcourse.commands.stopping import stoppable

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
RUN = """
seed = 1
method.name = "grpo"
method.group_size = 2
environment.train_tasks = 4
environment.test_tasks = 1
rollout.max_turn_tokens = 48
training.updates = 1000
training.tasks_per_update = 2
evaluation.at_start = false
recording.tensorboard = false
"""
PATIENCE_SECONDS = 300


@pytest.mark.parametrize("number", STATUS)
def test_what_runs_in_a_loop_is_cancelled_and_closes_what_it_opened(number, capsys):
    closed = []

    async def work():
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    with pytest.raises(typer.Exit) as stopped, stoppable("go on with: --resume"):
        asyncio.run(work())
    assert (stopped.value.exit_code, closed) == (STATUS[number], [True])
    assert capsys.readouterr().err == "go on with: --resume\n"


@pytest.mark.parametrize("number", STATUS)
def test_what_runs_outside_of_a_loop_ends_at_once(number, capsys):
    with pytest.raises(typer.Exit) as stopped, stoppable("go on"):
        _wait_for(number)
    assert stopped.value.exit_code == STATUS[number]
    assert capsys.readouterr().err == "go on\n"


def test_sigterm_ends_what_ignores_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(typer.Exit) as stopped, stoppable("go on"):
            asyncio.run(_signalled(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.value.exit_code == STATUS[signal.SIGTERM]


async def _signalled(number):
    os.kill(os.getpid(), number)
    await asyncio.sleep(30)


def _wait_for(number):
    os.kill(os.getpid(), number)
    time.sleep(30)


def test_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with stoppable("go on"):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def started(file: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "midcourse", "train", str(file), "--output", str(folder), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", STATUS)
def test_a_training_that_is_stopped_says_how_to_go_on_and_does(number, tmp_path):
    file, folder = tmp_path / "run.toml", tmp_path / "a run"
    file.write_text(RUN, encoding="utf-8")
    process = started(file, folder)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (folder / "metrics.jsonl").is_file() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == STATUS[number]
    assert err.endswith(f"stopped; go on with: midcourse train {file} --output '{folder}' --resume\n")
    assert "Traceback" not in err
    done = (folder / "metrics.jsonl").read_text().splitlines()
    length = ["--resume", "--set", f"training.updates={len(done) + 1}", "--set", "evaluation.attempts=1"]
    _, err = started(file, folder, *length).communicate(timeout=PATIENCE_SECONDS)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == len(done) + 1, err
