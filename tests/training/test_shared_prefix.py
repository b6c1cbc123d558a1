import logging
import weakref
from dataclasses import replace

import pytest
import torch
from training_building import (
    ENVIRONMENT,
    INTERVENTION,
    POLICY,
    PROMPT,
    VOCABULARY,
    make_trajectory,
    tiny_model,
    tiny_policy,
    weights_of,
)
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
)

from midcourse.objectives.balanced_clipped import BalancedClippedObjective
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.distillation import DistillationObjective
from midcourse.objectives.regression import RegressionConfig, RegressionObjective
from midcourse.objectives.sequence_clipped import SequenceClippedConfig, SequenceClippedObjective
from midcourse.objectives.supervised import SupervisedObjective
from midcourse.training import shared_prefix
from midcourse.training.batch import Row, micro_batches
from midcourse.training.config import TrainingConfig
from midcourse.training.policy import keep_fewer_activations, token_logprobs
from midcourse.training.prefix_tree import SEGMENT_TOKENS, grow_tree
from midcourse.training.shared_prefix import tree_logprobs, why_not_shared
from midcourse.training.update import Updater
from midcourse.types import Group, Member

DICE = torch.Generator().manual_seed(3)
OBJECTIVES = {
    "clipped": lambda: ClippedObjective(ClippedConfig(kl_coefficient=0.1)),
    "balanced_clipped": lambda: BalancedClippedObjective(ClippedConfig()),
    "regression": lambda: RegressionObjective(RegressionConfig(anchor="const", beta=0.1)),
    "sequence_clipped": lambda: SequenceClippedObjective(SequenceClippedConfig()),
    "supervised": SupervisedObjective,
    "distillation": lambda: DistillationObjective(ClippedConfig(), coefficient=0.3),
}


def draw(count):
    return torch.randint(3, VOCABULARY, (count,), generator=DICE).tolist()


def branched_ids():
    """A root with branches, branches of a branch, a row that begins others, two that are the same, and a stranger."""
    root, branch = draw(100), draw(60)
    inner = root + branch
    rows = [inner + draw(9), inner + draw(5), inner + draw(7), inner, root + draw(20), root + draw(3)]
    return [*rows, list(rows[4]), draw(30)]


def branched_group():
    """Rows of all sources with weights, temperatures and a teacher's numbers of their own."""
    members = []
    for ids in branched_ids():
        sources = [PROMPT] * 4 + [POLICY] * 20 + [ENVIRONMENT] * 3 + [POLICY] * (len(ids) - 27)
        sources[-2:] = [INTERVENTION] * 2
        trained = [source in (POLICY, INTERVENTION) for source in sources]
        trajectory = make_trajectory(
            ids,
            sources=sources,
            weights=[0.5 + float(torch.rand((), generator=DICE)) if flag else 1.0 for flag in trained],
            reward=1.0,
        )
        teacher = tuple(-4.0 * float(torch.rand((), generator=DICE)) if flag else None for flag in trained)
        members.append(Member(trajectory=replace(trajectory, teacher_logprobs=teacher)))
    return Group(group_id="g", task_id="task", members=tuple(members))


GROUP = branched_group()
ADVANTAGES = [[1.3, -0.7, 0.4, -1.1, 0.9, -0.2, 0.6, -1.2]]


def gradient_of(objective, shared_prefix, *, policy=None, **settings):
    """The gradient that an update applies, read off by an optimizer that moves by it, and the update's metrics."""
    settings = {"learning_rate": 1e-3, "max_grad_norm": 1e9, **settings}
    updater = Updater(policy or tiny_policy(), objective, TrainingConfig(shared_prefix=shared_prefix, **settings))
    applied = {}
    updater.optimizer.step = lambda: applied.update(
        {name: part.grad.clone() for name, part in updater.policy.model.named_parameters()}
    )
    metrics = updater.update([GROUP], ADVANTAGES)
    return applied, metrics


def check_close(shared, apart, tolerance):
    assert shared.keys() == apart.keys()
    for name, value in apart.items():
        assert torch.allclose(shared[name], value, rtol=0, atol=tolerance), name


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_the_gradient_of_separate_rows(name):
    (shared, metrics), (apart, expected) = (gradient_of(OBJECTIVES[name](), kind) for kind in ("auto", "off"))
    assert metrics["objective/computed_tokens"] < 0.5 * expected["objective/computed_tokens"]
    scale = max(1.0, *(float(value.abs().max()) for value in apart.values()))
    check_close(shared, apart, 1e-6 * scale)
    assert max(float(value.abs().max()) for value in apart.values()) > 1e-3
    for key in expected.keys() - {"objective/computed_tokens"}:
        assert metrics[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-5), key


@pytest.mark.parametrize("settings", [{"micro_batch_tokens": 150}, {"num_epochs": 2}, {"importance_cap": 1.1}])
def test_budgets_passes_and_importance_weights_keep_the_gradient(settings):
    (shared, _), (apart, _) = (
        gradient_of(ClippedObjective(ClippedConfig()), kind, policy=tiny_policy(dtype=torch.float64), **settings)
        for kind in ("auto", "off")
    )
    check_close(shared, apart, 1e-7)  # norms are taken in float32


def test_a_token_of_the_prefix_carries_the_loss_of_every_branch():
    # Hand-worked: the gradient on the shared token's log-probability is the sum over rows of coefficient * advantage.
    prefix = draw(60)
    rows = [[*prefix, 3, 4], [*prefix, 5, 6, 7]]
    sources = [PROMPT] * 50 + [POLICY] * 10
    trajectories = [make_trajectory(row, sources=sources + [POLICY] * (len(row) - 60), reward=1.0) for row in rows]
    group = Group(group_id="g", task_id="task", members=tuple(Member(trajectory=row) for row in trajectories))
    policy = tiny_policy(dtype=torch.float64)
    updater = Updater(policy, ClippedObjective(ClippedConfig()), TrainingConfig(max_grad_norm=1e9))
    found = {}
    updater.optimizer.step = lambda: found.update(
        {name: part.grad.clone() for name, part in policy.model.named_parameters()}
    )
    metrics = updater.update([group], [[2.0, -0.5]])
    assert metrics["objective/computed_tokens"] == 60 + 2 + 3
    model = tiny_policy(dtype=torch.float64).model
    loss = 0.0
    for row, advantage in zip(rows, (2.0, -0.5), strict=True):
        chosen = torch.log_softmax(model(torch.tensor([row])).logits[0] / 0.8, dim=-1)[:-1].gather(
            -1, torch.tensor(row[1:])[:, None]
        )
        loss = loss - advantage * chosen[49:].mean() / 2
    loss.backward()
    check_close(found, {name: part.grad for name, part in model.named_parameters()}, 1e-7)


def test_values_are_those_of_separate_rows_at_temperatures_of_their_own():
    model, rows = tiny_model(dtype=torch.float64), branched_ids()
    wanted = [[False] + [index % 3 != 0 for index in range(1, len(row))] for row in rows]
    temperatures = [0.7, 1.0, 0.7, 1.3, 1.0, 0.7, 1.0, 1.0]
    apart = token_logprobs(model, rows, wanted=wanted, temperatures=temperatures)
    shared = tree_logprobs(model, grow_tree(rows), wanted=wanted, temperatures=temperatures, chunk_tokens=7)
    assert torch.allclose(shared.logprobs_BT, apart.logprobs_BT, rtol=0, atol=1e-6)
    assert torch.allclose(shared.entropies_BT, apart.entropies_BT, rtol=0, atol=1e-6)
    with torch.no_grad():
        again = tree_logprobs(model, grow_tree(rows), wanted=wanted, temperatures=temperatures, chunk_tokens=7)
    assert torch.equal(again.logprobs_BT, shared.logprobs_BT)


def test_rows_that_share_too_little_are_trained_bit_for_bit_as_without():
    group = replace(GROUP, members=tuple(Member(trajectory=make_trajectory([*draw(9), 3])) for _ in range(8)))

    def trained(kind):
        policy = tiny_policy()
        updater = Updater(policy, ClippedObjective(ClippedConfig()), TrainingConfig(shared_prefix=kind))
        metrics = updater.update([group], ADVANTAGES)
        return metrics, weights_of(policy.model)

    (metrics, weights), (expected, apart) = trained("auto"), trained("off")
    assert metrics == expected
    assert all(torch.equal(weights[name], apart[name]) for name in apart)


def test_gradient_checkpointing_computes_shared_prefixes_too():
    def run(kind, **settings):
        policy = tiny_policy(dtype=torch.float64, **settings)
        if settings:
            keep_fewer_activations(policy.model)
        return gradient_of(ClippedObjective(ClippedConfig()), kind, policy=policy)[0]

    check_close(run("auto", gradient_checkpointing=True), run("off"), 1e-7)


def test_bf16_products_stay_near_float32():
    rows = branched_ids()
    wanted = [[False] + [True] * (len(row) - 1) for row in rows]
    model = tiny_model()
    settings = {"wanted": wanted, "temperatures": [1.0] * len(rows)}
    exact = tree_logprobs(model, grow_tree(rows), **settings)
    rough = tree_logprobs(model, grow_tree(rows), bf16_autocast=True, **settings)
    difference_BT = (exact.logprobs_BT - rough.logprobs_BT).detach().abs()
    assert 0 < float(difference_BT.max()) < 0.05


def test_the_models_own_attention_is_back_after_a_pass_and_after_an_error():
    model = tiny_model()
    before = model.config._attn_implementation
    tree_logprobs(model, grow_tree([[3, 4]]), wanted=[[False, True]], temperatures=[1.0])
    assert model.config._attn_implementation == before
    with pytest.raises(RuntimeError, match="broken"), shared_prefix.attention_over_trees(model):
        raise RuntimeError("broken")
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("is_kept", [False, True])
def test_joined_keys_are_kept_for_the_backward_pass_in_training_mode_alone(is_kept, monkeypatch):
    model, rows, joined = tiny_model(), branched_ids(), []
    model.train(is_kept)
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(query, key, value, **settings):
        joined.extend((weakref.ref(key), weakref.ref(value)))
        return attend(query, key, value, **settings)

    monkeypatch.setattr(shared_prefix.F, "scaled_dot_product_attention", spy)
    found = tree_logprobs(
        model,
        grow_tree(rows),
        wanted=[[False] + [True] * (len(row) - 1) for row in rows],
        temperatures=[1.0] * len(rows),
    )
    assert joined
    # In training mode layers run again one at a time: there they may be.
    assert any(reference() is not None for reference in joined) == is_kept
    found.logprobs_BT.sum().backward()


SIZES = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "num_attention_heads": 2}
ROTARY = {**SIZES, "hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 1}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (Qwen2Config(**ROTARY), None),
        (LlamaConfig(**ROTARY), None),
        (MistralConfig(**ROTARY, sliding_window=None), None),
        (GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=256), None),
        (MistralConfig(**ROTARY, sliding_window=64), "sees 64 tokens only"),
        (Gemma3TextConfig(**ROTARY, head_dim=16, sliding_window=64), "layers of sliding_attention"),
        (
            Qwen2Config(**ROTARY, use_sliding_window=True, sliding_window=64, max_window_layers=1),
            "layers of sliding_attention",
        ),
        (MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4), "failed|differ"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str | None) else "",
)
def test_models_that_can_are_told_from_those_that_cannot(settings, reason):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(settings).eval()
    found = why_not_shared(model)
    if reason is not None:
        assert found is not None
        assert any(part in found for part in reason.split("|")), found
        return
    assert found is None
    rows = branched_ids()
    asked = {"wanted": [[False] + [True] * (len(row) - 1) for row in rows], "temperatures": [1.0] * len(rows)}
    apart, shared = token_logprobs(model, rows, **asked), tree_logprobs(model, grow_tree(rows), **asked)
    assert torch.allclose(shared.logprobs_BT, apart.logprobs_BT, rtol=0, atol=1e-5)


def test_a_model_whose_attention_does_more_is_found_by_running_it(caplog):
    model = tiny_model()
    attention = type(model.model.layers[0].self_attn)

    class Nearer(attention):
        def forward(self, hidden_states, *arguments, **settings):
            output, weights = super().forward(hidden_states, *arguments, **settings)
            return output + hidden_states.roll(1, dims=1), weights

    for layer in model.model.layers:
        layer.self_attn.__class__ = Nearer
    with caplog.at_level(logging.WARNING):
        updater = Updater(replace(tiny_policy(), model=model), SupervisedObjective(), TrainingConfig())
    assert not updater.shares_prefixes
    assert "computes every row apart" in caplog.text
    assert "hidden states differ" in caplog.text


def test_a_model_with_windows_is_trained_row_by_row_and_says_so(caplog):
    layers = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}  # rows are longer
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Gemma3TextConfig(**ROTARY, head_dim=16, **layers)).eval()
    policy = replace(tiny_policy(), model=model)
    before = weights_of(model)
    with caplog.at_level(logging.WARNING):
        applied, metrics = gradient_of(ClippedObjective(ClippedConfig()), "auto", policy=policy)
    assert "Gemma3ForCausalLM computes every row apart, whatever they share: it has layers of slid" in caplog.text
    # Padding included, every row is computed whole.
    assert metrics["objective/computed_tokens"] >= sum(len(member.trajectory.token_ids) for member in GROUP.members)
    assert applied.keys() == before.keys() - {"lm_head.weight"}
    assert all(torch.isfinite(value).all() and value.abs().max() > 0 for value in applied.values())


def test_the_budget_counts_packed_tokens():
    rows = [Row(trajectory=member.trajectory, advantage=1.0) for member in GROUP.members]
    (whole, rest) = micro_batches(rows, max_tokens=10_000, shares_prefixes=True)
    # 100 of the root, 60 of the branch, 9 + 5 + 7 and 20 + 3 behind them; the twins are one row.
    assert whole.computed_tokens == 100 + 60 + 9 + 5 + 7 + 20 + 3
    assert [len(row.trajectory.token_ids) for row in rest.rows] == [30]
    assert rest.tree is None
    parts = micro_batches(rows, max_tokens=185, shares_prefixes=True)
    assert all(part.computed_tokens <= 185 for part in parts)
    assert sorted(id(row) for part in parts for row in part.rows) == sorted(id(row) for row in rows)
    assert len([part for part in parts if part.tree is not None]) == 2


def test_rows_are_packed_only_where_that_pays():
    prefix = draw(3 * SEGMENT_TOKENS)
    pair = [Row(trajectory=make_trajectory([*prefix, token]), advantage=1.0) for token in (3, 4)]
    assert [batch.tree for batch in micro_batches(pair, max_tokens=999, shares_prefixes=True)] == [None]
    longer = [Row(trajectory=make_trajectory([5, *prefix, token]), advantage=1.0) for token in (3, 4)]
    assert [batch.computed_tokens for batch in micro_batches(longer, max_tokens=999, shares_prefixes=True)] == [
        len(prefix) + 3
    ]
    assert [batch.tree for batch in micro_batches(longer, max_tokens=999)] == [None]
