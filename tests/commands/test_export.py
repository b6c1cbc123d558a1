from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from midcourse.commands.export import export_model
from midcourse.errors import ConfigError, DataError, OutputError
from midcourse.training.lora import LoraConfig, adapter_weights, add_adapter, save_adapter


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, eos_token_id=2)).eval()


def write_base(model, folder) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    words = {f"w{index}": index for index in range(23)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2").save_pretrained(folder)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([[3, 4, 5, 6]])).logits


def test_an_adapter_is_merged_into_its_base(model, tmp_path):
    pytest.importorskip("peft")
    write_base(model, tmp_path / "base")
    add_adapter(model, LoraConfig(rank=4), base=str(tmp_path / "base"))
    with torch.no_grad():
        for matrix in adapter_weights(model).values():
            matrix.add_(0.1)
    save_adapter(model, tmp_path / "adapter")
    export_model(str(tmp_path / "adapter"), tmp_path / "merged", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.allclose(logits(merged), logits(model), rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").eos_token == "w2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "merged"]


def test_weights_are_written_in_the_type_that_is_asked_for(model, tmp_path):
    write_base(model, tmp_path / "base")
    export_model(str(tmp_path / "base"), tmp_path / "half", in_bfloat16=True)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto").dtype == torch.bfloat16


def test_a_folder_that_exists_is_left_alone(model, tmp_path):
    write_base(model, tmp_path / "base")
    with pytest.raises(OutputError, match="base exists; an export writes a folder of its own"):
        export_model(str(tmp_path / "base"), tmp_path / "base")


def test_a_built_in_policy_is_not_exported(tmp_path):
    with pytest.raises(ConfigError, match="'nano' is built in"):
        export_model("nano", tmp_path / "nano")


@pytest.mark.parametrize("error", [SafetensorError("I/O error"), KeyError("x"), OSError(28, "No space left")])
def test_what_goes_wrong_in_writing_is_one_error_and_leaves_nothing(error, model, tmp_path, monkeypatch):
    write_base(model, tmp_path / "base")

    def fail(self, folder, **settings):
        Path(folder, "tokenizer.json").write_text("{")
        raise error

    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.save_pretrained", fail)
    with pytest.raises(OutputError, match=rf"out cannot be written: {type(error).__name__}: .*{error.args[-1]}"):
        export_model(str(tmp_path / "base"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors"])
def test_a_damaged_model_is_an_error_of_its_path_and_leaves_nothing(file, model, tmp_path):
    write_base(model, tmp_path / "base")
    (tmp_path / "base" / file).write_text("{}")
    with pytest.raises(ConfigError, match=r"policy\.path = .* cannot be loaded"):
        export_model(str(tmp_path / "base"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_names_that_are_too_long_are_named(model, tmp_path):
    write_base(model, tmp_path / "base")
    with pytest.raises(OutputError, match=r"x cannot be written: .*File name too long"):
        export_model(str(tmp_path / "base"), tmp_path / ("x" * 300))
    with pytest.raises(DataError, match=r"x cannot be read: .*File name too long"):
        export_model("x" * 5000, tmp_path / "out")
