"""The settings of docs/eight_gpus.md are read by midcourse itself, and the page's names and sizes are right."""

import re
from pathlib import Path

import pytest

from midcourse.config import known_keys, load_config, section_classes
from midcourse.engines.vllm.config import VllmEngineConfig
from midcourse.methods.rti import RTIConfig
from midcourse.types import InterventionOutcome, TokenSource

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "retail_tools"
PAGE = (ROOT / "docs" / "eight_gpus.md").read_text(encoding="utf-8")
FULL, LORA = "qwen3_8b.toml", "qwen3_8b_lora.toml"
pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")


@pytest.mark.parametrize("name", [FULL, LORA])
def test_both_settings_files_are_read_and_are_what_the_page_says(name):
    config = load_config(EXAMPLE / name)
    assert config.name_of("environment") == "retail_tools"
    assert isinstance(config.engine, VllmEngineConfig)
    assert isinstance(config.method, RTIConfig)
    assert config.method.needs <= config.engine.features
    assert config.policy.path == "Qwen/Qwen3-8B"
    assert (config.policy.dtype, config.policy.gradient_checkpointing) == ("bfloat16", True)
    longest = max(config.rollout.max_turn_tokens, config.method.roles.max_tokens)
    assert config.engine.server.context_length == config.engine.trainer_pass.context_length > longest
    assert len(config.environment.build().tasks("train")) == 400
    assert str(config.output_folder) in PAGE
    assert f"examples/retail_tools/{name}" in PAGE


def test_all_weights_are_trained_on_six_gpus_and_served_on_two():
    config = load_config(EXAMPLE / FULL)
    server = config.engine.server
    assert config.policy.lora is None
    assert config.engine.weight_sync == "file"
    assert server.arguments[:2] == ("--tensor-parallel-size", "2")
    served = server.environment["CUDA_VISIBLE_DEVICES"].split(",")
    command = next(line for line in PAGE.splitlines() if "torchrun" in line and line.endswith(FULL))
    trained = re.search(r"CUDA_VISIBLE_DEVICES=([\d,]+) torchrun --nproc-per-node (\d+) ", command)
    assert trained is not None
    assert len(trained[1].split(",")) == int(trained[2]) == 6
    assert sorted([*trained[1].split(","), *served]) == list("01234567")
    assert command.strip() in (EXAMPLE / FULL).read_text(encoding="utf-8")


def test_adapters_are_trained_on_one_gpu_and_served_on_another():
    config = load_config(EXAMPLE / LORA)
    assert (config.policy.lora.rank, config.policy.lora.alpha) == (32, 64)
    assert config.engine.weight_sync == "lora"
    assert config.engine.server.environment == {"CUDA_VISIBLE_DEVICES": "1"}
    command = next(line for line in PAGE.splitlines() if "midcourse train" in line and LORA in line)
    assert command.strip() in (EXAMPLE / LORA).read_text(encoding="utf-8")


def test_the_pages_sizes_are_those_of_the_model():
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    # Qwen/Qwen3-8B's config.json
    shape = Qwen3Config(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    parameters = sum(weight.numel() for weight in model.parameters())
    beside_layers = 2 * 151_936 * 4096
    rank = load_config(EXAMPLE / LORA).policy.lora.rank
    adapter = sum(
        rank * (layer.in_features + layer.out_features)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and name != "lm_head"
    )
    cached = 36 * 2 * 8 * 128 * 2  # bytes a token: layers, keys and values, heads, size, bfloat16
    for said in (
        f"{parameters / 1e9:.2f}e9 weights",
        f"| weights, bfloat16 | {2 * parameters / 6e9:.1f} |",
        f"| float32 copies | {4 * parameters / 6e9:.1f} |",
        f"| AdamW's two moments, float32 | {8 * parameters / 6e9:.1f} |",
        f"| gradients, float32 | {4 * parameters / 6e9:.1f} |",
        f"| the whole model, on the first GPU alone | {2 * parameters / 1e9:.1f} |",
        f"| weights, bfloat16, half of them | {parameters / 1e9:.1f} |",
        f"{2 * beside_layers / 1e9:.1f} GB for embedding and head",
        f"{adapter / 1e6:.1f}e6 weights",
        f"| adapter: weights, gradients, moments, float32 | {16 * adapter / 1e9:.1f} |",
        f"{cached / 1e3:.0f} kB a token",
        f"{14 * parameters / 1e9:.0f} GB each",
    ):
        assert said in PAGE, said


def test_every_setting_and_metric_on_the_page_is_one():
    known = {
        key
        for method in ("rti", "mintrl", "rail")
        for key in known_keys(section_classes({"engine": "vllm", "method": method}))
    }
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    sections = "environment|policy|engine|rollout|method|training|evaluation|recording"
    settings = re.findall(rf"`((?:{sections})\.[a-z0-9_.]+?)(?: = [^`]*)?`", PAGE)
    assert len(settings) >= 5
    assert [key for key in settings if key not in known] == []
    named = re.findall(r"`((?:mismatch|intervention|group|objective|rollout|time|reward|tokens)/[a-z0-9_/]+)`", PAGE)
    assert len(named) >= 10
    outcomes = {f"intervention/outcome/{outcome.value}" for outcome in InterventionOutcome}
    sources = {f"objective/entropy_{source.value}" for source in TokenSource}
    assert [name for name in named if f"`{name}`" not in metrics and name not in outcomes | sources] == []
