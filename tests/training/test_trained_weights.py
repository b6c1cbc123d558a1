import pytest
import torch
from torch import nn
from training_building import make_group, same_weights, tiny_policy, weights_of

from midcourse.advantages.group import group_advantages
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.training.checkpoint import TrainingState, load_latest, save_checkpoint
from midcourse.training.config import TrainingConfig
from midcourse.training.trained_weights import TrainedWeights
from midcourse.training.update import Updater


def one_weight(value, dtype):
    model = nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.fill_(value)
    return model


def updater_of(dtype, seed=0, **settings):
    values = {"learning_rate": 1e-6, "weight_decay": 0.0, **settings}
    return Updater(tiny_policy(seed, dtype), ClippedObjective(ClippedConfig()), TrainingConfig(**values))


def advance(updater, seed):
    group = make_group([1.0, 0.0, 0.0], seed=seed)
    return updater.update([group], [group_advantages(group.rewards)])


def test_steps_that_bfloat16_cannot_hold_add_up_in_the_copy():
    """Around 1 the next bfloat16 numbers are 2^-8 below and 2^-7 above: five steps of 2^-9 / 4 reach the middle."""
    model = one_weight(1.0, torch.bfloat16)
    weights = TrainedWeights(model)
    optimizer = torch.optim.SGD(weights.optimized.values(), lr=1.0)
    step = 2.0**-9 / 4
    seen = []
    for _ in range(5):
        model.weight.grad = torch.full_like(model.weight, step)
        weights.collect_gradients()
        optimizer.step()
        optimizer.zero_grad()
        weights.write_back()
        seen.append(model.weight.item())
    assert seen == [1.0, 1.0, 1.0, 1.0, 1.0 - 2.0**-8]
    assert weights.optimized["weight"].item() == 1.0 - 5 * step


def test_gradients_of_micro_batches_are_added_in_float32():
    model = one_weight(1.0, torch.bfloat16)
    weights = TrainedWeights(model)
    for gradient in (1.0, 2.0**-9):  # in bfloat16 their sum would be 1
        model.weight.grad = torch.full_like(model.weight, gradient)
        weights.collect_gradients()
        assert model.weight.grad is None
    assert weights.optimized["weight"].grad.item() == 1.0 + 2.0**-9


def test_float32_weights_are_trained_themselves():
    model = one_weight(1.0, torch.float32)
    weights = TrainedWeights(model)
    assert weights.optimized["weight"] is model.weight
    model.weight.grad = torch.ones_like(model.weight)
    weights.collect_gradients()
    weights.write_back()
    assert model.weight.grad.item() == 1.0
    assert weights.copies() == {}


def test_what_is_not_trained_is_not_among_them():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    weights = TrainedWeights(model)
    assert list(weights.optimized) == ["1.weight", "1.bias"]
    assert weights.num_parameters == 4


def test_a_learning_rate_of_1e_6_moves_bfloat16_weights():
    updater = updater_of(torch.bfloat16)
    start = weights_of(updater.policy.model)
    changed = []
    for seed in range(6):
        metrics = advance(updater, seed)
        assert metrics["objective/optimizer_steps"] == 1.0
        now = updater.policy.model.state_dict()
        changed.append(sum(int((now[name] != start[name]).sum()) for name in start))
        for name, master in updater.weights.optimized.items():
            assert torch.equal(now[name], master.to(torch.bfloat16))
    total = sum(value.numel() for value in start.values())
    # Without the copy a step of 1e-6 is under half the distance to the next number wherever |w| > 2^-11 = 4.9e-4.
    copies = updater.weights.copies()
    moved = max(float((copy - start[name].float()).abs().max()) for name, copy in copies.items())
    assert 4e-6 < moved < 8e-6
    assert changed[-1] > changed[0] > 0
    assert changed[-1] / total > 0.005


def test_moments_of_bfloat16_weights_are_float32():
    updater = updater_of(torch.bfloat16)
    advance(updater, 1)
    moments = [state["exp_avg_sq"] for state in updater.optimizer.state.values()]
    assert len(moments) == len(list(updater.policy.model.parameters()))
    assert {moment.dtype for moment in moments} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(dtype, tmp_path):
    first = updater_of(dtype)
    for seed in (1, 2):
        advance(first, seed)
    state = TrainingState(update=2, data={})
    save_checkpoint(tmp_path, policy=first.policy, updater=first, state=state, keep=1)
    second = updater_of(dtype, seed=9)
    load_latest(tmp_path, policy=second.policy, updater=second)
    for seed in (3, 4, 5):
        assert advance(second, seed) == advance(first, seed)
    assert same_weights(weights_of(first.policy.model), weights_of(second.policy.model))
    assert same_weights(dict(first.weights.optimized), dict(second.weights.optimized))
