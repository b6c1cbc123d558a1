import asyncio
import math
from dataclasses import replace

import pytest
from tests.interventions.scripted_world import (
    BETTER,
    INVALID,
    OK,
    TASK,
    VALID,
    PressWorld,
    ScriptedPressWorld,
    make_tools,
    speaker,
)

from midcourse.engines.scripted import ScriptedEngine
from midcourse.errors import EngineError
from midcourse.methods.base import METHODS
from midcourse.methods.grpo import GRPOConfig, first_success, is_failed_group, replace_one_failure
from midcourse.methods.rti import RTIConfig, discount_flagged
from midcourse.methods.rti_statistics import net_first_turn_weight, rti_statistics
from midcourse.rollout.episode import RolloutKey
from midcourse.types import (
    FailureKind,
    Group,
    InterventionOutcome,
    InterventionRecord,
    Member,
    Origin,
    TokenSource,
    Trajectory,
    Turn,
)

KEY = RolloutKey(seed=5, update=2, task_id=TASK.task_id, attempt=0)
REPLIES = {"validator": INVALID, "corrector": BETTER, "verifier": OK}


def collect(config, *, replies=REPLIES, draft=lambda sampling: "+a;", environment=None, seed=5):
    engine = ScriptedEngine(speaker(replies, draft))
    method = config.build()
    tools = make_tools(engine, environment=environment)
    group = asyncio.run(method.collect(TASK, tools, seed=seed, update=2))
    return group, method.advantages(group), engine


def make_trajectory(reward, *, turns=(), num_policy=2, source=TokenSource.POLICY, weights=None):
    sources = (TokenSource.PROMPT, *(source for _ in range(num_policy)))
    return Trajectory(
        task_id=TASK.task_id,
        token_ids=tuple(range(num_policy + 1)),
        sources=sources,
        behavior_logprobs=(None, *(-1.0 for _ in range(num_policy))),
        policy_versions=(None, *(0 for _ in range(num_policy))),
        weights=weights or (1.0,) * (num_policy + 1),
        calibration_logprobs=(None,) * (num_policy + 1),
        turns=turns,
        reward=reward,
        failure=None if reward is not None else FailureKind.ENGINE_ERROR,
    )


def make_turn(outcome, *, start=1, end=3, **record):
    intervention = None if outcome is None else InterventionRecord(outcome=outcome, **record)
    return Turn(start=start, end=end, message=None, intervention=intervention)


def test_both_methods_are_registered_and_a_bare_name_is_the_papers_setting():
    rti = METHODS["rti"]()
    assert {"grpo", "rti"} <= set(METHODS.names())
    assert (rti.group_size, rti.attempts, rti.delta, rti.epsilon_cal) == (8, 8, 5.0, 0.2)
    assert (METHODS["grpo"]().group_size, METHODS["grpo"]().std_ddof) == (8, 0)


def test_delta_may_be_infinite_and_never_negative():
    assert RTIConfig.model_validate({"delta": math.inf}).delta == math.inf
    with pytest.raises(ValueError, match="delta"):
        RTIConfig(delta=-1.0)


def test_a_failed_group_gets_one_rescued_member():
    group, advantages, _ = collect(RTIConfig(group_size=4, attempts=3))
    assert sorted(group.rewards) == [0.0, 0.0, 0.0, 1.0]
    assert group.rewards_before == [0.0] * 4
    rescued = next(member for member in group.members if member.origin is Origin.INTERVENED)
    assert rescued.trajectory.accepted_interventions == 1
    assert len(group.extra) == 2
    # mean 1/4, deviation sqrt(3)/4
    assert sorted(advantages) == pytest.approx([-1 / math.sqrt(3)] * 3 + [math.sqrt(3)], rel=1e-4)


def test_weights_stand_on_intervened_tokens_alone():
    def logprobs(prompt_ids, continuation_ids):
        return [-0.5 if "too far" in "".join(map(chr, prompt_ids)) else -1.0] * len(continuation_ids)

    engine = ScriptedEngine(speaker(REPLIES, lambda sampling: "+a;"), logprobs=logprobs)
    group = asyncio.run(RTIConfig(group_size=2, attempts=1).build().collect(TASK, make_tools(engine), seed=5, update=2))
    for member in group.members:
        for weight, source in zip(member.trajectory.weights, member.trajectory.sources, strict=True):
            assert weight == pytest.approx(1.2 if source is TokenSource.INTERVENTION else 1.0)
    assert TokenSource.INTERVENTION in {s for member in group.members for s in member.trajectory.sources}


def mixed_draft(sampling):
    return "+b;" if sampling.seed % 3 == 0 else "+a;"


@pytest.mark.parametrize("settings", [{"attempts": 0}, {"delta": 0.0}])
@pytest.mark.parametrize("draft", [mixed_draft, lambda sampling: "+a;"])
def test_without_intervention_rti_is_grpo_bit_for_bit(settings, draft):
    plain, plain_advantages, _ = collect(GRPOConfig(group_size=6), draft=draft)
    group, advantages, _ = collect(RTIConfig(group_size=6, **settings), draft=draft)
    assert group.members == plain.members
    assert advantages == plain_advantages


def test_a_lucky_success_without_a_correction_replaces_nothing_and_is_counted():
    # Intervened attempts see a policy that presses b and a validator that is content.
    seeds = {replace(KEY, attempt=attempt).turn_seed(0) for attempt in (0, 1)}
    group, _, _ = collect(
        RTIConfig(group_size=2, attempts=2),
        replies={**REPLIES, "validator": VALID},
        draft=lambda sampling: "+a;" if sampling.seed in seeds else "+b;",
    )
    assert group.rewards == [0.0, 0.0]
    statistics = rti_statistics([group])
    assert (statistics.num_lucky_successes, statistics.num_groups_rescued) == (2, 0)


def test_a_group_with_a_success_is_left_alone():
    first = KEY.turn_seed(0)
    group, _, engine = collect(
        RTIConfig(group_size=3), draft=lambda sampling: "+b;" if sampling.seed == first else "+a;"
    )
    assert group.extra == ()
    assert len(engine.requests) == 3


class Flaky(PressWorld):
    """Its reward breaks for every rollout that pressed `z`."""

    def __init__(self):
        super().__init__(score=self.judge)

    def judge(self, keys):
        if keys.endswith("z"):
            raise RuntimeError("judge down")
        return float(keys.endswith("b"))


def test_failed_members_neither_trigger_nor_are_replaced():
    seeds = [replace(KEY, attempt=attempt).turn_seed(0) for attempt in range(4)]

    def draft(sampling):
        return "+z;" if sampling.seed in seeds[:3] else "+a;"

    group, advantages, _ = collect(RTIConfig(group_size=4, attempts=1), draft=draft, environment=Flaky())
    assert group.rewards == [None, None, None, 1.0]
    assert advantages == [None, None, None, 0.0]
    broken, _, engine = collect(RTIConfig(group_size=3, attempts=1), draft=lambda s: "+z;", environment=Flaky())
    assert broken.rewards == [None] * 3
    assert broken.extra == ()
    assert len(engine.requests) == 3


def test_what_triggers_is_a_scored_member_and_no_success():
    def group(*rewards):
        return [Member(trajectory=make_trajectory(reward)) for reward in rewards]

    assert is_failed_group(group(0.0, None))
    assert not is_failed_group(group(None, None))
    assert not is_failed_group(group(0.0, 0.5))


def test_the_lowest_successful_attempt_wins():
    attempts = [make_trajectory(reward) for reward in (0.0, None, 1.0, 1.0)]
    assert first_success(attempts) == 2
    assert first_success(attempts[:2]) is None


def test_the_replaced_member_depends_on_the_key_alone():
    members = [Member(trajectory=make_trajectory(reward)) for reward in (None, 0.0, 0.0, None, 0.0)]
    winner = make_trajectory(1.0)

    def chosen(key):
        after = replace_one_failure(members, winner, origin=Origin.INTERVENED, key=key)
        return next(index for index, member in enumerate(after) if member.replaced is not None)

    places = [chosen(replace(KEY, seed=seed)) for seed in range(40)]
    assert set(places) == {1, 2, 4}
    assert chosen(KEY) == chosen(replace(KEY, attempt=7))


class Late(ScriptedEngine):
    """Answers the requests in another order than they came."""

    async def sample(self, prompt_ids, sampling):
        for _ in range(sampling.seed % 7):
            await asyncio.sleep(0)
        return await super().sample(prompt_ids, sampling)


def test_the_group_does_not_depend_on_who_finishes_first():
    config = RTIConfig(group_size=4, attempts=4)
    prompt, _, _ = collect(config)
    late = asyncio.run(config.build().collect(TASK, make_tools(Late(speaker(REPLIES))), seed=5, update=2))
    assert late.members == prompt.members
    assert late.extra == prompt.extra


def test_early_stop_makes_no_attempt_after_the_first_rescue():
    group, _, _ = collect(RTIConfig(group_size=2, attempts=5, early_stop=True))
    full, _, _ = collect(RTIConfig(group_size=2, attempts=5))
    assert group.members == full.members
    assert (len(group.extra), len(full.extra)) == (0, 4)


def test_costs_are_told_apart_by_purpose():
    group, _, _ = collect(RTIConfig(group_size=2, attempts=3))
    assert group.cost.generated_tokens["policy"] == 2 * 3
    assert group.cost.generated_tokens["intervened_policy"] == 3 * 3
    assert {"validator", "corrector", "verifier"} <= set(group.cost.generated_tokens)
    assert group.cost.scored_tokens == {"gate": 18, "calibration": 9}
    assert set(group.cost.seconds) >= {"policy", "gate"}


def test_scripted_roles_come_from_the_environment():
    group, _, _ = collect(
        RTIConfig(group_size=2, attempts=1, roles={"played_by": "scripted"}), environment=ScriptedPressWorld()
    )
    assert sorted(group.rewards) == [0.0, 1.0]
    assert "validator" not in group.cost.generated_tokens


def test_a_dead_role_leaves_plain_rollouts():
    group, _, _ = collect(RTIConfig(group_size=2, attempts=2), replies={**REPLIES, "validator": EngineError("down")})
    assert group.rewards == [0.0, 0.0]
    assert rti_statistics([group]).outcomes["role_failed"] == 2


def test_the_control_replaces_one_failure_by_an_unaided_success():
    seeds = {replace(KEY, attempt=attempt).turn_seed(0) for attempt in range(3)}

    def draft(sampling):
        return "+a;" if sampling.seed in seeds else "+b;"

    group, _, _ = collect(GRPOConfig(group_size=3, extra_attempts=2), draft=draft)
    rescued, _, _ = collect(RTIConfig(group_size=3, attempts=2))
    assert sorted(group.rewards) == [0.0, 0.0, 1.0]
    assert {member.origin for member in group.members} == {Origin.ROOT}
    assert [m.replaced is None for m in group.members] == [m.replaced is None for m in rescued.members]
    assert len(group.extra) == 1


def test_flagged_drafts_that_stand_can_be_silenced():
    turns = (
        make_turn(InterventionOutcome.GATE_REJECTED, start=1, end=2),
        make_turn(InterventionOutcome.VALID, start=2, end=3),
    )
    trajectory = make_trajectory(1.0, turns=turns)
    assert discount_flagged(trajectory, weight=0.0).weights == (1.0, 0.0, 1.0)
    assert discount_flagged(trajectory, weight=1.0) == trajectory


def make_group(*members, extra=()):
    return Group(group_id="g", task_id=TASK.task_id, members=members, extra=extra)


def test_statistics_are_table_six():
    sizes = {
        "draft_tool_calls": 3,
        "draft_characters": 30,
        "corrected_tool_calls": 1,
        "corrected_characters": 10,
        "perplexity": 2.0,
        "min_token_logprob": -4.0,
    }
    failed = make_trajectory(0.0)
    rescued = make_trajectory(
        1.0,
        turns=(
            make_turn(InterventionOutcome.ACCEPTED, start=1, end=2, **sizes),
            make_turn(InterventionOutcome.LEAK, start=2, end=3),
        ),
        source=TokenSource.INTERVENTION,
        weights=(1.0, 1.2, 1.1),
    )
    lost = make_trajectory(
        0.0,
        turns=(
            make_turn(InterventionOutcome.ACCEPTED, start=1, end=2, **{**sizes, "draft_characters": 50}),
            make_turn(InterventionOutcome.ACCEPTED, start=2, end=3, **{**sizes, "perplexity": 4.0}),
        ),
    )
    lucky = make_trajectory(1.0, turns=(make_turn(InterventionOutcome.VALID),))
    plain = make_group(Member(trajectory=make_trajectory(1.0)), Member(trajectory=failed))
    saved = make_group(
        Member(trajectory=rescued, origin=Origin.INTERVENED, replaced=failed),
        Member(trajectory=failed),
        extra=(lost, lucky),
    )
    numbers = rti_statistics([plain, saved], epsilon_cal=0.2)
    assert (numbers.num_groups, numbers.num_groups_triggered, numbers.num_groups_rescued) == (2, 1, 1)
    assert (numbers.num_steps, numbers.num_flagged) == (5, 4)
    assert (numbers.outcomes["accepted"], numbers.outcomes["leak"], numbers.outcomes["gate_rejected"]) == (3, 1, 0)
    assert (numbers.num_intervened, numbers.num_intervened_with_accepted, numbers.num_lucky_successes) == (3, 2, 1)
    assert (numbers.original_tool_calls_per_step, numbers.corrected_tool_calls_per_step) == (3.0, 1.0)
    assert numbers.original_characters_per_step == pytest.approx(110 / 3)
    assert (numbers.original_characters_per_trajectory, numbers.corrected_characters_per_trajectory) == (55.0, 15.0)
    assert numbers.flagged_but_kept_fraction == 0.5
    assert (numbers.accepted_perplexity_mean, numbers.min_token_logprob) == (2.0, -4.0)
    assert numbers.weight_clip_fraction == 0.5
    assert (numbers.pass_at_group_before, numbers.pass_at_group_after) == (0.5, 1.0)
    assert numbers.metrics()["intervention/outcome/leak"] == 1.0


def test_statistics_of_nothing_are_none_and_not_zero():
    numbers = rti_statistics([])
    assert numbers.accepted_perplexity_mean is None
    assert "intervention/accepted_perplexity_mean" not in numbers.metrics()


def test_the_first_turns_net_weight_is_negative_where_the_rescued_rollout_is_longer():
    # The shared first turn is one token; the rescued rollout has 4 trained tokens, the failed one 2.
    rescued = make_trajectory(1.0, num_policy=4, turns=(make_turn(InterventionOutcome.VALID, start=1, end=2),))
    failed = make_trajectory(0.0, turns=(make_turn(None, start=1, end=2),))
    group = make_group(Member(trajectory=rescued, origin=Origin.INTERVENED, replaced=failed), Member(trajectory=failed))
    assert net_first_turn_weight(group, [1.0, -1.0]) == pytest.approx(1 / 4 - 1 / 2)
