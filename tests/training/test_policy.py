import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from training_building import tiny_model
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedTokenizerFast

from midcourse.errors import ConfigError
from midcourse.training.policy import (
    PolicyConfig,
    check_head,
    keep_fewer_activations,
    load_model,
    load_policy,
    load_tokenizer,
    token_logprobs,
)

ROWS = [[3, 4, 5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15]]
WANTED = [[False, False, True, True, False, True], [False, True, True], [False, False, False, True]]


def found_by(model, rows=ROWS, wanted=WANTED, temperatures=(0.8, 1.0, 1.3), **settings):
    return token_logprobs(model, rows, wanted=wanted, temperatures=temperatures, **settings)


def test_each_token_gets_the_log_softmax_of_the_position_before_it():
    model = tiny_model(dtype=torch.float64)
    found = found_by(model)
    for index, (row, flags, temperature) in enumerate(zip(ROWS, WANTED, (0.8, 1.0, 1.3), strict=True)):
        expected = torch.log_softmax(model(torch.tensor([row])).logits[0] / temperature, dim=-1)
        for position, flag in enumerate(flags):
            distribution = expected[position - 1]
            logprob = distribution[row[position]].item() if flag else 0.0
            entropy = -(distribution.exp() * distribution).sum().item() if flag else 0.0
            assert found.logprobs_BT[index, position].item() == pytest.approx(logprob, abs=1e-10)
            assert found.entropies_BT[index, position].item() == pytest.approx(entropy, abs=1e-10)
    assert found.logprobs_BT.shape == (3, 6)


def test_chunks_change_neither_values_nor_gradients():
    whole_model, chunk_model = tiny_model(dtype=torch.float64), tiny_model(dtype=torch.float64)
    whole, chunked = found_by(whole_model), found_by(chunk_model, chunk_tokens=2)
    assert torch.allclose(whole.logprobs_BT, chunked.logprobs_BT, rtol=0, atol=1e-12)
    whole.logprobs_BT.sum().backward()
    chunked.logprobs_BT.sum().backward()
    for left, right in zip(whole_model.parameters(), chunk_model.parameters(), strict=True):
        assert torch.allclose(left.grad, right.grad, rtol=0, atol=1e-10)


def test_a_pass_without_gradient_gives_the_same_bits():
    model = tiny_model()
    with torch.no_grad():
        without = found_by(model)
    assert torch.equal(found_by(model).logprobs_BT, without.logprobs_BT)


def test_padding_changes_nothing():
    model = tiny_model(dtype=torch.float64)
    together = found_by(model)
    for index in range(3):
        alone = found_by(model, [ROWS[index]], [WANTED[index]], [(0.8, 1.0, 1.3)[index]])
        assert torch.allclose(alone.logprobs_BT[0], together.logprobs_BT[index, : len(ROWS[index])], rtol=0, atol=1e-10)


def test_gradient_checkpointing_gives_the_same_gradient():
    plain, saving = tiny_model(dtype=torch.float64), tiny_model(dtype=torch.float64)
    keep_fewer_activations(saving)
    for model in (plain, saving.train()):
        found_by(model).logprobs_BT.sum().backward()
    for left, right in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.allclose(left.grad, right.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "wanted", "temperatures", "message"),
    [
        ([], [], [], "at least one"),
        ([[1, 2]], [[False]], [1.0], "one flag"),
        ([[1, 2]], [[True, True]], [1.0], "first token"),
        ([[1, 2]], [[False, True]], [0.0], "temperature"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, wanted, temperatures, message):
    with pytest.raises(ValueError, match=message):
        found_by(tiny_model(), rows, wanted, temperatures)


def test_a_model_that_changes_its_logits_after_the_head_is_refused():
    model = tiny_model()
    check_head(model)

    class Scaled(type(model)):
        def forward(self, *arguments, **settings):
            output = super().forward(*arguments, **settings)
            output.logits = output.logits * 2
            return output

    model.__class__ = Scaled
    with pytest.raises(ConfigError, match="after the output head"):
        check_head(model)


def tiny_gemma3(**settings):
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    layers = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    model = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, **heads, **layers, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)  # off its near-uniform start
    return model


def test_a_model_with_windows_and_scaled_embeddings_gives_the_log_probabilities_of_its_own_logits():
    model = tiny_gemma3().double()
    check_head(model)
    rows = [[3 + index % 20 for index in range(length)] for length in (40, 25)]  # longer than the window
    wanted = [[False] + [True] * (len(row) - 1) for row in rows]
    found = found_by(model, rows, wanted, (1.0, 0.7))
    for index, (row, temperature) in enumerate(zip(rows, (1.0, 0.7), strict=True)):
        expected = torch.log_softmax(model(torch.tensor([row])).logits[0] / temperature, dim=-1)
        chosen = expected[:-1].gather(-1, torch.tensor(row[1:])[:, None])[:, 0]
        assert torch.allclose(found.logprobs_BT[index, 1 : len(row)], chosen, rtol=0, atol=1e-10)


def test_a_cap_on_logits_is_refused_however_small_they_are():
    model = tiny_gemma3(final_logit_softcapping=30.0)
    with torch.no_grad():
        model.lm_head.weight.mul_(1e-3)
    with pytest.raises(ConfigError, match=r"caps its logits at 30\.0"):
        check_head(model)


def test_dropout_of_a_loaded_model_is_off(tmp_path):
    model = tiny_model()
    model.config.attention_dropout = 0.5
    model.save_pretrained(tmp_path)
    assert load_model(str(tmp_path), torch.float32).config.attention_dropout == 0.0


def test_a_path_that_is_no_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nothing-here"):
        load_model(str(tmp_path / "nothing-here"), torch.float32)


def test_the_nano_policy_speaks_its_own_chat_only():
    with pytest.raises(ConfigError, match="compact"):
        load_policy(PolicyConfig(path="nano", chat="chatml", device="cpu"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("{tmp}/missing", "there is no such folder"),
        ("./runs/missing/model", "there is no such folder"),
        ("", "holds no config.json"),
        ("{tmp}/file", "is a file"),
        ("missing/model.gguf", "there is no such file"),
        ("{tmp}/empty", "holds no config.json and holds no model.safetensors"),
        ("{tmp}/weightless", "holds no model.safetensors"),
        ("{tmp}/step_4", "did you mean '{tmp}/step_4/model'"),
    ],
)
def test_a_path_without_a_model_is_an_error_that_says_what_was_expected(path, expected, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in ("empty", "weightless", "step_4/model"):
        (tmp_path / folder).mkdir(parents=True)
        if folder != "empty":
            (tmp_path / folder / "config.json").write_text("{}")
    path = path.format(tmp=tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_policy(PolicyConfig(path=path, device="cpu"))
    assert str(caught.value).startswith(f"policy.path = {path!r}: ")
    assert expected.format(tmp=tmp_path) in str(caught.value)
    assert "expected a folder with config.json and model.safetensors, a GGUF file, a hub name" in str(caught.value)


@pytest.mark.parametrize("told", [{"chat_template": "gemma3"}, {"enable_thinking": False}])
def test_what_is_told_to_a_template_needs_one(told):
    assert PolicyConfig(path="x", chat="template", **told)
    with pytest.raises(ValueError, match="for chat 'template' alone"):
        PolicyConfig(path="x", chat="chatml", **told)


@pytest.mark.parametrize(("chat", "part"), [("chatml", "tokenizer"), ("compact", "model")])
def test_a_model_that_cannot_be_read_is_an_error_of_the_path(chat, part, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(ConfigError, match=rf"policy\.path = .*: the {part} cannot be loaded; expected a folder"):
        load_policy(PolicyConfig(path=str(tmp_path), chat=chat, device="cpu"))


def damaged(folder, change):
    """Write the tiny model with other tensors."""
    tiny_model().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(UP), rf"1 \({UP}\) of the model's weights are missing in its files"),
        (lambda tensors: tensors.pop("model.embed_tokens.weight"), r"embed_tokens\.weight.* are missing"),
        (lambda tensors: tensors[UP][0].fill_(float("nan")), rf"1 \({UP}\) of the model's weights are not finite"),
        (lambda tensors: tensors.update({UP: tensors[UP].to(torch.int8)}), rf"1 \({UP}\) of the weights .*: got I8"),
        (lambda tensors: tensors.update({UP: torch.zeros(3, 3)}), "cannot be loaded; .*: RuntimeError: "),
    ],
)
def test_weights_that_are_missing_or_no_numbers_are_refused(change, message, tmp_path):
    with pytest.raises(ConfigError, match=rf"policy\.path = '{tmp_path}': .*{message}"):
        load_model(damaged(tmp_path, change), torch.float32)


def test_a_head_that_is_tied_is_not_missing_and_one_that_is_not_tied_is(tmp_path):
    path = damaged(tmp_path, lambda tensors: None)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert load_model(path, torch.float32)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": False}))
    with pytest.raises(ConfigError, match=r"1 \(lm_head\.weight\) of the model's weights are missing"):
        load_model(path, torch.float32)


def test_tensors_that_the_model_has_no_place_for_are_told_of(tmp_path):
    path = damaged(tmp_path, lambda tensors: tensors.update({UP.replace("1", "7"): torch.zeros(48, 32)}))
    with pytest.warns(UserWarning, match=r"1 \(model\.layers\.7\.mlp\.up_proj\.weight\) of the tensors .* left out"):
        load_model(path, torch.float32)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "[]"),
        ("config.json", "[" * 100_000),
        ("config.json", '{"model_type": "qwen3", "num_attention_heads": 0}'),
        ("config.json", '{"model_type": "qwen3", "hidden_size": "x"}'),
        ("model.safetensors", "\xff" * 100),
        ("model.safetensors.index.json", "{}"),
    ],
)
def test_whatever_a_loader_raises_on_a_damaged_model_is_an_error_of_the_path(file, content, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    if "index" in file:
        (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError, match=rf"policy\.path = '{tmp_path}': the model cannot be loaded; .*: \w+Error: "):
        load_model(str(tmp_path), torch.float32)


def write_tokenizer(folder, size, special=()):
    """Write a tokenizer of that many words, in whose ChatML special tokens come last."""
    words = {f"w{index}": index for index in range(size - 2)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", extra_special_tokens=["<|im_start|>", *special]
    ).save_pretrained(folder)


@pytest.mark.parametrize(("file", "content"), [("tokenizer.json", "{}"), ("tokenizer_config.json", "[1]")])
def test_whatever_a_loader_raises_on_a_damaged_tokenizer_is_an_error_of_the_path(file, content, tmp_path):
    write_tokenizer(tmp_path, 23)
    (tmp_path / file).write_text(content)
    with pytest.raises(
        ConfigError, match=rf"policy\.path = '{tmp_path}': the tokenizer cannot be loaded; .*: \w+Error: "
    ):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("size", "special", "largest"), [(23, (), None), (20, (), None), (23, ("<image>",), None), (24, (), 23)]
)
def test_a_tokenizer_must_not_write_tokens_that_the_model_has_no_embedding_for(size, special, largest, tmp_path):
    tiny_model().save_pretrained(tmp_path)  # 23 tokens
    write_tokenizer(tmp_path, size, special)
    config = PolicyConfig(path=str(tmp_path), chat="chatml", device="cpu")
    if largest is None:
        assert load_policy(config).tokenizer is not None
    else:
        with pytest.raises(ConfigError, match=rf"writes tokens up to {largest}, and the model has embeddings for 23"):
            load_policy(config)


def test_a_name_that_is_too_long_is_an_error_of_the_path():
    with pytest.raises(ConfigError, match=r"policy\.path = 'x+': cannot be looked up: File name too long"):
        load_policy(PolicyConfig(path="x" * 5000, device="cpu"))


def test_code_that_comes_with_a_model_is_not_run_and_nobody_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt="": "y")
    settings = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with pytest.raises(ConfigError, match=r"policy\.path = .*: the model cannot be loaded"):
        load_model(str(tmp_path), torch.float32)
    assert not (tmp_path / "ran").exists()
