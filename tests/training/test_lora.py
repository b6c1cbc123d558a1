import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_building import same_weights, tiny_model, weights_of
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

from midcourse.engines.forward import Qwen3Forward, forward_for
from midcourse.errors import ConfigError
from midcourse.training.export import adapter_folder, full_state
from midcourse.training.lora import (
    LoraConfig,
    adapter_layers,
    adapter_weights,
    add_adapter,
    base_name,
    check_same_adapter,
    find_adapter,
    frozen_copy,
    has_adapter,
    load_adapter,
    merge_adapter,
    merged_weight,
    read_adapter_weights,
    save_adapter,
)
from midcourse.training.policy import PolicyConfig, check_path, load_policy, token_logprobs

ROWS = [[3, 4, 5, 6, 7, 8], [9, 10, 11]]
WANTED = [[False, False, True, True, True, True], [False, True, True]]
TARGETS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def adapted(config=None, *, dtype=torch.float32, moved=True, model=None):
    """Return a tiny model with an adapter, one that changes what it says unless `moved` is off."""
    model = model or tiny_model(dtype=dtype)
    add_adapter(model, config or LoraConfig(rank=4), base="tiny")
    if moved:
        move(model)
    return model


def move(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in adapter_weights(model).values():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)


def logprobs(model):
    with torch.no_grad():
        return token_logprobs(model, ROWS, wanted=WANTED, temperatures=[0.8, 1.0]).logprobs_BT


def saved_base(folder, model=None):
    (model or tiny_model()).save_pretrained(folder)
    return str(folder)


def load(path, **settings):
    return load_policy(PolicyConfig(path=str(path), chat="compact", device="cpu", **settings))


def test_a_layer_adds_alpha_over_rank_times_b_times_a():
    """W x + s B A x of one layer, worked by hand: s = 6 / 2 = 3."""
    linear = torch.nn.Linear(2, 2, bias=False)
    model = tiny_model()
    model.model.layers[0].self_attn.q_proj = linear
    add_adapter(model, LoraConfig(rank=2, alpha=6, target_modules=("layers.0.self_attn.q_proj",)), base="tiny")
    ((name, layer),) = adapter_layers(model)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.lora_A["default"].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        layer.lora_B["default"].weight.copy_(torch.tensor([[0.5, 1.0], [0.0, 2.0]]))
    # B A = [[0.5, -1], [0, -2]]; W + 3 B A = [[2.5, -1], [3, -2]]
    assert name == "model.layers.0.self_attn.q_proj"
    assert merged_weight(layer).tolist() == [[2.5, -1.0], [3.0, -2.0]]
    assert layer(torch.tensor([[1.0, 10.0]])).tolist() == [[-7.5, -17.0]]
    assert linear.weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_rank_stabilized_divides_by_the_square_root_of_the_rank():
    for stabilized, expected in ((False, 32 / 4), (True, 32 / math.sqrt(4))):
        model = adapted(LoraConfig(rank=4, alpha=32, rank_stabilized=stabilized))
        assert {layer.scaling["default"] for _, layer in adapter_layers(model)} == {expected}


def test_every_linear_layer_but_the_head_is_adapted_and_nothing_else_trains():
    model = adapted()
    assert {name.rsplit(".", 1)[1] for name, _ in adapter_layers(model)} == TARGETS
    assert len(list(adapter_layers(model))) == 2 * len(TARGETS)
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert trained == {id(weight) for weight in adapter_weights(model).values()}


def test_a_new_adapter_changes_no_bit_and_its_beginning_follows_from_its_seed():
    model = tiny_model()
    before = torch.random.get_rng_state()
    adapted(LoraConfig(rank=4, seed=3), moved=False, model=model)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(logprobs(model), logprobs(tiny_model()))
    again, other = adapted(LoraConfig(rank=4, seed=3), moved=False), adapted(LoraConfig(rank=4, seed=4), moved=False)
    pairs = list(zip(adapter_weights(model).values(), adapter_weights(again).values(), strict=True))
    assert all(torch.equal(left, right) for left, right in pairs)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(adapter_weights(model).values(), adapter_weights(other).values(), strict=True)
    )


def test_the_model_keeps_its_class_so_the_engine_keeps_its_fast_way_through_it():
    model = adapted()
    assert type(model) is Qwen3ForCausalLM
    assert isinstance(forward_for(model, context_length=64), Qwen3Forward)


def test_merged_weights_say_the_same_under_the_names_without_an_adapter():
    model = adapted()
    with_adapter = logprobs(model)
    before = weights_of(model)
    state = dict(full_state(model))
    assert state.keys() == dict(tiny_model().named_parameters()).keys()
    plain = tiny_model(seed=7)
    plain.load_state_dict(state, strict=False)
    assert torch.allclose(logprobs(plain), with_adapter, rtol=0, atol=1e-5)
    assert not torch.allclose(logprobs(tiny_model()), with_adapter, rtol=0, atol=1e-2)
    assert same_weights(before, weights_of(model))  # nothing was merged in place
    merge_adapter(model)
    assert not has_adapter(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert same_weights({name: value.clone() for name, value in model.named_parameters()}, state)


def test_a_model_without_an_adapter_gives_its_own_tensors():
    model = tiny_model()
    state = dict(full_state(model))
    assert all(state[name].data_ptr() == value.data_ptr() for name, value in model.named_parameters())
    assert not any(value.requires_grad for value in state.values())


def test_biases_beneath_an_adapter_keep_their_names():
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=23, n_positions=32, bos_token_id=1, eos_token_id=2)
    ).eval()
    names = dict(model.named_parameters()).keys()
    tokens = torch.tensor([[3, 4, 5]])
    add_adapter(model, LoraConfig(rank=2), base="tiny")
    move(model)
    expected = model(tokens).logits
    state = dict(full_state(model))
    assert state.keys() >= names
    merge_adapter(model)  # of layers whose weights lie the other way round
    assert torch.allclose(model(tokens).logits, expected, rtol=0, atol=1e-5)


def test_bfloat16_weights_get_float32_adapters_and_are_rounded_once_when_merged():
    model = adapted(dtype=torch.bfloat16)
    assert {weight.dtype for weight in adapter_weights(model).values()} == {torch.float32}
    name, layer = next(iter(adapter_layers(model)))
    weight, matrices = layer.get_base_layer().weight, (layer.lora_B["default"].weight, layer.lora_A["default"].weight)
    expected = (weight.float() + layer.scaling["default"] * matrices[0] @ matrices[1]).to(torch.bfloat16)
    assert torch.equal(dict(full_state(model))[f"{name}.weight"], expected)
    found = token_logprobs(model, ROWS, wanted=WANTED, temperatures=[1.0, 1.0])
    found.logprobs_BT.sum().backward()
    assert all(weight.grad.dtype is torch.float32 for weight in adapter_weights(model).values())


def test_the_frozen_copy_of_a_new_adapter_is_the_base_and_shares_its_weights():
    model = adapted(moved=False)
    apart = copy.deepcopy(model)
    twin = frozen_copy(model)
    shared = [p.data_ptr() for p in model.parameters() if not p.requires_grad]
    assert {p.data_ptr() for p in twin.parameters()} >= set(shared)
    assert not any(p.requires_grad for p in twin.parameters())
    move(model)
    assert torch.equal(logprobs(twin), logprobs(apart))  # the copy that shares nothing
    assert torch.equal(logprobs(twin), logprobs(tiny_model()))
    assert not torch.equal(logprobs(twin), logprobs(model))
    assert all(p.requires_grad for p in adapter_weights(model).values())
    # Its adapter is switched off, not just without effect.
    move(twin)
    assert torch.equal(logprobs(twin), logprobs(tiny_model()))


def test_the_frozen_copy_of_an_adapter_that_was_trained_keeps_it():
    model = adapted()
    before = logprobs(model)
    twin = frozen_copy(model)
    move(model, seed=2)
    assert torch.equal(logprobs(twin), before)
    assert twin.model.embed_tokens.weight is model.model.embed_tokens.weight


def test_the_frozen_copy_of_a_model_without_an_adapter_shares_nothing():
    model = tiny_model()
    twin = frozen_copy(model)
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert twin.lm_head.weight is twin.model.embed_tokens.weight


def test_an_adapter_goes_through_its_folder_bit_for_bit(tmp_path):
    base = saved_base(tmp_path / "base")
    first = load(base, lora=LoraConfig(rank=4, alpha=12, rank_stabilized=True))
    move(first.model)
    adapter_folder(first.model, tmp_path / "adapter")
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == base
    assert settings["target_modules"] == sorted(TARGETS)
    assert (settings["r"], settings["lora_alpha"], settings["use_rslora"]) == (4, 12, True)
    again = load(tmp_path / "adapter", lora=first.config.lora)
    assert torch.equal(logprobs(again.model), logprobs(first.model))
    assert same_weights(weights_of(again.model), weights_of(first.model))
    assert again.model.peft_config["default"].base_model_name_or_path == base
    # Without [policy.lora] it is merged, and all of it is trained.
    merged = load(tmp_path / "adapter")
    assert not has_adapter(merged.model)
    assert torch.allclose(logprobs(merged.model), logprobs(first.model), rtol=0, atol=1e-5)


def test_a_model_without_an_adapter_has_no_adapter_folder(tmp_path):
    with pytest.raises(ValueError, match="no adapter"):
        adapter_folder(tiny_model(), tmp_path)


def test_training_on_with_an_adapter_of_another_kind_is_refused(tmp_path):
    save_adapter(adapted(LoraConfig(rank=4, alpha=8)), tmp_path)
    check_same_adapter(find_adapter(str(tmp_path)), LoraConfig(rank=4, alpha=8))
    with pytest.raises(ConfigError, match=r"rank = 8, there 4; policy\.lora\.alpha = 16, there 8"):
        check_same_adapter(find_adapter(str(tmp_path)), LoraConfig(rank=8, alpha=16))
    with pytest.raises(ConfigError, match=r"policy\.lora\.rank_stabilized = True, there False"):
        check_same_adapter(find_adapter(str(tmp_path)), LoraConfig(rank=4, alpha=8, rank_stabilized=True))


def test_a_base_that_is_gone_is_named(tmp_path):
    base = tmp_path / "base"
    model = tiny_model()
    saved_base(base, model)
    add_adapter(model, LoraConfig(rank=4), base=str(base))
    save_adapter(model, tmp_path / "adapter")
    check_path(str(tmp_path / "adapter"))
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(
        ConfigError,
        match=r"base that this adapter was trained on is not .* \(base_model_name_or_path\): .*no such folder",
    ) as caught:
        load(tmp_path / "adapter")
    assert str(base) in str(caught.value)


def test_a_base_is_named_so_that_it_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nano").mkdir()
    (tmp_path / "model.gguf").write_text("")
    assert base_name("nano") == "nano"  # the built-in one, whatever stands here
    assert base_name("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert base_name("model.gguf") == str(tmp_path / "model.gguf")
    assert base_name("./nano") == str(tmp_path / "nano")


def test_an_adapter_of_another_base_does_not_fit(tmp_path):
    other = Qwen3ForCausalLM(Qwen3Config(vocab_size=23, hidden_size=16, intermediate_size=24, num_hidden_layers=1))
    save_adapter(adapted(), tmp_path)
    with pytest.raises(ConfigError, match="does not fit its base"):
        load_adapter(other, find_adapter(str(tmp_path)), base="other")


def test_weights_of_another_shape_are_refused(tmp_path):
    save_adapter(adapted(LoraConfig(rank=4)), tmp_path)
    with pytest.raises(ValueError, match=r"is \[4, 32\], expected \[2, 32\]"):
        read_adapter_weights(adapted(LoraConfig(rank=2)), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model_name_or_path": None}, "names no base"),
        ({"base_model_name_or_path": ""}, "names no base"),
        ({"use_dora": True}, "one with use_dora"),
        ({"modules_to_save": ["lm_head"]}, "one with modules_to_save"),
        ({"bias": "all"}, "one with bias"),
        ({"init_lora_weights": "pissa"}, "one with init_lora_weights"),
        ({"peft_type": "IA3"}, "IA3"),
    ],
)
def test_adapters_that_are_more_than_two_matrices_are_refused(change, message, tmp_path):
    save_adapter(adapted(), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
        find_adapter(str(tmp_path))


@pytest.mark.parametrize("text", ["[]", "{", "\xff", "[" * 100_000])
def test_a_damaged_adapter_config_is_an_error_of_the_path(text, tmp_path):
    (tmp_path / "adapter_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"policy\.path = .* adapter_config\.json"):
        find_adapter(str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"r": "4"},
        {"layers_pattern": "layers"},
        {"rank_pattern": 3},
        {"target_modules": "("},
        {"target_modules": ["mlp"]},
        {"megatron_config": {"a": 1}},
    ],
)
def test_settings_that_peft_makes_no_adapter_of_are_an_error_of_the_path(change, tmp_path):
    save_adapter(adapted(), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=r"policy\.path = .*: no adapter can be made of its adapter_config\.json: "):
        load_adapter(tiny_model(), find_adapter(str(tmp_path)), base="tiny")


def test_weights_that_are_cut_short_are_an_error_of_the_path(tmp_path):
    save_adapter(adapted(), tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"policy\.path = .*: adapter_model\.safetensors cannot be read"):
        load_adapter(tiny_model(), find_adapter(str(tmp_path)), base="tiny")


def test_an_adapter_without_weights_is_an_error_of_the_path(tmp_path):
    save_adapter(adapted(), tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"holds no adapter_model\.safetensors"):
        find_adapter(str(tmp_path))


def test_layers_that_are_not_there_are_named():
    with pytest.raises(
        ConfigError, match=r"policy\.lora\.target_modules = \['query'\]: expected names of linear layers"
    ):
        adapted(LoraConfig(target_modules=("query",)))


def test_embeddings_are_not_adapted():
    with pytest.raises(
        ConfigError, match=r"^policy\.lora\.target_modules = \['embed_tokens'\]: \S*embed_tokens is an embedding"
    ):
        adapted(LoraConfig(target_modules=("embed_tokens",)))


def test_a_head_may_be_adapted_where_it_is_not_the_embedding_too():
    settings = copy.deepcopy(tiny_model().config)
    settings.tie_word_embeddings = False
    torch.manual_seed(0)
    untied = Qwen3ForCausalLM(settings).eval()
    before = logprobs(untied)
    adapted(LoraConfig(rank=2, target_modules=("lm_head",)), model=untied)
    after = logprobs(untied)
    assert not torch.allclose(before, after)
    plain = Qwen3ForCausalLM(settings).eval()
    plain.load_state_dict(dict(full_state(untied)))
    assert torch.allclose(logprobs(plain), after, rtol=0, atol=1e-5)


def test_a_head_that_shares_the_embedding_is_not_adapted():
    with pytest.raises(ConfigError, match="shares its weights with the embedding"):
        adapted(LoraConfig(target_modules=("lm_head",)))


def test_dropout_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="ratio of a token to itself would not be 1"):
        LoraConfig(dropout=0.1)


def test_without_peft_there_is_an_error_that_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[lora\]'"):
        adapted()


def test_values_that_are_not_finite_are_refused(tmp_path):
    model = adapted()
    save_adapter(model, tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    name = min(tensors)
    tensors[name][0] = float("inf")
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=rf"the adapter does not fit its base: {name} is not finite"):
        load_adapter(tiny_model(), find_adapter(str(tmp_path)), base="tiny")


@pytest.mark.parametrize("bases", [("a",), ("b", "a")])
def test_an_adapter_whose_base_is_an_adapter_is_refused(bases, tmp_path):
    for name, base in zip("ab", bases, strict=False):
        save_adapter(adapted(), tmp_path / name)
        path = tmp_path / name / "adapter_config.json"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, "base_model_name_or_path": str(tmp_path / base)}))
    with pytest.raises(ConfigError, match=rf"its base '{tmp_path / bases[0]}' is an adapter itself"):
        check_path(str(tmp_path / "a"))


@pytest.mark.parametrize("rank", [0, 1025])
def test_a_rank_beyond_its_bounds_is_refused(rank):
    with pytest.raises(ValueError, match="rank"):
        LoraConfig(rank=rank)
