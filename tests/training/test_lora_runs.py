"""Runs of the built-in policy with an adapter, put together as the command line does it."""

import asyncio
import json

import pytest
import torch
from letter_run import letter_policy, train_letters
from lora_building import LORA, lora_letters
from training_building import same_weights, weights_of

from midcourse.assembly import assembled
from midcourse.commands.export import export_model
from midcourse.config import build_config
from midcourse.errors import ConfigError
from midcourse.interventions.teacher import ScorerConfig
from midcourse.methods.opd import OPDConfig
from midcourse.methods.rail import RAIL, RAILConfig
from midcourse.nano.settings import world_settings
from midcourse.runs import evaluate_checkpoint, locate_checkpoint, train_run
from midcourse.training.lora import adapter_weights, has_adapter
from midcourse.training.policy import PolicyConfig, load_policy

RAIL_CONFIG = RAILConfig(initial_rollouts=2, rollout_budget=5)


def nano_config(folder, name, **changes):
    values = world_settings(name)(name, seed=0, updates=1, folder=folder)
    values["output"] = str(folder)
    values["policy"] = {**values.get("policy", {}), "device": "cpu", "lora": {"rank": 4}}
    values["training"] = {**values["training"], "updates": 1, "tasks_per_update": 1, "learning_rate": 1e-3}
    values["evaluation"] = {**values.get("evaluation", {}), "max_tasks": 1, "attempts": 1, "at_start": False}
    values["rollout"] = {**values.get("rollout", {}), "max_turns": 2}
    for section, fields in changes.items():
        values[section] = {**values[section], **fields}
    return build_config(values)


@pytest.mark.parametrize("method", ["rti", "mintrl", "rail"])
def test_each_method_trains_the_adapter_alone(method, tmp_path):
    config = nano_config(tmp_path / "run", method)
    summary = asyncio.run(train_run(config, resume=False, advance=lambda done, text: None))
    assert not summary["failed"]
    place = locate_checkpoint(tmp_path / "run")
    again = load_policy(config.policy.model_copy(update={"path": str(place.model)}))
    fresh = load_policy(config.policy)
    assert has_adapter(again.model)
    now, before = weights_of(again.model), weights_of(fresh.model)
    assert {name for name in now if not torch.equal(now[name], before[name])} <= {
        name for name in now if ".lora_" in name
    }
    card = (place.model / "README.md").read_text()
    assert f"| method | {method} |" in card
    assert "## Scores" in card
    assert str(tmp_path) not in card
    scores = asyncio.run(evaluate_checkpoint(config, place.model, finished=lambda done, total: None))
    assert scores.to_dict()["splits"].keys() == summary["evaluation"]["splits"].keys()


def test_the_frozen_judge_shares_the_base_and_keeps_the_adapter_of_the_start(tmp_path):
    config = nano_config(tmp_path / "run", "mintrl", method={"judge": {"played_by": "frozen"}})

    async def look():
        async with assembled(config) as parts:
            judge = parts.tools.judge.engine._model
            own = parts.policy.model
            assert judge.model.embed_tokens.weight is own.model.embed_tokens.weight
            before = await parts.tools.judge.engine.score([1, 2], [3, 4])
            with torch.no_grad():
                for weight in adapter_weights(own).values():
                    weight.add_(0.3)
            await parts.tools.judge.engine.update_weights(None, 1)
            await parts.tools.engine.update_weights(None, 1)
            after = await parts.tools.judge.engine.score([1, 2], [3, 4])
            moved = await parts.tools.engine.score([1, 2], [3, 4])
            assert after.logprobs == before.logprobs
            assert moved.logprobs != before.logprobs

    asyncio.run(look())


def test_rail_reads_hidden_states_of_an_adapted_policy_and_goes_on_from_a_checkpoint(tmp_path):
    whole, expected = train_letters(tmp_path / "whole", RAIL(RAIL_CONFIG), updates=2, policy=lora_letters())
    train_letters(tmp_path / "parts", RAIL(RAIL_CONFIG), updates=1, policy=lora_letters())
    _, found = train_letters(tmp_path / "parts", RAIL(RAIL_CONFIG), updates=2, policy=lora_letters(), resume=True)
    assert same_weights(weights_of(found.model), weights_of(expected.model))
    assert whole.metrics


def test_a_teacher_without_an_adapter_teaches_a_pupil_with_one(tmp_path):
    config = OPDConfig(group_size=2, teacher=ScorerConfig(is_privileged=False))
    notes, policy = train_letters(
        tmp_path, config.build(), updates=2, policy=lora_letters(), teacher=letter_policy(seed=4)
    )
    assert notes.metrics[2]["objective/optimizer_steps"] == 1.0
    assert any(bool(weight.any()) for name, weight in adapter_weights(policy.model).items() if "lora_B" in name)


def test_a_run_is_exported_as_an_adapter_or_merged(tmp_path):
    config = nano_config(tmp_path / "run", "grpo")
    asyncio.run(train_run(config, resume=False, advance=lambda done, text: None))
    place = locate_checkpoint(tmp_path / "run")
    trained = load_policy(config.policy.model_copy(update={"path": str(place.model)}))
    with torch.no_grad():
        expected = trained.model(torch.tensor([[1, 2, 3]])).logits
    export_model(str(tmp_path / "run"), tmp_path / "adapter")
    export_model(str(place.step), tmp_path / "merged", merge=True)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    for name, lora in (("adapter", LORA), ("merged", None)):
        again = load_policy(PolicyConfig(path=str(tmp_path / name), chat=config.policy.chat, device="cpu", lora=lora))
        with torch.no_grad():
            found = again.model(torch.tensor([[1, 2, 3]])).logits
        assert torch.allclose(found, expected, rtol=0, atol=1e-4)
        card = (tmp_path / name / "README.md").read_text()
        assert "## Scores" in card
        assert ("LoRA adapter on" in card) == (name == "adapter")
        assert json.loads((tmp_path / name / "generation_config.json").read_text())
    with pytest.raises(ConfigError, match="no adapter that could be merged"):
        export_model(str(tmp_path / "merged"), tmp_path / "other", merge=True)
