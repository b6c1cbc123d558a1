import asyncio
from dataclasses import replace

import pytest
from tests.interventions.review_world import RIGHT, TASK, authors, make_tools, text_of
from tests.interventions.teaching_world import by_attempt, speaker

from midcourse.config import load_config
from midcourse.engines.scripted import ScriptedEngine
from midcourse.errors import ConfigError, EngineError
from midcourse.interventions.teacher import DemonstratorConfig
from midcourse.methods.base import METHODS, ScheduledMethod
from midcourse.methods.grpo import GRPOConfig
from midcourse.methods.sft_grpo import SFTGRPOConfig
from midcourse.objectives.clipped import ClippedObjective
from midcourse.objectives.supervised import SupervisedObjective
from midcourse.recording.metrics import group_metrics
from midcourse.recording.serialization import group_from_dict, group_to_dict
from midcourse.rollout.episode import RolloutKey
from midcourse.training.batch import build_batch
from midcourse.types import Origin

SCRIPTED = DemonstratorConfig(played_by="scripted")


def collect(config, *, taught=(), update=1):
    """`taught` is what the teacher writes, one response a rollout."""
    key = RolloutKey(seed=5, update=update, task_id=TASK.task_id, attempt=0)
    policy = ScriptedEngine(lambda prompt_ids, sampling: [*map(ord, "abX;")], logprobs=-0.5)
    teacher = speaker(ScriptedEngine(by_attempt(taught, key=key, role="intervention:0")))
    method = config.build()
    group = asyncio.run(method.collect(TASK, make_tools(policy, judge=teacher), seed=5, update=update))
    return method, group


def test_a_bare_name_imitates_the_policy_with_evidence_as_long_as_mintrl_intervenes():
    config = METHODS["sft_grpo"]()
    assert (config.teacher.played_by, config.teacher.sees_evidence, config.teacher.temperature) == ("frozen", True, 1.0)
    assert config.supervised_updates == METHODS["mintrl"]().intervention_updates
    assert not config.keep_failures


@pytest.mark.parametrize(
    ("updates", "update", "phase"), [(2, 1, 0), (2, 2, 0), (2, 3, 1), (0, 0, 1), (0, 1, 1), (1, 0, 0)]
)
def test_imitation_comes_first_then_grpo(updates, update, phase):
    method = SFTGRPOConfig(supervised_updates=updates).build()
    assert isinstance(method, ScheduledMethod)
    assert method.phase(update) == ("supervised", "plain")[phase]
    objective = method.objective_in(method.phase(update))
    assert isinstance(objective, (SupervisedObjective, ClippedObjective)[phase])
    assert isinstance(method.objective, ClippedObjective)


def test_the_teacher_writes_whole_responses_and_those_with_the_full_reward_are_imitated():
    method, group = collect(SFTGRPOConfig(demonstrations=3), taught=[RIGHT + ";", "ab;", EngineError("down")])
    assert [member.origin for member in group.members] == [Origin.TEACHER] * 3
    assert [text_of(member.trajectory) for member in group.members] == [RIGHT + ";", "ab;", ""]
    assert authors(group.members[0].trajectory) == "i" * 9
    assert group.rewards == [1.0, 0.0, None]
    assert group.rewards_before == []
    assert method.advantages(group) == [1.0, None, None]
    batch = build_batch([group], [method.advantages(group)])
    assert (batch.members_failed, batch.members_left_out) == (1, 1)
    assert method.statistics([group]) == {
        "intervention/demonstrations": 3.0,
        "intervention/demonstrations_imitated": 1.0,
    }


def test_failures_may_be_imitated_too_and_what_has_no_reward_never_is():
    config = SFTGRPOConfig(demonstrations=3, keep_failures=True)
    method, group = collect(config, taught=[RIGHT + ";", "ab;", EngineError("down")])
    assert method.advantages(group) == [1.0, 1.0, None]


def test_a_group_without_anything_to_imitate_has_no_signal():
    method, group = collect(SFTGRPOConfig(demonstrations=2), taught=["ab;", "ac;"])
    assert build_batch([group], [method.advantages(group)]).groups_without_signal == 1


def test_a_script_demonstrates_and_the_cost_tells_who_asked():
    _, group = collect(SFTGRPOConfig(demonstrations=1, teacher=SCRIPTED))
    assert group.rewards == [1.0]
    assert group.cost.generated_tokens == {}
    assert group.cost.scored_tokens == {"intervention_score": 9}
    metrics = group_metrics([group])
    assert (metrics["reward/mean"], metrics["tokens/intervention"], metrics["tokens/policy"]) == (1.0, 9.0, 0.0)


def test_the_second_part_is_grpo_with_its_advantages():
    config = SFTGRPOConfig(group_size=4, supervised_updates=1, teacher=SCRIPTED)
    method, group = collect(config, update=2)
    _, plain = collect(GRPOConfig(group_size=4), update=2)
    assert list(group.members) == list(plain.members)
    assert (group.phase, method.statistics([group])) == ("plain", {})
    mixed = [
        replace(member, trajectory=replace(member.trajectory, reward=reward))
        for member, reward in zip(group.members, [1.0, 0.0, 0.0, 0.0], strict=True)
    ]
    group = replace(group, members=tuple(mixed))
    assert method.advantages(group) == GRPOConfig().build().advantages(group)


def test_a_group_of_demonstrations_survives_the_journal():
    _, group = collect(SFTGRPOConfig(demonstrations=2), taught=[RIGHT + ";", EngineError("down")])
    assert group_from_dict(group_to_dict(group)) == group


def test_a_teacher_that_the_run_does_not_have_is_an_error():
    config = SFTGRPOConfig(demonstrations=1)
    with pytest.raises(ConfigError, match="has none"):
        asyncio.run(config.build().collect(TASK, make_tools(ScriptedEngine()), seed=5, update=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method.teacher.played_by=model"], "path must be set"),
        (["method.teacher.played_by=engine"], r"method\.teacher\.played_by = 'engine'"),
        (["method.teacher.domain=code"], r"method\.teacher\.domain = 'code': unknown setting"),
        (["method.supervised_updates=-1"], r"method\.supervised_updates = -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, ["method.name=sft_grpo", *settings])
