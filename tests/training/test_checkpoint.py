import json
import os
import shutil
import subprocess

import pytest
import torch
from training_building import make_group, same_weights, tiny_policy, weights_of
from transformers import AutoModelForCausalLM

from midcourse.advantages.group import group_advantages
from midcourse.errors import CheckpointError
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.training.checkpoint import (
    TrainingState,
    check_manifest,
    has_checkpoints,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)
from midcourse.training.config import TrainingConfig
from midcourse.training.update import Updater

DATA = {"num_tasks": 5, "tasks_per_update": 2, "seed": 0}


def make_updater(seed=0):
    config = TrainingConfig(learning_rate=1e-2, schedule="linear", updates=20)
    return Updater(tiny_policy(seed), ClippedObjective(ClippedConfig()), config)


def advance(updater, seed):
    group = make_group([1.0, 0.0, 0.0], seed=seed)
    return updater.update([group], [group_advantages(group.rewards)])


def save(updater, folder, update, keep=5):
    state = TrainingState(update=update, data=DATA)
    return save_checkpoint(folder, policy=updater.policy, updater=updater, state=state, keep=keep)


def load(updater, folder):
    return load_latest(folder, policy=updater.policy, updater=updater)


def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path):
    first = make_updater()
    advance(first, 1)
    torch.manual_seed(123)
    save(first, tmp_path, 1)
    expected_draw = torch.rand(3)
    second = make_updater(seed=9)
    torch.manual_seed(0)
    assert load(second, tmp_path) == TrainingState(update=1, data=DATA)
    assert torch.equal(torch.rand(3), expected_draw)
    assert second.counters == first.counters
    assert advance(second, 2) == advance(first, 2)
    assert same_weights(weights_of(first.policy.model), weights_of(second.policy.model))


def test_a_saved_model_is_one_that_transformers_loads(tmp_path):
    updater = make_updater()
    advance(updater, 1)
    path = save(updater, tmp_path, 1)
    model = AutoModelForCausalLM.from_pretrained(path / "model")
    assert same_weights(weights_of(model), weights_of(updater.policy.model))


def test_the_newest_checkpoints_stay(tmp_path):
    updater = make_updater()
    for update in (8, 9, 10):
        save(updater, tmp_path, update, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_9"]
    assert load(updater, tmp_path).update == 10


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(tmp_path, name, damage):
    updater = make_updater()
    save(updater, tmp_path, 1)
    path = save(updater, tmp_path, 2)
    file = path / name
    content = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        middle = len(content) // 2
        content[middle] ^= 0x40
        file.write_bytes(content if damage == "flip" else content[:middle])
    # A flipped bit in the manifest makes the file whose checksum it hit the odd one.
    named = r"\." if (name, damage) == ("manifest.json", "flip") else file.name
    with pytest.raises(CheckpointError, match=named):
        load_checkpoint(path, policy=updater.policy, updater=updater)
    with pytest.warns(UserWarning, match=named):
        assert load(updater, tmp_path).update == 1
    # The run comes to update 2 again and puts a whole checkpoint in the damaged one's place.
    save(updater, tmp_path, 2)
    assert load(updater, tmp_path).update == 2


@pytest.mark.parametrize("content", ['{"files": []}', "[]", "{}", "7"])
def test_a_manifest_of_another_form_is_a_damaged_one(tmp_path, content):
    path = save(make_updater(), tmp_path, 1)
    (path / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read"):
        check_manifest(path)


def test_without_a_whole_checkpoint_there_is_an_error_not_a_fresh_start(tmp_path):
    updater = make_updater()
    (save(updater, tmp_path, 1) / "state.json").unlink()
    with pytest.warns(UserWarning, match="state.json"), pytest.raises(CheckpointError, match="step_1"):
        load(updater, tmp_path)


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert load(make_updater(), tmp_path / "none") is None
    assert not has_checkpoints(tmp_path / "none")


def test_a_file_with_the_name_of_a_checkpoint_is_none_and_gives_way_to_one(tmp_path):
    updater = make_updater()
    (tmp_path / "step_3").write_text("")
    assert not has_checkpoints(tmp_path)
    assert load(updater, tmp_path) is None
    save(updater, tmp_path, 1, keep=1)
    assert load(updater, tmp_path).update == 1
    save(updater, tmp_path, 3, keep=1)
    assert load(updater, tmp_path).update == 3
    assert [path.name for path in tmp_path.iterdir()] == ["step_3"]


def test_a_file_in_the_place_of_the_folder_is_an_error_before_anything_is_trained(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    for look in (has_checkpoints, lambda folder: load(make_updater(), folder)):
        with pytest.raises(CheckpointError, match="checkpoints must be a folder"):
            look(tmp_path / "checkpoints")


def test_half_written_checkpoints_are_ignored_and_swept(tmp_path):
    updater = make_updater()
    path = save(updater, tmp_path, 1)
    shutil.copytree(path, tmp_path / ".step_2.partial")
    assert load(updater, tmp_path).update == 1
    save(updater, tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1", "step_3"]


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    path = save(make_updater(), tmp_path, 1)
    state = json.loads((path / "state.json").read_text())
    del state["counters"]
    updater = make_updater()
    updater.policy.model.model.layers[0].mlp.gate_proj.weight = torch.nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(CheckpointError, match="does not fit"):
        load_checkpoint(path, policy=updater.policy, updater=updater)


def test_a_full_disk_is_an_error_and_leaves_the_last_checkpoint_alone(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        updater = make_updater()
        advance(updater, 1)
        save(updater, disk, 1, keep=3)
        before = weights_of(updater.policy.model)
        weights = (disk / "step_1" / "model" / "model.safetensors").stat().st_size
        moments = (disk / "step_1" / "optimizer.safetensors").stat().st_size
        # The disk runs full within the weights, within the moments, and in the small files at the end.
        for room in (weights // 2, weights + moments // 2, weights + moments + 4096):
            (disk / "filler").unlink(missing_ok=True)
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            (disk / "filler").write_bytes(bytes(free - room))
            with pytest.raises(CheckpointError, match="cannot be written"):
                save(updater, disk, 2, keep=3)
            assert sorted(path.name for path in disk.iterdir()) == ["filler", "step_1"]
        other = make_updater(seed=5)
        assert load(other, disk).update == 1
        assert same_weights(before, weights_of(other.policy.model))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
