"""What methods need of an engine, and what becomes of them without the rest."""

import asyncio
from dataclasses import replace

import pytest
from tests.interventions.scripted_world import make_engine, make_pipeline, make_step, make_tools
from tests.methods.rival_world import collect, engine_of
from tests.rollout.branch_world import KnowingEngine

from midcourse.assembly import _check_features
from midcourse.config import default_config, register_all
from midcourse.engines.base import Feature
from midcourse.errors import ConfigError
from midcourse.methods.base import METHODS, NeedsFeatures
from midcourse.methods.tree_grpo import TreeGRPOConfig

register_all()
VLLM = "engine.name=vllm"
NO_STATES = ["engine.hidden_states=none", 'method.controller.without_features=["hidden","task_embedding"]']


@pytest.mark.parametrize("name", METHODS.names())
def test_the_embedded_engine_gives_every_method_what_it_needs(name):
    _check_features(default_config(name))


@pytest.mark.parametrize("name", sorted(set(METHODS.names()) - {"rail", "arpo", "aepo"}))
def test_methods_that_ask_for_no_entropies_run_on_vllm_as_it_is(name):
    _check_features(default_config(name, [VLLM]))


@pytest.mark.parametrize("name", ["rail", "arpo", "aepo"])
def test_a_method_that_branches_by_entropies_names_the_setting_and_the_values_that_would_do(name):
    with pytest.raises(ConfigError) as found:
        _check_features(default_config(name, [VLLM]))
    assert str(found.value) == (
        f"engine.name = 'vllm' gives no entropies with these settings, and method {name!r} needs them: expected "
        'engine.entropies = "trainer" (exact) or "top_logprobs" (a lower bound), or engine.name = "transformers"'
    )
    _check_features(default_config(name, [VLLM, "engine.entropies=trainer"]))
    _check_features(default_config(name, [VLLM, "engine.entropies=top_logprobs"]))


def test_rail_needs_hidden_states_unless_its_controller_does_without():
    settings = [VLLM, "engine.entropies=trainer"]
    with pytest.raises(ConfigError, match=r'gives no hidden states .* expected engine\.hidden_states = "trainer"'):
        _check_features(default_config("rail", [*settings, NO_STATES[0]]))
    _check_features(default_config("rail", [*settings, *NO_STATES]))


def test_a_judge_beside_a_running_server_needs_a_server_of_its_own():
    running = [VLLM, "engine.running.url=http://a:1"]
    with pytest.raises(
        ConfigError, match=r"engine\.running_judge\.url is not set: .* http://a:1 holds the policy alone"
    ):
        default_config("opd", running).engine.for_judge()
    both = default_config("opd", [*running, "engine.running_judge.url=http://a:2"]).engine.for_judge()
    assert (both.running.url, both.running_judge) == ("http://a:2", None)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["engine.running.url=http://a:1", "engine.server.port=81"], "expected one of the two"),
        (["engine.running_judge.url=http://a:1"], r"expected running\.url too"),
        (["engine.running.url=http://a:1", "engine.running_judge.url=http://a:1"], "expected another server"),
    ],
)
def test_servers_that_contradict_each_other_are_an_error(overrides, said):
    with pytest.raises(ConfigError, match=said):
        default_config("rti", [VLLM, *overrides])


class SilentEngine(KnowingEngine):
    """Gives no entropies."""

    async def sample(self, prompt_ids, sampling):
        return replace(await super().sample(prompt_ids, sampling), entropies=())


def test_where_no_entropies_are_known_a_branchs_record_has_none():
    group = collect(TreeGRPOConfig().build(), engine_of(kind=SilentEngine))
    assert [record.entropy for record in group.branches] == [None] * 4
    assert {len(turn.entropies) for member in group.members for turn in member.trajectory.turns} == {0}
    known = collect(TreeGRPOConfig().build(), engine_of())
    assert all(record.entropy is not None for record in known.branches)


@pytest.mark.parametrize("has_schemas", [True, False])
def test_roles_that_the_policy_plays_are_held_to_a_schema_where_the_engine_can(has_schemas):
    features = {Feature.PROMPT_SCORES, *([Feature.STRUCTURED_OUTPUT] if has_schemas else [])}
    engine = make_engine({}, features=features)
    pipeline, _ = make_pipeline(make_tools(engine))
    decision = asyncio.run(pipeline(make_step()))
    schemas = [request.sampling.json_schema for request in engine.requests if request.sampling is not None]
    assert len(schemas) == 3
    names = ("ValidatorReply", "CorrectorReply", "VerifierReply")
    assert [schema and schema["title"] for schema in schemas] == (list(names) if has_schemas else [None] * 3)
    assert decision.token_ids is not None


def test_log_probabilities_of_a_masked_reply_reach_no_trained_token():
    """Roles say -7 a token; what the correction trains with is its score under the rollout prompt."""
    asked = []

    def logprobs(prompt_ids, token_ids):
        text = "".join(map(chr, prompt_ids))
        asked.append(text.startswith("@"))
        return [-7.0 if text.startswith("@") else -0.5] * len(token_ids)

    engine = make_engine({}, features=set(Feature), logprobs=logprobs)
    pipeline, _ = make_pipeline(make_tools(engine))
    decision = asyncio.run(pipeline(make_step()))
    assert any(asked)
    assert set(decision.behavior_logprobs) == {-0.5}


def test_settings_that_need_nothing_say_nothing():
    assert not isinstance(METHODS["grpo"](), NeedsFeatures)
    assert isinstance(METHODS["rail"](), NeedsFeatures)
