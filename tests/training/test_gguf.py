"""Policies in GGUF files. The file of these tests is a tiny Qwen2, written with the package gguf."""

import importlib.util
from pathlib import Path

import pytest
import torch
from training_building import VOCABULARY
from transformers import Qwen2Config, Qwen2ForCausalLM

from midcourse.errors import ConfigError
from midcourse.training import gguf as reading
from midcourse.training.gguf import find_gguf
from midcourse.training.policy import PolicyConfig, check_path, load_model, load_tokenizer

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

NORMAL, CONTROL = 1, 3
TOKENS = ["<pad>", "<s>", "</s>", *"abcdefghijklmno", "ab", "cd", "abcd", "\u0120", "\u0120a"]
MERGES = ["a b", "c d", "ab cd", "\u0120 a"]
BLOCK = "model.layers.{}."
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "blk.{}.attn_norm": BLOCK + "input_layernorm",
    "blk.{}.ffn_norm": BLOCK + "post_attention_layernorm",
    "blk.{}.attn_q": BLOCK + "self_attn.q_proj",
    "blk.{}.attn_k": BLOCK + "self_attn.k_proj",
    "blk.{}.attn_v": BLOCK + "self_attn.v_proj",
    "blk.{}.attn_output": BLOCK + "self_attn.o_proj",
    "blk.{}.ffn_gate": BLOCK + "mlp.gate_proj",
    "blk.{}.ffn_up": BLOCK + "mlp.up_proj",
    "blk.{}.ffn_down": BLOCK + "mlp.down_proj",
}


def write_gguf(path: Path, architecture: str = "qwen2", without: str = "") -> torch.nn.Module:
    """Write a GGUF file, of whose tensors one may be left out, and return the model that is in it."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=True)).eval()
    settings, weights = model.config, model.state_dict()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(settings.num_hidden_layers)
    writer.add_context_length(settings.max_position_embeddings)
    writer.add_embedding_length(settings.hidden_size)
    writer.add_feed_forward_length(settings.intermediate_size)
    writer.add_head_count(settings.num_attention_heads)
    writer.add_head_count_kv(settings.num_key_value_heads)
    writer.add_layer_norm_rms_eps(settings.rms_norm_eps)
    writer.add_rope_freq_base(settings.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL] * 3 + [NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    for layer in range(settings.num_hidden_layers):
        for short, long in NAMES.items():
            for part in ("weight", "bias"):
                name = f"{long.format(layer)}.{part}"
                if name in weights and name != without and (layer == 0 or "{}" in short):
                    writer.add_tensor(f"{short.format(layer)}.{part}", weights[name].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_gguf(path)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([[3, 4, 5, 6, 7, 8, 9]])).logits


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_file_and_the_folder_around_it_are_the_model_that_was_written(is_folder, written):
    path, original = written
    place = str(path.parent if is_folder else path)
    check_path(place)
    model = load_model(place, torch.float32)
    assert torch.allclose(logits(model), logits(original), rtol=0, atol=1e-6)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    tokenizer = load_tokenizer(place)
    # By merges: "abcd", the space with the a that follows it, "d".
    assert tokenizer.encode("abcd ad", add_special_tokens=False) == [20, 22, 6]
    assert tokenizer.eos_token_id == 2
    assert len(TOKENS) == VOCABULARY


def test_what_is_saved_is_an_ordinary_folder(written, tmp_path):
    path, original = written
    load_model(str(path), torch.float32).save_pretrained(tmp_path)
    load_tokenizer(str(path)).save_pretrained(tmp_path)
    assert find_gguf(str(tmp_path)) is None
    again = load_model(str(tmp_path), torch.float32)
    assert torch.equal(logits(again), logits(original))
    assert again.config.architectures == ["Qwen2ForCausalLM"]
    assert load_tokenizer(str(tmp_path)).encode("abcd", add_special_tokens=False) == [20]


def test_a_folder_of_an_ordinary_model_may_have_a_gguf_file_beside_it(written, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(written[0].read_bytes())
    assert find_gguf(str(tmp_path)) is None


def test_of_several_files_in_a_folder_one_must_be_named(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"several GGUF files; name one of a\.gguf, b\.gguf"):
        check_path(str(tmp_path))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"", "begins with b''"),
        (b"PK\3\4abcdef", r"begins with b'PK"),
        (b"GGUF\3\0", r"model\.gguf is cut: a GGUF file of 6 bytes"),
        (b"GGUF\1\0\0\0", r"version 1; expected one of \(2, 3\)"),
    ],
)
def test_a_file_of_another_kind_is_told_by_its_start(start, message, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(start)
    with pytest.raises(ConfigError, match=message):
        check_path(str(path))


@pytest.mark.parametrize("share", [0.001, 0.05, 0.3, 0.9])
def test_a_file_that_is_cut_short_is_an_error_that_names_it(share, written, tmp_path):
    content = written[0].read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: max(8, int(len(content) * share))])
    with pytest.raises(ConfigError, match=r"cut\.gguf cannot be read: it is damaged, or"):
        load_model(str(path), torch.float32)


def test_a_file_without_a_weight_is_refused(tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"
    write_gguf(tmp_path / "less.gguf", without=name)
    with pytest.raises(ConfigError, match=rf"less\.gguf: 1 \({name}\) of the model's weights are missing"):
        load_model(str(tmp_path / "less.gguf"), torch.float32)


@pytest.mark.parametrize("what", ["model", "tokenizer"])
def test_an_architecture_that_is_not_known_is_named(what, tmp_path):
    path = tmp_path / "other.gguf"
    write_gguf(path, architecture="rwkv7")
    load = load_tokenizer if what == "tokenizer" else lambda place: load_model(place, torch.float32)
    with pytest.raises(ConfigError, match=rf"the {what} of .*other\.gguf cannot be read: .*rwkv7"):
        load(str(path))


def test_without_the_packages_the_error_names_the_extra(written, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'needs the package gguf and accelerate; pip install "midcourse\[gguf\]"'):
        reading.read_gguf_tokenizer(written[0])
    assert PolicyConfig(path=str(written[0])).path.endswith("tiny.gguf")
