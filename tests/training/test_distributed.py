import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_run import EQUAL, HANG_SECONDS, SAVED, UPDATES
from safetensors.torch import load_file
from training_building import make_group

from midcourse.advantages.group import group_advantages
from midcourse.config import load_config, toml_value
from midcourse.errors import ConfigError, TrainingError
from midcourse.recording.reader import RunReader
from midcourse.runs import train_run
from midcourse.training.batch import build_batch, micro_batches, share_of
from midcourse.training.distributed import Processes, _own_device
from midcourse.training.launch import Launch

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What the processes of distributed_run.py left, by name, number of processes and rank ("status": their ends)."""
    folder = tmp_path_factory.mktemp("distributed")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    subprocess.run([sys.executable, str(HERE / "distributed_run.py"), str(folder)], check=True, env=environment)

    def read(name, size, rank=0):
        return torch.load(folder / f"{name}.{size}.{rank}.pt", weights_only=False)

    return read


def distance(left, right):
    assert left.keys() == right.keys()
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_train_as_one(outcomes, name):
    alone, both = (outcomes("equal", size)[name] for size in (1, 2))
    assert outcomes("equal", 2, "status") == [0, 0]
    assert distance(alone["before"], alone["weights"]) > 3e-3
    assert_equal(alone, both, of_bfloat16=name == "bfloat16")
    for one, two in zip(alone["metrics"], both["metrics"], strict=True):
        assert one.keys() == two.keys()
        for key, value in one.items():
            assert two[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


def assert_equal(alone, both, *, of_bfloat16, updates=UPDATES):
    """Compare weights and moments, and of bfloat16 weights the float32 copies in their place: they are these rounded.

    The bounds for these: the sum of two processes' gradients is rounded to 8 bits, by at most 2^-9 of it, and a weight
    that began an update may have been rounded to its neighbour, from which gradients differ by as much again; clipping
    keeps a gradient under 1. Of that an update adds a tenth to the first moment, and with `PROPORTIONAL` it moves a
    copy by at most the learning rate of 1e-2 times it. Measured: 9e-5 and 5e-6 after two.
    """
    if not of_bfloat16:
        assert distance(alone["weights"], both["weights"]) <= 1e-6
        assert distance(alone["moments"], both["moments"]) <= 1e-6
        return
    copies, as_alone = copies_of(both["moments"]), copies_of(alone["moments"])
    assert distance(copies, as_alone) <= updates * 1e-2 * 2**-8
    assert distance(alone["moments"], both["moments"]) <= updates * 0.1 * 2**-8
    assert len(copies) == len(both["weights"]) - 1  # head and embedding are one
    for name, copy in copies.items():
        assert copy.dtype == torch.float32
        assert torch.equal(both["weights"][name], copy.bfloat16())


def copies_of(moments):
    return {key.removesuffix("/master"): value for key, value in moments.items() if key.endswith("/master")}


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_between_updates_a_process_holds_its_part_alone(outcomes, name):
    assert not any(outcomes("equal", 1)[name]["is_split"])
    assert all(outcomes("equal", 2)[name]["is_split"])


@pytest.mark.slow
def test_the_scenarios_are_what_they_are_called(outcomes):
    found = outcomes("equal", 1)
    assert found["token mean"]["metrics"][0]["objective/grad_norm"] > 0.01  # so that gradients are scaled down
    assert found["reference"]["metrics"][1]["objective/reference_kl"] > 0
    assert found["branches"]["metrics"][0]["objective/computed_tokens"] < 5 * 80  # four rows of 84 tokens, and others
    assert len(micro_batches(rows_of("no work"), max_tokens=1000)) == 1
    for name in ("adapter", "adapter on bfloat16"):
        before, after = found[name]["before"], found[name]["weights"]
        moved = {key for key in before if not torch.equal(before[key], after[key])}
        assert moved
        assert all("lora_" in key for key in moved)
        assert {before[key].dtype for key in moved} == {torch.float32}
    assert found["adapter on bfloat16"]["before"]["lm_head.weight"].dtype == torch.bfloat16
    for size in (1, 2):  # one tensor with one gradient and one pair of moments, or two
        tied, untied = (outcomes("equal", size)[name] for name in ("clipped", "untied"))
        assert torch.equal(tied["weights"]["lm_head.weight"], tied["weights"]["model.embed_tokens.weight"])
        assert "lm_head.weight/exp_avg" not in tied["moments"]
        assert not torch.equal(untied["weights"]["lm_head.weight"], untied["weights"]["model.embed_tokens.weight"])
        assert "lm_head.weight/exp_avg" in untied["moments"]


def rows_of(name):
    groups = EQUAL[name][2]
    batch = build_batch(groups, [group_advantages(group.rewards) for group in groups])
    return [row for rows in batch.groups for row in rows]


@pytest.mark.slow
def test_a_step_that_one_process_cannot_take_is_taken_by_none(outcomes):
    found = outcomes("nonfinite", 2)
    skipped, taken = found["metrics"]
    assert skipped["objective/skipped_nonfinite"] == 1.0
    assert distance(found["before"], found["kept"]) == 0.0
    assert taken["objective/optimizer_steps"] == 1.0
    assert distance(found["kept"], found["after"]) > 1e-3
    # Both end by themselves and say the same, without waiting for each other.
    assert "not finite in 2 steps in a row" in found["error"]
    assert outcomes("nonfinite", 2, 1)["error"] == found["error"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 2)])
def test_a_run_goes_on_with_another_number_of_processes(outcomes, first, second, name):
    straight = outcomes("straight", 1)[name]
    resumed = outcomes(f"from {first}", second)[name]
    assert_equal(straight, resumed, of_bfloat16=name == "bfloat16", updates=2 * UPDATES)
    assert resumed["counters"] == straight["counters"]


@pytest.mark.slow
def test_a_process_that_dies_ends_the_other_at_once(outcomes):
    found = outcomes("dies", 2)
    assert "one of them is gone or hangs" in found["error"]
    assert "--resume" in found["error"]
    assert found["seconds"] < HANG_SECONDS


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_other_within_the_timeout(outcomes):
    found = outcomes("hangs", 2)
    assert "one of them is gone or hangs" in found["error"]
    assert HANG_SECONDS - 1 < found["seconds"] < 10 * HANG_SECONDS


@pytest.mark.slow
def test_the_others_do_not_wait_for_a_main_process_that_is_gone_or_has_failed(outcomes):
    assert "one of them is gone or hangs" in outcomes("main dies", 2, 1)["error"]
    assert outcomes("main fails", 2, 1)["error"] == "process 1 ends, because process 0 does: the rollouts have failed"


def test_micro_batches_are_shared_out_evenly_the_largest_first_and_filled_up_with_no_weight():
    batch = build_batch(groups := [make_group([1.0, 0.0, 0.0, 1.0])], [group_advantages(groups[0].rewards)])
    rows = [row for part in batch.groups for row in part]  # 5, 7, 9 and 6 tokens
    batches = micro_batches(rows, max_tokens=1)
    assert [part.computed_tokens for part in batches] == [9, 7, 6, 5]
    assert [[part.computed_tokens for part in share_of(batches, rank=rank, size=2)] for rank in (0, 1)] == [
        [9, 6],
        [7, 5],
    ]
    shares = [share_of(batches, rank=rank, size=3) for rank in range(3)]
    assert [[(part.computed_tokens, part.is_filler) for part in share] for share in shares] == [
        [(9, False), (5, False)],
        [(7, False), (5, True)],
        [(6, False), (5, True)],
    ]
    assert {row.coefficient for share in shares for part in share if part.is_filler for row in part.rows} == {0.0}
    assert share_of([], rank=1, size=2) == []


def test_torchruns_environment_says_which_process_this_is():
    given = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "MASTER_ADDR": "node", "MASTER_PORT": "1"}
    assert Launch.from_environment(given) == Launch(rank=9, local_rank=1, size=16)
    again = {**given, "TORCHELASTIC_RESTART_COUNT": "2"}
    assert Launch.from_environment(again) == Launch(rank=9, local_rank=1, size=16, attempt=2)
    # Schedulers set some of these names, too.
    assert Launch.from_environment({"WORLD_SIZE": "16", "RANK": "3"}) == Launch()
    assert Launch().is_main
    assert Launch(rank=0, size=8).command == ["torchrun", "--nproc-per-node", "8", "-m", "midcourse"]


def test_errors_of_the_connection_are_told_in_other_words_and_others_as_they_are():
    world = object.__new__(Processes)
    world.launch, world._others_listen = Launch(rank=1, size=2), False
    told = r"process 1 of 2 waited for the others in vain.*--resume.*closed by peer"
    with pytest.raises(TrainingError, match=told), world.together("update", ()):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2"), world.together("update", ()):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_a_process_has_the_gpu_of_its_number_and_needs_one(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    second = Launch(rank=5, local_rank=1, size=8)
    assert _own_device(second, "auto") == torch.device("cuda", 1)
    assert chosen == [1]
    assert _own_device(second, "cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="process 2 of this machine has no GPU: torch finds 2"):
        _own_device(Launch(rank=6, local_rank=2, size=8), "auto")


NANO = """
seed = 5
[method]
name = "grpo"
group_size = 6
[environment]
name = "navigation"
profile = "nano"
[rollout]
max_turn_tokens = 48
temperature = 1.8
[training]
updates = 2
tasks_per_update = 2
micro_batch_tokens = 512
learning_rate = 2e-4
[evaluation]
max_tasks = 2
attempts = 1
at_start = false
[recording]
tensorboard = false
"""


@pytest.mark.slow
def test_torchrun_trains_the_built_in_policy_as_one_process_does(tmp_path):
    (tmp_path / "run.toml").write_text(NANO)
    asyncio.run(
        train_run(
            load_config(tmp_path / "run.toml", [f"output={toml_value(str(tmp_path / 'one'))}"]),
            resume=False,
            advance=lambda done, note: None,
        )
    )
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "midcourse", "train"]
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, str(tmp_path / "run.toml"), "--output", str(tmp_path / "two"), "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["updates"] == 2  # one line: only process 0 speaks
    one, two = (RunReader(tmp_path / name) for name in ("one", "two"))
    assert len(one.metrics()) == len(two.metrics()) == 2
    for left, right in zip(one.metrics(), two.metrics(), strict=True):
        assert left["objective/optimizer_steps"] == 1.0  # as hot as that, some rollouts of a task fail and some do not
        for key in ("objective/grad_norm", "objective/loss", "objective/tokens_policy", "reward/mean"):
            assert right[key] == pytest.approx(left[key], rel=1e-4, abs=1e-6), key
    first, second = (
        load_file(tmp_path / name / "checkpoints" / "step_2" / "model" / "model.safetensors") for name in ("one", "two")
    )
    assert distance(first, second) <= 1e-6


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("RANK", "x", "RANK = 'x': expected a whole number from 0 to 1"),
        ("RANK", "", "RANK = '': expected a whole number from 0 to 1"),
        ("RANK", "9", "RANK = '9': expected a whole number from 0 to 1"),
        ("RANK", "-1", "RANK = '-1': expected a whole number from 0 to 1"),
        ("LOCAL_RANK", "2", "LOCAL_RANK = '2': expected a whole number from 0 to 1"),
        ("WORLD_SIZE", "0", "WORLD_SIZE = '0': expected a whole number from 1 to "),
        ("MASTER_PORT", "99999999", "MASTER_PORT = '99999999': expected a whole number from 1 to 65535"),
        ("MASTER_PORT", "9" * 5000, "expected a whole number from 1 to 65535"),
        ("MASTER_ADDR", "", "MASTER_ADDR is empty: expected the address of process 0"),
        ("TORCHELASTIC_RESTART_COUNT", "x", "TORCHELASTIC_RESTART_COUNT = 'x': expected a whole number from 0"),
    ],
)
def test_a_variable_that_torchrun_would_not_set_is_told_at_once(name, value, expected):
    ours = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert Launch.from_environment(ours) == Launch(rank=1, size=2)
    with pytest.raises(ConfigError, match=f"^{expected}" if name in expected else expected):
        Launch.from_environment({**ours, name: value})
