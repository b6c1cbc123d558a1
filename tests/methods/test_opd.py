import asyncio
from dataclasses import replace

import pytest
from tests.interventions.review_world import RIGHT, TASK, make_tools, text_of
from tests.interventions.teaching_world import by_attempt, speaker
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from midcourse.assembly import assembled
from midcourse.config import default_config, load_config
from midcourse.engines.scripted import ScriptedEngine
from midcourse.errors import ConfigError, EngineError
from midcourse.methods.base import METHODS
from midcourse.methods.grpo import GRPOConfig
from midcourse.methods.opd import OPDConfig
from midcourse.objectives.clipped import ClippedObjective
from midcourse.objectives.distillation import DistillationObjective
from midcourse.recording.serialization import group_from_dict, group_to_dict
from midcourse.rollout.episode import RolloutKey
from midcourse.training.batch import build_batch
from midcourse.types import FailureKind

WRITTEN = (RIGHT + ";", "abX;", "ab;", "abY;")


class Picky(ScriptedEngine):
    """Scores nothing that holds a Y."""

    async def score(self, prompt_ids, continuation_ids, **settings):
        if ord("Y") in continuation_ids:
            raise EngineError("no Y")
        return await super().score(prompt_ids, continuation_ids, **settings)


def collect(config, *, completions=WRITTEN, update=1):
    key = RolloutKey(seed=5, update=update, task_id=TASK.task_id, attempt=0)
    policy = ScriptedEngine(by_attempt(completions, key=key), logprobs=-0.5)
    tools = make_tools(policy, judge=speaker(Picky(logprobs=-3.0)))
    method = config.build()
    group = asyncio.run(method.collect(TASK, tools, seed=5, update=update))
    return method, group


def test_a_bare_name_is_distillation_alone_from_the_policy_at_the_start_with_evidence():
    config = METHODS["opd"]()
    assert (config.mode, config.coefficient, config.group_size) == ("reverse_kl", 1.0, 8)
    assert (config.teacher.played_by, config.teacher.sees_evidence) == ("frozen", True)
    objective = config.build().objective
    assert isinstance(objective, DistillationObjective)
    assert (objective.coefficient, objective.config) == (1.0, GRPOConfig().objective)


def test_rollouts_are_grpos_draw_by_draw_and_carry_the_teachers_scores():
    _, plain = collect(GRPOConfig(group_size=4))
    _, group = collect(OPDConfig(group_size=4))
    bare = [replace(member.trajectory, teacher_logprobs=None) for member in group.members]
    assert bare == [member.trajectory for member in plain.members]
    assert [member.trajectory.teacher_logprobs is not None for member in group.members] == [True, True, True, False]
    assert group.cost.generated_tokens == {"policy": 20}
    assert group.cost.scored_tokens == {"teacher": 16}


def test_alone_no_reward_is_compared_and_what_the_teacher_could_not_score_does_not_train():
    method, group = collect(OPDConfig(group_size=4))
    assert group.rewards == [1.0, 0.0, 0.0, 0.0]
    assert method.advantages(group) == [0.0, 0.0, 0.0, None]
    batch = build_batch([group], [method.advantages(group)])
    assert [text_of(row.trajectory) for row in batch.groups[0]] == list(WRITTEN[:3])
    assert (batch.groups_without_signal, batch.members_left_out, batch.members_failed) == (0, 1, 0)


def test_folded_into_grpo_the_reward_of_an_unscored_member_still_counts_in_the_groups_mean():
    method, group = collect(OPDConfig(group_size=4, mode="with_grpo"))
    expected = GRPOConfig().build().advantages(group)
    assert method.advantages(group) == [*expected[:3], None]


def test_a_rollout_that_failed_does_not_train_whatever_the_teacher_said_of_it():
    for mode in ("reverse_kl", "with_grpo"):
        method, group = collect(
            OPDConfig(group_size=3, mode=mode), completions=[RIGHT + ";", EngineError("down"), "abX;"]
        )
        assert group.members[1].trajectory.failure is FailureKind.ENGINE_ERROR
        assert [value is None for value in method.advantages(group)] == [False, True, False]
        assert method.statistics([group]) == {"intervention/teacher_scored": 2.0, "intervention/teacher_failed": 0.0}


def test_equal_rewards_leave_a_groups_teacher_its_say_and_grpos_part_exactly_nothing():
    method, group = collect(OPDConfig(group_size=2, mode="with_grpo"), completions=["abX;", "ab;"])
    assert method.advantages(group) == [0.0, 0.0]
    assert build_batch([group], [[0.0, 0.0]]).groups_without_signal == 0


def test_statistics_count_what_was_scored_and_what_was_not():
    method, group = collect(OPDConfig(group_size=4))
    assert method.statistics([group, group]) == {
        "intervention/teacher_scored": 6.0,
        "intervention/teacher_failed": 2.0,
    }


def test_without_a_coefficient_no_teacher_is_asked_and_none_is_needed():
    config = OPDConfig(group_size=4, mode="with_grpo", coefficient=0.0)
    method, group = collect(config)
    assert isinstance(method.objective, ClippedObjective)
    assert group.cost.scored_tokens == {}
    assert method.statistics([group]) == {}
    assert method.advantages(group) == GRPOConfig().build().advantages(group)


def test_a_scored_group_survives_the_journal():
    _, group = collect(OPDConfig(group_size=4))
    assert group_from_dict(group_to_dict(group)) == group


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method.coefficient=0"], "coefficient must be > 0"),
        (["method.teacher.played_by=self", "method.teacher.is_privileged=false"], "no teacher"),
        (["method.teacher.played_by=model"], "path must be set"),
        (["method.teacher.played_by=scripted"], r"method\.teacher\.played_by = 'scripted'"),
        (["method.teacher.temperature=1"], r"method\.teacher\.temperature = 1: not used by method 'opd'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, ["method.name=opd", *settings])


def test_a_run_builds_its_teacher_as_a_copy_that_training_does_not_move():
    async def teacher():
        async with assembled(default_config("opd", ["rollout.max_turn_tokens=32"])) as parts:
            return parts.tools.judge, parts.policy.model

    found, model = asyncio.run(teacher())
    assert found.shares_tokens
    assert found.engine._model is not model


def test_a_teacher_of_another_vocabulary_is_refused_before_anything_is_rolled_out(tmp_path):
    words = Tokenizer(models.WordLevel({"<|im_start|>": 0, "<|im_end|>": 1, "other": 2}, unk_token="other"))
    words.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>").save_pretrained(tmp_path)
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    Qwen3ForCausalLM(Qwen3Config(vocab_size=8, **size, **heads)).save_pretrained(tmp_path)
    other = ["method.teacher.played_by=model", f"method.teacher.path={tmp_path}", "method.teacher.chat=chatml"]

    async def build():
        async with assembled(default_config("opd", ["rollout.max_turn_tokens=32", *other])):
            raise AssertionError("it was built")

    with pytest.raises(ConfigError, match="same vocabulary"):
        asyncio.run(build())
