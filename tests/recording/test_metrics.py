import pytest
from tests.recording.test_serialization import make_group, make_trajectory

from midcourse.recording.metrics import group_metrics
from midcourse.types import Group, InterventionOutcome, Member


def test_a_rescued_group_failed_before_and_passed_after():
    # members: one rescue (reward 1 for 0) and one that could not be scored; one extra attempt
    metrics = group_metrics([make_group()])
    assert (metrics["group/pass_before"], metrics["group/pass_after"], metrics["group/rescued"]) == (0.0, 1.0, 1.0)
    assert metrics["group/frac_all_fail"] == 1.0
    assert (metrics["reward/mean_before"], metrics["reward/mean"]) == (0.0, 1.0)


def test_failures_are_counted_by_kind_and_leave_the_mean():
    metrics = group_metrics([make_group()])
    assert metrics["rollout/errors/environment_timeout"] == 1.0
    assert metrics["rollout/count"] == 4.0


def test_an_unscored_group_leaves_the_fractions_and_is_counted():
    failed = make_group().members[1]
    metrics = group_metrics([Group(group_id="g", task_id="t1", members=(failed,))])
    assert metrics["group/unscored"] == 1.0
    assert "group/pass_before" not in metrics
    assert "reward/mean" not in metrics


def test_turns_and_tokens_are_those_of_the_members():
    members = (
        Member(trajectory=make_trajectory()),
        Member(trajectory=make_trajectory(turns=make_trajectory().turns * 8)),
    )
    metrics = group_metrics([Group(group_id="g", task_id="t1", members=members)])
    assert (metrics["turns/1"], metrics["turns/more"], metrics["rollout/turns/mean"]) == (0.5, 0.5, 4.5)
    assert (metrics["tokens/prompt"], metrics["tokens/policy"], metrics["tokens/intervention"]) == (4.0, 2.0, 2.0)
    assert metrics["group/members"] == 2.0


def test_costs_add_over_groups_by_role():
    metrics = group_metrics([make_group(), make_group()])
    assert (metrics["rollout/tokens/policy"], metrics["rollout/tokens/validator"]) == (40.0, 14.0)


@pytest.mark.parametrize("outcome", list(InterventionOutcome))
def test_every_outcome_has_a_count(outcome):
    # make_group holds four trajectories of one accepted step each
    expected = 4.0 if outcome is InterventionOutcome.ACCEPTED else 0.0
    assert group_metrics([make_group()])[f"intervention/outcome/{outcome.value}"] == expected


def test_no_groups_give_counts_of_nothing():
    assert group_metrics([])["group/count"] == 0.0
