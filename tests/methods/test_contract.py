"""What every registered method keeps."""

import asyncio

import pytest
from tests.interventions.review_world import TASK, engine_of
from tests.interventions.review_world import make_tools as spell_tools

from midcourse.config import register_all
from midcourse.methods.base import METHODS, ScheduledMethod
from midcourse.methods.grpo import GRPOConfig
from midcourse.objectives.reduction import AGGREGATIONS

register_all()
OFF = {
    "rti": {"attempts": 0},
    "mintrl": {"intervention_updates": 0},
    "opd": {"mode": "with_grpo", "coefficient": 0.0},
    "sft_grpo": {"supervised_updates": 0},
    "tampo": {"temperature_factors": (1.0,)},
}
"""Settings that switch a method's own doing off."""
OTHER_OBJECTIVE = {"gspo", "aepo"}
OTHER_ADVANTAGES = {"vip"}
SIZES = {
    "rail": lambda size: {"initial_rollouts": size, "rollout_budget": size},
    "arpo": lambda size: {"initial_rollouts": size, "rollout_budget": size},
    "aepo": lambda size: {"rollout_budget": size, "trigger": {"base_probability": 0.0, "entropy_weight": 0.0}},
    "tree_grpo": lambda size: {"trees": size, "nodes": 0, "leaves": 1},
    "vip": lambda size: {"rollouts_per_task": size, "min_rollouts": size, "max_rollouts": size},
}
"""Settings of a group of so many rollouts where they have a name of their own."""


def sized(name: str, size: int, **settings):
    """Return the method with groups of `size`."""
    config_class = METHODS[name]
    if name in SIZES:
        return config_class(**SIZES[name](size), **settings)
    if "group_size" in config_class.model_fields:
        return config_class(group_size=size, **settings)
    return config_class(on_policy_rollouts=size - size // 2, semi_on_policy_rollouts=size // 2, **settings)


def collect(config, *plans: str):
    method = config.build()
    group = asyncio.run(method.collect(TASK, spell_tools(engine_of(*plans), vocabulary_size=64), seed=5, update=2))
    return method, group


@pytest.mark.parametrize("name", METHODS.names())
def test_a_method_with_its_intervention_off_is_grpo_bit_for_bit(name):
    _, plain = collect(GRPOConfig(group_size=4), "abcX;", "abcdefgh;")
    method, group = collect(sized(name, 4, **OFF.get(name, {})), "abcX;", "abcdefgh;")
    assert list(group.members) == list(plain.members)
    assert group.extra == plain.extra == ()
    assert (group.group_id, group.cost.generated_tokens) == (plain.group_id, plain.cost.generated_tokens)
    grpo = GRPOConfig(group_size=4).build()
    if name not in OTHER_ADVANTAGES:
        assert method.advantages(group) == grpo.advantages(plain)
    assert all(key.startswith("intervention/") for key in method.statistics([group]))
    if name not in OTHER_OBJECTIVE:
        objective = method.objective_in(method.phase(2)) if isinstance(method, ScheduledMethod) else method.objective
        assert type(objective) is type(grpo.objective)
        assert objective.config == grpo.objective.config


@pytest.mark.parametrize("name", METHODS.names())
def test_an_objective_names_an_aggregation_and_a_group_has_the_size_that_was_asked_for(name):
    config = METHODS[name]()
    method = config.build()
    assert method.objective.aggregation in AGGREGATIONS
    assert config.group_size >= 1
    assert config.name == name
