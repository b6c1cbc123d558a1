import asyncio
import logging
from dataclasses import replace

import pytest
import torch
from tests.interventions.review_world import RIGHT, TASK, authors, make_tools, text_of

from midcourse.assembly import assembled
from midcourse.config import default_config, load_config
from midcourse.engines.scripted import ScriptedEngine
from midcourse.errors import ConfigError
from midcourse.interventions.judge import JudgeConfig
from midcourse.methods.base import METHODS, ScheduledMethod
from midcourse.methods.grpo import GRPOConfig
from midcourse.methods.mintrl import MInTRLConfig
from midcourse.methods.mintrl_statistics import intervention_fraction, mintrl_statistics
from midcourse.objectives.clipped import ClippedObjective
from midcourse.objectives.regression import RegressionConfig, RegressionObjective
from midcourse.recording.serialization import group_from_dict, group_to_dict
from midcourse.types import (
    FailureKind,
    Group,
    Member,
    Origin,
    ReviewOutcome,
    ReviewRecord,
    TokenSource,
    Trajectory,
    Turn,
)

LENGTHS = {"chunk_tokens": 4, "max_reviews": 4, "max_intervention_tokens": 2}


def make_config(**settings):
    values = {"on_policy_rollouts": 2, "semi_on_policy_rollouts": 2, "judge": JudgeConfig(played_by="scripted")}
    return MInTRLConfig(**{**values, **LENGTHS, **settings})


def collect(config, say, *, update=1, seed=5):
    """`say` is the policy: what a response that begins so goes on with."""
    engine = ScriptedEngine(
        lambda prompt_ids, sampling: [*map(ord, say("".join(map(chr, prompt_ids)).rpartition("]")[2]))],
        logprobs=-0.5,
    )
    method = config.build()
    group = asyncio.run(method.collect(TASK, make_tools(engine), seed=seed, update=update))
    return method, group, engine


def slips_at_c(written):
    """Writes `abXd...` unaided, and goes on rightly from anything that is right."""
    plan = RIGHT + ";" if written.startswith("abc") else "abXdefgh;"
    return plan[len(written) :]


def test_a_bare_name_is_the_papers_setting():
    config = METHODS["mintrl"]()
    assert (config.on_policy_rollouts, config.semi_on_policy_rollouts, config.group_size) == (8, 8, 16)
    assert (config.chunk_tokens, config.max_reviews, config.max_intervention_tokens) == (512, 4, 64)
    assert config.intervention_updates == 200
    assert (config.regression.anchor, config.regression.kappa) == ("const", -0.2)
    assert config.judge.temperature == 1.0


def test_a_group_holds_members_of_both_kinds_and_the_baseline_is_of_those_that_the_policy_wrote():
    method, group, _ = collect(make_config(), slips_at_c)
    origins = [member.origin for member in group.members]
    assert origins == [Origin.ROOT] * 2 + [Origin.SEMI_ON_POLICY] * 2
    assert [text_of(member.trajectory) for member in group.members] == ["abXdefgh;"] * 2 + ["abcdefgh;"] * 2
    assert [authors(member.trajectory) for member in group.members] == ["ppppppppp"] * 2 + ["ppiippppp"] * 2
    assert group.rewards == [0.0, 0.0, 1.0, 1.0]
    assert group.rewards_before == [0.0, 0.0]
    assert method.advantages(group) == [0.0, 0.0, 1.0, 1.0]


def test_the_cost_tells_who_asked():
    _, group, _ = collect(make_config(), slips_at_c)
    # Unaided: 9 letters twice. Under review: 4 and, behind the correction, 5, twice.
    assert group.cost.generated_tokens == {"policy": 18, "intervened_policy": 18}
    assert group.cost.scored_tokens == {"intervention_score": 4}


def test_without_reviews_the_two_parts_of_the_schedule_differ_in_the_objective_alone():
    control = make_config(max_reviews=0, intervention_updates=1)
    method, first, _ = collect(control, slips_at_c, update=1)
    _, second, _ = collect(control, slips_at_c, update=2)
    _, plain, _ = collect(GRPOConfig(group_size=4), slips_at_c, update=1)
    assert list(first.members) == list(plain.members)
    assert (first.phase, second.phase) == ("intervention", "plain")
    assert {member.origin for member in (*first.members, *second.members)} == {Origin.ROOT}
    assert isinstance(method.objective_in(first.phase), RegressionObjective)
    assert isinstance(method.objective_in(second.phase), ClippedObjective)


def test_the_control_takes_all_members_into_the_baseline():
    method, group, _ = collect(make_config(max_reviews=0), slips_at_c)
    rewarded = [
        replace(member, trajectory=replace(member.trajectory, reward=reward))
        for member, reward in zip(group.members, [1.0, 0.0, 0.0, 0.0], strict=True)
    ]
    assert method.advantages(replace(group, members=tuple(rewarded))) == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize(
    ("updates", "update", "phase"), [(2, 1, 0), (2, 2, 0), (2, 3, 1), (0, 0, 1), (0, 1, 1), (1, 0, 0)]
)
def test_interventions_come_first_then_grpo(updates, update, phase):
    method = make_config(intervention_updates=updates).build()
    assert isinstance(method, ScheduledMethod)
    assert method.phase(update) == ("intervention", "plain")[phase]


def test_a_group_of_grpos_part_has_grpos_advantages():
    method, group, _ = collect(make_config(intervention_updates=1), slips_at_c, update=2)
    mixed = [
        replace(member, trajectory=replace(member.trajectory, reward=reward))
        for member, reward in zip(group.members, [1.0, 0.0, 0.0, 0.0], strict=True)
    ]
    group = replace(group, members=tuple(mixed))
    assert method.advantages(group) == GRPOConfig().build().advantages(group)


def test_interventions_stop_for_good_when_too_little_comes_from_them():
    method, group, _ = collect(make_config(stop_below_fraction=0.2), slips_at_c)
    assert intervention_fraction([member.trajectory for member in group.members[2:]]) == pytest.approx(2 / 9)
    method.finish_update([group])
    assert method.phase(2) == "intervention"
    _, kept, _ = collect(make_config(), lambda written: "abcdefgh;"[len(written) :])
    method.finish_update([kept])
    assert method.phase(2) == "plain"
    method.finish_update([group])
    assert method.phase(3) == "plain"
    again = make_config().build()
    again.restore(method.state())
    assert again.phase(1) == "plain"


def test_without_a_bound_interventions_go_on():
    method, kept, _ = collect(make_config(), lambda written: "abcdefgh;"[len(written) :])
    method.finish_update([kept])
    assert method.phase(2) == "intervention"
    assert method.state() == {"is_stopped": False}


def test_a_judge_that_the_run_does_not_have_is_an_error():
    for source in ("frozen", "engine"):
        with pytest.raises(ConfigError, match="has none"):
            collect(make_config(judge=JudgeConfig(played_by=source)), slips_at_c)


def test_statistics_by_hand():
    method, group, _ = collect(make_config(), slips_at_c)
    found = method.statistics([group])
    assert found["intervention/token_fraction_semi"] == pytest.approx(2 / 9)
    assert found["intervention/token_fraction_all"] == pytest.approx(4 / 36)
    assert found["intervention/review/revised"] == 2
    assert found["intervention/review/kept"] == 2  # the four letters behind each correction
    assert found["intervention/review/not_found"] == found["intervention/review/unreadable"] == 0
    assert found["intervention/first_error_position"] == 2.0
    assert found["intervention/first_error_fraction"] == pytest.approx(2 / 9)
    assert (found["intervention/rejected_tokens"], found["intervention/correction_tokens"]) == (2.0, 2.0)
    assert (found["intervention/success_on_policy"], found["intervention/success_semi"]) == (0.0, 1.0)
    assert found["intervention/success_revised"] == 1.0
    assert "intervention/success_unrevised" not in found
    assert found["intervention/policy_logprob"] == -0.5
    assert found["intervention/judge_logprob"] == 0.0  # a script is certain
    # S = 2 * (-0.2 + 0.5) = 0.6
    assert found["intervention/anchor_bonus_max"] == pytest.approx(1e-3 * 0.6)
    assert found["intervention/failed_pushed_up_fraction"] == 0.0


def make_trajectory(sources, *, reward, reviews=(), logprob=-1.0):
    names = {"x": TokenSource.PROMPT, "p": TokenSource.POLICY, "i": TokenSource.INTERVENTION}
    written = [names[letter] for letter in sources]
    trained = [source is not TokenSource.PROMPT for source in written]
    start = sources.rindex("x") + 1
    return Trajectory(
        task_id="t1",
        token_ids=tuple(range(len(sources))),
        sources=tuple(written),
        behavior_logprobs=tuple(logprob if flag else None for flag in trained),
        policy_versions=tuple(0 if flag else None for flag in trained),
        weights=(1.0,) * len(sources),
        calibration_logprobs=(None,) * len(sources),
        turns=(Turn(start=start, end=len(sources), message=None, reviews=tuple(reviews)),),
        reward=reward,
        failure=None if reward is not None else FailureKind.ENGINE_ERROR,
    )


def test_failed_rollouts_that_the_const_anchor_pushes_up_are_counted_and_too_large_a_bonus_is_warned_of(caplog):
    failed = make_trajectory("xxpppii", reward=0.0, logprob=-5.0)
    group = Group(
        group_id="g",
        task_id="t1",
        members=(
            Member(trajectory=make_trajectory("xxppp", reward=1.0)),
            Member(trajectory=make_trajectory("xxppp", reward=0.0)),
            Member(trajectory=failed, origin=Origin.SEMI_ON_POLICY),
        ),
        phase="intervention",
    )
    # S = 2 * (5 - 0.2) = 9.6; A = -0.5 for both failures
    mild = mintrl_statistics([group], advantages=[[0.5, -0.5, -0.5]], beta=0.05, kappa=-0.2)
    assert mild.anchor_bonus_max == pytest.approx(0.48)
    assert mild.failed_pushed_up_fraction == 0.0
    strong = mintrl_statistics([group], advantages=[[0.5, -0.5, -0.5]], beta=0.1, kappa=-0.2)
    assert strong.failed_pushed_up_fraction == 0.5
    assert mintrl_statistics([group], advantages=[[0.5, -0.5, -0.5]], beta=0.1, kappa=None).anchor_bonus_max is None
    with caplog.at_level(logging.WARNING):
        make_config(regression=RegressionConfig(beta=0.05)).build().statistics([group])
        assert not caplog.records
        make_config(regression=RegressionConfig(beta=0.1)).build().statistics([group])
    assert "at most 0.026" in caplog.text  # 0.25 / 9.6


def test_the_judges_own_log_probability_is_a_mean_over_tokens():
    def review(length, logprob):
        return ReviewRecord(
            outcome=ReviewOutcome.REVISED, start=2, end=5, cut=3, correction_tokens=length, judge_logprob=logprob
        )

    reviews = [review(1, -0.8), review(3, -0.4)]
    member = Member(trajectory=make_trajectory("xxpiii", reward=1.0, reviews=reviews), origin=Origin.SEMI_ON_POLICY)
    group = Group(group_id="g", task_id="t1", members=(member,))
    found = mintrl_statistics([group], advantages=[[0.0]], beta=1e-3, kappa=-0.2)
    assert found.judge_logprob == pytest.approx((-0.8 - 3 * 0.4) / 4)


def test_a_group_under_review_survives_the_journal():
    _, group, _ = collect(make_config(), slips_at_c)
    assert group_from_dict(group_to_dict(group)) == group


def test_settings_name_the_judges_server_and_its_path():
    server = ["role_engines.judge.base_url=http://127.0.0.1:8000/v1", "role_engines.judge.model=large"]
    config = load_config(None, ["method.name=mintrl", "method.judge.played_by=engine", *server])
    assert config.role_engines["judge"].model == "large"
    with pytest.raises(ConfigError, match=r"\[role_engines\.judge\] must say which"):
        load_config(None, ["method.name=mintrl", "method.judge.played_by=engine"])
    with pytest.raises(ConfigError, match=r"role_engines\.judge: not used"):
        load_config(None, ["method.name=mintrl", *server])
    with pytest.raises(ConfigError, match="path must be set"):
        load_config(None, ["method.name=mintrl", "method.judge.played_by=model"])
    with pytest.raises(ConfigError, match=r"did you mean method\.regression\.beta"):
        load_config(None, ["method.name=mintrl", "method.beta=0.1"])


def test_the_frozen_judge_is_a_copy_that_training_does_not_move():
    overrides = ["rollout.max_turn_tokens=32", "method.judge.max_tokens=32"]

    async def scores():
        async with assembled(default_config("mintrl", overrides)) as parts:
            assert parts.tools.judge is not None
            assert parts.tools.judge.shares_tokens
            engines = [parts.tools.judge.engine, parts.tools.engine]
            before = [(await engine.score([5, 6], [7, 8])).logprobs for engine in engines]
            with torch.no_grad():
                for parameter in parts.policy.model.parameters():
                    parameter.mul_(1.5)
            for engine in engines:
                await engine.update_weights(None, 1)
            return before, [(await engine.score([5, 6], [7, 8])).logprobs for engine in engines]

    before, after = asyncio.run(scores())
    assert before[0] == before[1] == after[0]
    assert after[1] != after[0]


def test_no_other_model_is_loaded_for_a_judge_without_one():
    async def judge():
        settings = ["rollout.max_turn_tokens=32", "method.judge.max_tokens=32", "method.judge.played_by=scripted"]
        async with assembled(default_config("mintrl", settings)) as parts:
            return parts.tools.judge

    assert asyncio.run(judge()) is None
