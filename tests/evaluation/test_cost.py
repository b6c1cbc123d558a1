import pytest

from midcourse.evaluation.cost import update_cost, wall_clock_parts

LINES = [
    {
        "rollout/tokens/policy": 100.0,
        "rollout/tokens/intervened_policy": 40.0,
        "rollout/tokens/validator": 20.0,
        "rollout/scored_tokens/gate": 6.0,
        "rollout/scored_tokens/calibration": 4.0,
        "rollout/prompt_tokens/policy": 500.0,
        "rollout/prompt_tokens/gate": 50.0,
        "rollout/prompt_tokens/calibration": 70.0,
        "time/rollout/policy": 8.0,
        "time/rollout/gate": 1.0,
        "time/rollout": 3.0,
        "time/update": 1.0,
        "time/engine/prompt_tokens": 600.0,
        "time/engine/prompt_tokens_reused": 450.0,
    },
    {"rollout/tokens/policy": 60.0, "rollout/prompt_tokens/policy": 300.0, "time/rollout": 1.0, "time/update": 1.0},
]


def test_costs_are_means_over_updates_and_both_scorings_are_the_gates():
    cost = update_cost(LINES)
    assert list(cost.roles) == ["policy", "intervened_policy", "validator", "gate"]
    assert (cost.roles["policy"].generated_tokens, cost.roles["policy"].awaited_seconds) == (80.0, 4.0)
    assert (cost.roles["gate"].scored_tokens, cost.roles["gate"].prompt_tokens) == (5.0, 60.0)
    assert (cost.total.generated_tokens, cost.total.prompt_tokens) == (110.0, 460.0)
    assert cost.wall_seconds == 3.0


def test_the_share_of_reused_prompt_tokens_is_that_of_what_the_engine_counted():
    # the second update came from the journal: its 300 prompt tokens were asked of an engine that is gone
    assert update_cost(LINES).prompt_reused_fraction == 0.75
    assert update_cost(LINES[1:]).prompt_reused_fraction is None


def test_a_role_of_another_method_has_a_row_of_its_own_after_the_known_ones():
    lines = [{"rollout/tokens/critic": 3.0, "rollout/tokens/verifier": 2.0}]
    assert list(update_cost(lines).roles) == ["verifier", "critic"]


def test_ratios_are_of_totals_and_none_where_the_baseline_has_nothing():
    ratios = update_cost(LINES).ratios(update_cost(LINES[1:]))
    assert ratios["generated_tokens"] == pytest.approx(110 / 60)
    assert ratios["wall_seconds"] == 1.5
    assert ratios["scored_tokens"] is None


def test_a_run_without_updates_costs_nothing():
    cost = update_cost([])
    assert (cost.roles, cost.total.generated_tokens, cost.wall_seconds) == ({}, 0.0, 0.0)


def test_the_rollouts_wall_clock_is_shared_out_by_who_was_waited_for():
    # (3 + 1) / 2 seconds of rollout, of 9 awaited seconds 8 for the policy
    assert wall_clock_parts(LINES) == pytest.approx(
        {"update of the weights": 1.0, "rollout: policy": 16 / 9, "rollout: gate scoring": 2 / 9}
    )


def test_a_rollout_whose_requests_were_not_timed_is_one_part():
    assert wall_clock_parts(LINES[1:]) == {"update of the weights": 1.0, "rollout": 1.0}
    assert wall_clock_parts([]) == {}
