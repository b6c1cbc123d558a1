import itertools
import math
from dataclasses import replace

import numpy
import pytest
from pydantic import ValidationError
from tests.interventions.scripted_world import TASK, PressOracle
from tests.methods.rail_world import (
    LIVE,
    SHADOW,
    WINNERS,
    actions,
    begun,
    collect,
    engine_of,
    favour,
    make_config,
    press,
    scalars,
    shadow,
)
from tests.rollout.branch_world import VOCABULARY, SeededWorld

from midcourse.branching.actions import REGIMES, ActionSpaceConfig, Regime
from midcourse.branching.promotion import PromotionConfig
from midcourse.errors import ConfigError
from midcourse.interventions.pipeline import InterventionConfig
from midcourse.methods.rail import RAILConfig
from midcourse.types import FailureKind, Group, InterventionOutcome, Member, Origin, TokenSource

# the shadow phase, worked by hand
#
# pool of 4, one success: mean 1/4, the last third: aggressive. Most uncertain: turn 1 of rollout 2, then of 3.
# turn 1 of 2: 4 bring 2 successes (4, 5):  3/8,  d 1/4 -> 1/8, kept;      mean in the middle third: mild
#              8 bring 5 (8 to 12):         8/16, d 1/8 -> 0,   kept;      mild
#             12 bring none (16 to 27):     8/28, d 0 -> 3/14,   rejected
# turn 1 of 3: 4 bring 2 (28, 29):         10/20, d 0 -> 0,      a tie: rejected; the budget of 32 is spent


def test_the_shadow_rule_branches_as_worked_by_hand():
    _, group = shadow()
    assert actions(group) == [
        *((2, 1, 4, "aggressive"), (2, 1, 8, "mild"), (2, 1, 12, "mild"), (3, 1, 4, "mild")),
    ]
    assert [record.is_kept for record in group.branches] == [True, True, False, False]
    assert [record.rollouts for record in group.branches] == [
        *(tuple(range(4, 8)), tuple(range(8, 16)), tuple(range(12)), tuple(range(12, 16)))
    ]
    gains = [1 / 8 - 0.05 * 4 / 12, 1 / 8 - 0.05 * 8 / 12, -3 / 14 - 0.05, -0.05 * 4 / 12]
    assert [record.gained for record in group.branches] == pytest.approx(gains, abs=1e-12)
    assert [record.temperature for record in group.branches] == pytest.approx([0.8 * 1.3, 0.8, 0.8, 0.8])
    assert [record.cell for record in group.branches] == [2, 4, 7, 1]
    assert {record.rule for record in group.branches} == {"warm_up"}
    assert [record.is_first_trial for record in group.branches] == [True, False, False, True]
    assert len(group.members) == 16
    assert len(group.extra) == 16
    assert [member.origin for member in group.members] == [Origin.ROOT] * 4 + [Origin.BRANCH] * 12
    assert group.rewards == [float(attempt in WINNERS) for attempt in range(16)]
    assert all(branch.failure is None for branch in group.extra)


def test_a_branch_holds_what_its_parent_wrote_before_the_turn():
    _, group = shadow()
    for record in group.branches:
        parent = group.members[record.parent].trajectory
        drawn = [group.members[i].trajectory if record.is_kept else group.extra[i] for i in record.rollouts]
        at = parent.turns[1].start
        assert {branch.token_ids[:at] for branch in drawn} == {parent.token_ids[:at]}


def test_the_state_before_each_trial_is_that_of_the_pool_as_it_stood():
    _, group = shadow()
    states = list(map(scalars, group.branches))
    assert [state["reward_mean"] for state in states] == [1 / 4, 3 / 8, 1 / 2, 1 / 2]
    assert [state["distance_to_half"] for state in states] == [1 / 4, 1 / 8, 0, 0]
    assert [state["budget_used_fraction"] for state in states] == [4 / 32, 8 / 32, 16 / 32, 28 / 32]
    assert [state["failed_anchors"] for state in states] == [0.0] * 4  # the first anchor brought something
    assert [state["anchor_entropy"] for state in states] == pytest.approx(
        [entropy / math.log(VOCABULARY) for entropy in (3.0, 3.0, 3.0, 2.5)]
    )
    assert {state["anchor_round"] for state in states} == {1 / 5}
    assert {state["anchor_round_fraction"] for state in states} == {1 / 3}


def test_what_as_many_rollouts_from_the_start_would_bring_is_written_beside_the_gain():
    _, group = shadow()
    # One success, three failures, four draws: the new successes are beta-binomial, 35 40 30 16 5 of 126.
    expected = (35 * 3 / 8 + 40 * 1 / 4 + 30 * 1 / 8 + 16 * 0 + 5 * 1 / 8) / 126
    assert group.branches[0].chance == pytest.approx(1 / 4 - expected - 0.05 * 4 / 12, abs=1e-12)


@pytest.mark.parametrize(
    ("budget", "drawn"), [(4, []), (5, [1]), (8, [4]), (10, [4, 2]), (31, [4, 8, 12, 3]), (40, [4, 8, 12, 4])]
)
def test_the_budget_is_used_to_the_last_rollout_and_never_overdrawn(budget, drawn):
    method, group = shadow(rollout_budget=budget)
    assert [len(record.rollouts) for record in group.branches] == drawn
    assert len(group.members) + len(group.extra) == 4 + sum(drawn) <= budget
    for record in group.branches:
        # A clamped branch keeps its cell, and is encoded as it was run.
        assert record.cell is not None
        assert len(record.rollouts) <= method.space.cells[record.cell].rollouts


def test_an_anchor_where_nothing_was_gained_counts_as_failed():
    # Nobody succeeds after the roots: every first trial is rejected.
    engine = engine_of(lambda attempt, turn: press(attempt if attempt < 4 else 0, turn))
    group, _ = collect(begun(make_config(shadow_anchors=3)), engine=engine)
    assert [(record.parent, record.turn) for record in group.branches] == [(2, 1), (3, 1), (0, 1)]
    assert [scalars(record)["failed_anchors"] for record in group.branches] == pytest.approx([0, 1 / 5, 2 / 6])


def test_a_prediction_does_not_know_what_came_of_it():
    ends = {"won": lambda keys: 1.0, "lost": lambda keys: 0.0}
    found = {}
    for name, of_branches in ends.items():
        judged = itertools.count()

        def judge(keys, judged=judged, of_branches=of_branches):
            return float(keys.endswith("b")) if next(judged) < 4 else of_branches(keys)

        method = favour(begun(make_config(shadow_anchors=1)), anchor_entropy=0.3, reward_mean=-0.2, bias=0.05)
        found[name] = collect(method, world=SeededWorld(judge=judge))[0].branches
    assert found["won"][0].predicted == found["lost"][0].predicted
    assert found["won"][0].gained != found["lost"][0].gained
    first = found["won"][0]
    assert first.predicted == pytest.approx(0.3 * first.scalars[0] - 0.2 / 4 + 0.05, abs=1e-12)


def test_all_of_a_task_are_roots_where_every_rollout_failed():
    def broken(keys):
        raise RuntimeError("judge down")

    for phase in (SHADOW, LIVE):
        method = favour(begun(make_config(phase)), bias=1.0)
        group, engine = collect(method, world=SeededWorld(judge=broken))
        assert (group.branches, group.decisions, len(group.members)) == ((), 0, 4)
        assert sum(request.sampling is not None for request in engine.requests) == 8
        assert method.advantages(group) == [None] * 4
        assert method.learn([group], update=2)["intervention/controller/decisions"] == 0


@pytest.mark.parametrize("phase", [SHADOW, LIVE])
def test_a_prompt_that_is_too_long_fails_its_rollouts_and_not_the_run(phase):
    group, engine = collect(begun(make_config(phase)), engine=engine_of(context_length=len("[find it]") - 1))
    assert [member.trajectory.failure for member in group.members] == [FailureKind.PROMPT_TOO_LONG] * 4
    assert (group.branches, group.task_embedding, engine.requests) == ((), (), [])


def test_one_reward_is_enough_to_branch():
    def judge(keys):
        if keys.endswith("a"):
            raise RuntimeError("judge down")
        return 1.0

    method = begun(make_config(shadow_anchors=1))
    group, _ = collect(method, world=SeededWorld(judge=judge))
    # Failures are no rewards of 0: the pool is solved, exploit; two more successes leave it so.
    assert actions(group) == [(2, 1, 4, "exploit")]
    assert group.branches[0].gained == pytest.approx(-0.05 * 4 / 12)
    assert not group.branches[0].is_kept


def test_a_branch_without_any_reward_is_rejected_and_no_trace():
    judged = itertools.count()

    def judge(keys):
        if next(judged) >= 4:
            raise RuntimeError("judge down")
        return float(keys.endswith("b"))

    method = begun(make_config(shadow_anchors=1))
    group, _ = collect(method, world=SeededWorld(judge=judge))
    (record,) = group.branches
    assert (record.gained, record.is_kept) == (None, False)
    assert record.predicted is not None
    method.learn([group], update=2)
    assert len(method.controller.traces) == 0


def test_what_was_rejected_can_be_trained_on_too():
    _, plain = shadow()
    method, group = shadow(train_on_rejected=True)
    assert (len(group.members), group.extra) == (32, ())
    assert [m.trajectory for m in group.members] == [m.trajectory for m in plain.members] + list(plain.extra)
    assert {member.origin for member in group.members[4:]} == {Origin.BRANCH}
    for record, before in zip(group.branches, plain.branches, strict=True):
        told = plain.members if before.is_kept else [Member(trajectory=extra) for extra in plain.extra]
        expected = [told[place].trajectory for place in before.rollouts]
        assert [group.members[place].trajectory for place in record.rollouts] == expected
        assert replace(record, rollouts=()) == replace(before, rollouts=())
    # 10 of 32: the mean is 5/16, a success is worth (11/16) / sqrt(5/16 * 11/16)
    advantages = method.advantages(group)
    assert max(advantages) == pytest.approx(math.sqrt(11 / 5), rel=1e-4)
    assert min(advantages) == pytest.approx(-math.sqrt(5 / 11), rel=1e-4)


# corrections as a regime


class OracleWorld(SeededWorld):
    """Has somebody who knows the key."""

    def scripted_roles(self):
        return PressOracle()


REPAIRING = {
    "space": ActionSpaceConfig(branch_counts=(2, 4), regimes=("exploit", "repair")),
    "repair": InterventionConfig(roles={"played_by": "scripted"}),
}


def test_repair_goes_through_the_corrections_of_rti():
    engine = engine_of(lambda attempt, turn: press(0, turn))  # nobody ever succeeds alone
    method = begun(make_config(shadow_anchors=1, rollout_budget=6, **REPAIRING))
    group, _ = collect(method, engine=engine, world=OracleWorld())
    first = group.branches[0]
    assert (first.regime, first.is_kept, first.temperature) == ("repair", True, 0.8)
    assert group.rewards == [0.0] * 4 + [1.0] * 2
    for place in first.rollouts:
        branch = group.members[place].trajectory
        assert branch.accepted_interventions == 1
        assert branch.turns[-1].intervention.outcome is InterventionOutcome.ACCEPTED
        written = {branch.sources[position] for position in range(branch.turns[-1].start, branch.turns[-1].end)}
        assert written == {TokenSource.INTERVENTION}
        assert len(branch.turns) == first.turn + 1
    assert {"policy", "repaired_branch", "gate", "calibration"} <= {
        *group.cost.generated_tokens,
        *group.cost.scored_tokens,
    }
    assert "branch" not in group.cost.generated_tokens


def test_only_the_regime_that_repairs_corrects():
    method = favour(begun(make_config(LIVE, rollout_budget=6, **REPAIRING)), exploit=1.0, bias=-0.5, rollouts=-0.5)
    group, _ = collect(method, world=OracleWorld())
    assert [record.regime for record in group.branches] == ["exploit"]
    assert all(turn.intervention is None for member in group.members for turn in member.trajectory.turns)
    assert set(group.cost.generated_tokens) == {"policy", "branch"}


# settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_budget": 3}, r"rollout_budget must be at least initial_rollouts = 4: got 3"),
        ({"space": REPAIRING["space"]}, r"repair: give its settings where .*\['exploit', 'repair'\] and repair = None"),
        ({"repair": {}}, r"repair: give .* only there: got regimes \['exploit', 'mild', 'aggressive'\]"),
        ({"space": {"regimes": ["exploit", "mildly"]}}, "mildly"),
        ({"space": {"branch_counts": [8, 4]}}, r"branch_counts must be positive and increasing: got \[8, 4\]"),
        ({"initial_rollouts": 0}, "initial_rollouts\n.*greater than or equal to 1"),
        ({"controller": {"without_features": ["hiden"]}}, r"without_features: unknown \['hiden'\]; known: .*hidden"),
        ({"exploration": {}}, "exploration\n.*Extra inputs are not permitted"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_was_expected(settings, message):
    with pytest.raises((ValidationError, ConfigError), match=message):
        RAILConfig.model_validate(settings)


def test_a_regime_that_nobody_carries_out_is_named():
    name = "a_regime_of_test_rail"
    REGIMES.register(name)(Regime(name=name, kind="prayer"))
    with pytest.raises(
        ValidationError, match=rf"space.regimes = \['{name}'\]: nobody .* kind prayer; expected sample or repair"
    ):
        RAILConfig(space={"regimes": [name]})


# advantages


def test_advantages_are_those_of_the_grown_group_and_go_with_their_members():
    method, group = shadow()
    advantages = method.advantages(group)
    # 8 of 16 succeed: mean 1/2, deviation 1/2
    assert advantages == pytest.approx([1.0 if reward else -1.0 for reward in group.rewards], rel=1e-4)
    order = numpy.random.default_rng(0).permutation(16)
    shuffled = replace(group, members=tuple(group.members[index] for index in order), branches=())
    assert method.advantages(shuffled) == [advantages[index] for index in order]


def test_groups_differ_in_size_and_each_has_its_own_baseline():
    method, group = shadow()
    small = Group(group_id="s", task_id=TASK.task_id, members=group.members[:5])
    assert method.advantages(small)[3:] == pytest.approx([math.sqrt(3 / 2)] * 2, rel=1e-4)  # 2 of 5 succeed
    assert len(method.advantages(group)) == 16


def test_statistics_count_what_was_branched():
    method, group = shadow()
    found = method.statistics([group, replace(group, branches=(), members=group.members[:4], extra=())])
    expected = {
        "branches": 4,
        "branches_kept": 2,
        "branch_rollouts": 28,
        "rejected_rollouts": 16,
        "groups_unbranched": 1,
        "rollouts_a_task": (32 + 4) / 2,
        "rule/warm_up": 4,
        "action/4_aggressive": 1,
        "action/12_exploit": 0,
        "anchor_turn": 1.0,
        "gain_positive_fraction": 1 / 2,
        "success_initial": 1 / 4,
        "success_branches": 7 / 12,
        "prediction/traces": 4,
        "prediction/majority_agreement": 1 / 2,
    }
    assert {name: found[f"intervention/{name}"] for name in expected} == pytest.approx(expected)
    over = [record.gained - record.chance for record in group.branches]
    assert found["intervention/gain_over_chance"] == pytest.approx(sum(over) / 4)


def test_the_dynamic_rule_promotes_by_skill():
    # The bar of 6 anchors is 0.5 + 2 sqrt(0.25 / 6) = 0.908, so all six must be right; the seventh update is live.
    by_skill = PromotionConfig(rule="dynamic", window=6, patience=1, min_anchors=6, cap_updates=50)
    method = begun(make_config(promotion=by_skill, shadow_anchors=1), update=1)
    lived = []
    for update in range(1, 8):
        method.begin_update(update, [TASK])
        favour(method, bias=1.0)  # says yes, and the first trial does gain
        group, _ = collect(method)
        lived.append(method.learn([group], update=update)["intervention/controller/is_live"])
    assert lived == [0] * 6 + [1]
    assert (method.promotion.promoted_at, method.promotion.reason) == (7, "skill")
