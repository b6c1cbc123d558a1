"""Whole updates and runs of a policy with an adapter."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from letter_run import Notes, train_letters
from lora_building import LORA, lora_letters, lora_policy
from training_building import make_group, make_trajectory, same_weights, tiny_policy, weights_of

from midcourse.advantages.group import group_advantages
from midcourse.errors import CheckpointError
from midcourse.methods.grpo import GRPOConfig
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.training.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from midcourse.training.config import TrainingConfig
from midcourse.training.lora import adapter_weights, has_adapter
from midcourse.training.policy import PolicyConfig, load_policy
from midcourse.training.update import Updater
from midcourse.types import Group, Member


def updater_of(policy, kl_coefficient=0.0, **settings):
    values = {"learning_rate": 1e-2, "updates": 20, **settings}
    return Updater(policy, ClippedObjective(ClippedConfig(kl_coefficient=kl_coefficient)), TrainingConfig(**values))


def advance(updater, seed, group=None):
    group = group or make_group([1.0, 0.0, 0.0], seed=seed)
    return updater.update([group], [group_advantages(group.rewards)])


def frozen_weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters() if not value.requires_grad}


def prefix_group():
    shared = [3, 4, 5, 6, 7, 8, 9, 10] * 6
    tails = ([11, 12, 13], [14, 15], [16, 17, 18, 19])
    members = [
        Member(trajectory=make_trajectory(shared + tail, reward=reward))
        for tail, reward in zip(tails, (1.0, 0.0, 0.0), strict=True)
    ]
    return Group(group_id="task-0", task_id="task", members=tuple(members))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_move_the_adapter_and_leave_the_base_bit_for_bit(dtype):
    policy = lora_policy(dtype=dtype)
    updater = updater_of(policy)
    base, adapter = frozen_weights(policy.model), {k: v.clone() for k, v in adapter_weights(policy.model).items()}
    for seed in range(3):
        metrics = advance(updater, seed)
    assert same_weights(base, frozen_weights(policy.model))
    assert all(not torch.equal(adapter[name], weight) for name, weight in adapter_weights(policy.model).items())
    expected = sum(weight.numel() for weight in adapter.values())
    assert metrics["objective/trainable_parameters"] == expected
    assert {id(p) for group in updater.optimizer.param_groups for p in group["params"]} == {
        id(weight) for weight in adapter_weights(policy.model).values()
    }
    assert len(updater.optimizer.state) == len(adapter)


@pytest.mark.parametrize("kl_coefficient", [0.5])
def test_the_reference_is_the_same_model_with_its_adapter_off(kl_coefficient):
    policy = lora_policy()
    untouched = copy.deepcopy(policy.model)
    updater = updater_of(policy, kl_coefficient)
    own = {p.data_ptr() for p in policy.model.parameters() if not p.requires_grad}
    assert {p.data_ptr() for p in updater.reference.parameters() if p.numel() > 1} >= own
    metrics = [advance(updater, seed) for seed in range(3)]
    assert metrics[-1]["objective/reference_kl"] > 0.0
    # A run whose reference shares nothing ends at the same bits.
    other = lora_policy()
    apart = updater_of(other, kl_coefficient)
    apart.reference = untouched.requires_grad_(False)
    assert [advance(apart, seed) for seed in range(3)] == metrics
    assert same_weights(weights_of(policy.model), weights_of(other.model))


def test_gradient_checkpointing_gives_the_same_update():
    plain, saving = lora_policy(), lora_policy(gradient_checkpointing=True)
    for policy in (plain, saving):
        updater = updater_of(policy, learning_rate=1e-3)
        for seed in range(2):
            advance(updater, seed)
    for left, right in zip(plain.model.parameters(), saving.model.parameters(), strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_shared_prefixes_give_the_same_update(checkpointing):
    shared, apart = (lora_policy(gradient_checkpointing=checkpointing) for _ in range(2))
    metrics = {}
    for policy, how in ((shared, "auto"), (apart, "off")):
        updater = updater_of(policy, learning_rate=1e-4, shared_prefix=how)
        for seed in range(2):
            metrics[how] = advance(updater, seed, prefix_group())
    assert metrics["auto"]["objective/computed_tokens"] < metrics["off"]["objective/computed_tokens"]
    for left, right in zip(shared.model.parameters(), apart.model.parameters(), strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-6)


def saved(updater, folder, update=2):
    state = TrainingState(update=update, data={})
    return save_checkpoint(folder, policy=updater.policy, updater=updater, state=state, keep=2)


def test_a_checkpoint_holds_the_adapter_alone_and_training_goes_on_bit_for_bit(tmp_path):
    first = updater_of(lora_policy())
    for seed in (1, 2):
        advance(first, seed)
    path = saved(first, tmp_path)
    names = {file.name for file in (path / "model").iterdir()}
    assert names >= {"adapter_config.json", "adapter_model.safetensors", "README.md", "generation_config.json"}
    assert "model.safetensors" not in names
    second = updater_of(lora_policy())
    load_checkpoint(path, policy=second.policy, updater=second)
    for seed in (3, 4):
        assert advance(second, seed) == advance(first, seed)
    assert same_weights(weights_of(first.policy.model), weights_of(second.policy.model))


def test_a_checkpoint_of_the_other_kind_is_refused(tmp_path):
    whole, adapter = updater_of(tiny_policy()), updater_of(lora_policy())
    of_whole, of_adapter = saved(whole, tmp_path / "whole"), saved(adapter, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="it holds all weights, and the policy trains an adapter"):
        load_checkpoint(of_whole, policy=adapter.policy, updater=adapter)
    with pytest.raises(CheckpointError, match="it holds an adapter, and the policy trains all weights"):
        load_checkpoint(of_adapter, policy=whole.policy, updater=whole)


def test_others_load_what_a_checkpoint_holds(tmp_path):
    """In a process that knows transformers and peft alone."""
    base = tmp_path / "base"
    tiny_policy().model.save_pretrained(base)
    updater = updater_of(lora_policy(base=str(base)))
    advance(updater, 1)
    adapter = saved(updater, tmp_path / "adapter") / "model"
    whole = updater_of(tiny_policy())
    advance(whole, 1)
    folder = saved(whole, tmp_path / "whole") / "model"
    script = (
        "import json, sys, torch\n"
        "from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM as Auto\n"
        "adapted = PeftModel.from_pretrained(Auto.from_pretrained(sys.argv[1]), sys.argv[2])\n"
        "models = (adapted, Auto.from_pretrained(sys.argv[3]))\n"
        "with torch.no_grad():\n"
        "    print(json.dumps([model(torch.tensor([[3, 4, 5]])).logits[0, -1].tolist() for model in models]))\n"
    )
    command = [sys.executable, "-c", script, str(base), str(adapter), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    with torch.no_grad():
        expected = [u.policy.model(torch.tensor([[3, 4, 5]])).logits[0, -1] for u in (updater, whole)]
    for found, wanted in zip(json.loads(done.stdout), expected, strict=True):
        assert torch.allclose(torch.tensor(found), wanted, rtol=0, atol=1e-6)


def test_a_run_that_is_resumed_ends_at_the_same_bits(tmp_path):
    method = GRPOConfig(group_size=3).build()
    whole, expected = train_letters(tmp_path / "whole", method, updates=3, policy=lora_letters())
    notes = Notes()
    train_letters(tmp_path / "parts", method, updates=1, policy=lora_letters(), notes=notes)
    _, found = train_letters(tmp_path / "parts", method, updates=3, policy=lora_letters(), notes=notes, resume=True)
    assert has_adapter(found.model)
    assert same_weights(weights_of(found.model), weights_of(expected.model))
    assert notes.metrics == whole.metrics
    assert any(metrics["objective/optimizer_steps"] for metrics in notes.metrics.values())


def test_the_nano_policy_with_an_adapter_comes_back_from_its_checkpoint(tmp_path):
    policy = load_policy(PolicyConfig(device="cpu", lora=LORA))
    updater = updater_of(policy)
    group = make_group([1.0, 0.0, 0.0])
    advance(updater, 1, group)
    path = saved(updater, tmp_path) / "model"
    assert json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"] == "nano"
    again = load_policy(PolicyConfig(path=str(path), device="cpu", lora=LORA))
    assert same_weights(weights_of(again.model), weights_of(policy.model))
