"""Two processes under torchrun and one real server, on a CPU: what it is told, and that it ends with them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from tests.engines.vllm.conftest import ONE_THREAD, PYTHON
from transformers import AutoModelForCausalLM

from midcourse.config import toml_value
from midcourse.engines.vllm import keeper
from midcourse.nano.package import NavigationPolicy
from midcourse.recording.reader import RunReader

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).parents[3]
TOLERANCE = 1e-4  # nats, float32
MOVED = 1e-2  # nats; weights of another update are seen
RUN_SECONDS = 1800.0  # on a machine that others use, too
END_SECONDS = 60.0  # from a process's death to the end of everything; torchrun gives the others 30 s to stop
POLL_SECONDS = 0.1

SETTINGS = f"""
seed = 5
[method]
name = "grpo"
group_size = 6
[environment]
name = "navigation"
profile = "nano"
[engine]
name = "vllm"
[engine.server]
python = {toml_value(PYTHON or "")}
arguments = ["--enforce-eager"]
start_seconds = 1500
environment = {{ {", ".join(f"{name} = {toml_value(value)}" for name, value in ONE_THREAD.items())} }}
[rollout]
max_turn_tokens = 48
temperature = 1.5
[training]
updates = 8
tasks_per_update = 2
micro_batch_tokens = 512
learning_rate = 2e-3
checkpoint_every = 1
keep_checkpoints = 8
[evaluation]
max_tasks = 1
attempts = 1
at_start = false
[recording]
tensorboard = false
"""


@dataclass(kw_only=True)
class Outcome:
    """What was seen of a run by torchrun that is over."""

    status: int = -1
    text: str = ""  # of its standard error
    keepers: set[tuple[int, int]] = field(default_factory=set)  # of servers, each with the process that it works for
    ranks: dict[int, int] = field(default_factory=dict)  # rank -> process
    seconds_after_kill: float = 0.0

    @property
    def left(self) -> list[int]:
        """Processes of its servers that still live."""
        return [pid for session, _ in self.keepers for pid in keeper._members(session)]


def has_trained_twice(folder: Path) -> bool:
    """Whether an update has followed one that took a step: a group whose rollouts all fail trains nothing."""
    if not (folder / "metrics.jsonl").exists():
        return False
    return any(line["objective/optimizer_steps"] for line in RunReader(folder).metrics()[:-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("torchrun") / "run"


@pytest.fixture(scope="module")
def killed(folder):
    """A run whose second process gets SIGKILL while the main one goes on to its next rollouts."""
    settings, errors = folder.with_name("run.toml"), folder.with_name("errors.txt")
    settings.write_text(SETTINGS)
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "midcourse", "train"]
    started = time.monotonic()
    with errors.open("wb") as file:
        running = subprocess.Popen(
            [sys.executable, "-m", *command, str(settings), "--output", str(folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    outcome, killed_at = Outcome(), None
    try:
        while running.poll() is None:
            look(running.pid, outcome)
            if killed_at is None and has_trained_twice(folder):
                os.kill(outcome.ranks[1], signal.SIGKILL)
                killed_at = time.monotonic()
            assert time.monotonic() - started < RUN_SECONDS, errors.read_text()
            time.sleep(POLL_SECONDS)
    finally:
        running.terminate()  # it ends its processes, and a keeper its server with the main one
        outcome.status = running.wait()
    assert killed_at is not None, errors.read_text()
    outcome.seconds_after_kill = time.monotonic() - killed_at
    outcome.text = errors.read_text()
    return outcome


def look(torchrun: int, outcome: Outcome) -> None:
    """Note torchrun's processes and the keepers of servers that they have started."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends while it is looked at
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == torchrun:
                told = dict(line.split("=", 1) for line in (place / "environ").read_text().split("\0") if "=" in line)
                if "RANK" in told:
                    outcome.ranks[int(told["RANK"])] = int(place.name)
            elif parent in outcome.ranks.values() and keeper.__file__ in (place / "cmdline").read_text().split("\0"):
                outcome.keepers.add((int(place.name), parent))


def test_a_killed_process_ends_the_run_and_its_server_at_once_and_is_named(killed):
    assert killed.status == 1
    assert f"Signal 9 (SIGKILL) received by PID {killed.ranks[1]}" in killed.text
    assert "--resume" in killed.text
    assert killed.seconds_after_kill < END_SECONDS
    assert [owner for _, owner in killed.keepers] == [killed.ranks[0]]  # one server, the main process's
    assert killed.left == []


def test_the_server_draws_with_the_whole_weights_that_two_processes_have_trained(killed, folder):
    """One process computes again what the server told of its tokens, by each update's weights and by older ones."""
    run = RunReader(folder)
    places = [folder / "checkpoints" / f"step_{line['update']}" / "model" for line in run.metrics()[:-1]]
    models = [NavigationPolicy().load(), *map(AutoModelForCausalLM.from_pretrained, places)]
    stepped = False
    for line in run.metrics():
        update = int(line["update"])
        assert distance(run, update, models[update - 1]) < TOLERANCE
        if stepped:
            assert distance(run, update, models[update - 2]) > MOVED
        if stepped := line["objective/optimizer_steps"] == 1.0:
            assert line["mismatch/max_abs_logprob"] < TOLERANCE  # the trainers' own passes
    assert len(models) > 1


def distance(run: RunReader, update: int, model) -> float:
    """Return how far the log-probabilities that a server told of an update's rollouts are from a model's, nats."""
    worst = 0.0
    for group in run.trajectories(update):
        for member in group.members:
            row = member.trajectory
            drawn = [place for place, version in enumerate(row.policy_versions) if version is not None]
            assert {row.policy_versions[place] for place in drawn} == {update - 1}
            with torch.no_grad():
                logits = model(torch.tensor([list(row.token_ids)])).logits[0] / row.temperature
            logprobs = logits.log_softmax(-1)
            for place in drawn:
                expected = float(logprobs[place - 1, row.token_ids[place]])
                worst = max(worst, abs(expected - row.behavior_logprobs[place]))
    return worst
