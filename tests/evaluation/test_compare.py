import json

import pytest
from tests.evaluation.synthetic_run import write_run

from midcourse.errors import DataError
from midcourse.evaluation.compare import compare_runs, policy_and_role_tokens
from midcourse.recording.writer import RecordingConfig, RunWriter


def estimate(value):
    return {"value": value, "low": value, "high": value, "num_tasks": 4, "num_short_tasks": 0}


def write_curve(folder, *, method, seed, tokens, points):
    """One update a second, `tokens` an update; `points` is {update: pass@1}."""
    config = f'seed = {seed}\n[method]\nname = "{method}"\n'
    with RunWriter(folder, RecordingConfig(tensorboard=False), resolved_config=config) as writer:
        for update in range(max(points) + 1):
            if update:
                writer.write_metrics(
                    update, {"rollout/tokens/policy": tokens, "rollout/tokens/validator": tokens, "time/update": 1.0}
                )
            if update in points:
                sheet = {"pass_at": {"1": estimate(points[update])}, "pass_hat": {"1": estimate(points[update])}}
                writer.write_evaluation(update, {"splits": {"test": sheet}, "tags": {}})
    return folder


def score(comparison, unit, label):
    return comparison.at_equal[unit]["scores"][label]["test"]["pass@1"]


def test_equal_tokens_compare_what_each_run_had_reached_by_then(tmp_path):
    plain = write_curve(tmp_path / "a", method="grpo", seed=0, tokens=10, points={0: 0.0, 2: 0.2, 4: 0.4})
    costly = write_curve(tmp_path / "b", method="rti", seed=0, tokens=20, points={0: 0.0, 2: 0.6, 4: 0.8})
    comparison = compare_runs([plain, costly])
    # grpo ends at 4 updates x 20 tokens = 80; rti has 80 after its second update
    assert comparison.at_equal["tokens"]["budget"] == 80
    assert score(comparison, "tokens", "grpo") == [0.4, 0.4, 0.4]
    assert score(comparison, "tokens", "rti") == [0.6, 0.6, 0.6]
    assert score(comparison, "updates", "rti") == [0.8, 0.8, 0.8]


def test_a_longer_run_is_judged_at_the_shorter_runs_budget(tmp_path):
    short = write_curve(tmp_path / "a", method="grpo", seed=0, tokens=1, points={0: 0.0, 2: 0.5})
    long = write_curve(tmp_path / "b", method="rti", seed=0, tokens=1, points={0: 0.0, 1: 0.25, 3: 1.0})
    comparison = compare_runs([short, long])
    assert comparison.at_equal["seconds"]["budget"] == 2.0
    assert score(comparison, "seconds", "rti") == [0.25, 0.25, 0.25]


def test_seeds_of_one_method_share_a_label_and_give_a_range(tmp_path):
    folders = [
        write_curve(tmp_path / str(seed), method="rti", seed=seed, tokens=1, points={1: value})
        for seed, value in enumerate((0.25, 0.75))
    ]
    comparison = compare_runs(folders)
    assert list(comparison.by_label()) == ["rti"]
    assert score(comparison, "updates", "rti") == [0.5, 0.25, 0.75]


def test_runs_of_one_method_with_other_settings_get_other_labels(tmp_path):
    for delta in (3, 5):
        config = f'seed = 0\n[method]\nname = "rti"\ndelta = {delta}\n'
        RunWriter(tmp_path / str(delta), RecordingConfig(tensorboard=False), resolved_config=config).close()
    labels = [run.label for run in compare_runs([tmp_path / "3", tmp_path / "5"]).runs]
    assert labels == ["rti (delta=3)", "rti (delta=5)"]


def test_a_run_without_evaluation_leaves_the_comparison_at_equal_cost_empty(tmp_path):
    RunWriter(tmp_path, RecordingConfig(tensorboard=False), resolved_config="").close()
    comparison = compare_runs([tmp_path])
    assert comparison.at_equal["tokens"] == {"budget": None, "scores": {}}
    assert "unknown" in comparison.table()


def test_costs_of_roles_are_told_from_those_of_the_policy(tmp_path):
    run = compare_runs([write_curve(tmp_path, method="rti", seed=0, tokens=10, points={3: 0.5})]).runs[0]
    assert run.tokens_by_role == {"policy": 30, "validator": 30}
    assert run.seconds == 3.0


def test_costs_are_multiples_of_the_first_grpo_runs(tmp_path):
    costly = write_curve(tmp_path / "rti", method="rti", seed=0, tokens=30, points={2: 0.5})
    plain = write_curve(tmp_path / "grpo", method="grpo", seed=0, tokens=10, points={2: 0.5})
    comparison = compare_runs([costly, plain])
    assert comparison.cost_baseline == str(plain)
    assert comparison.to_dict()["cost_ratios"][str(costly)]["generated_tokens"] == 3.0
    table = comparison.cost_tables()
    assert "| validator | 30 | 0 | 0 | 0.0 |" in table
    assert "| all, over grpo, seed 0's | 3.00 x | - | - | - |" in table
    assert "1.0 s of wall clock, 1.00 x grpo, seed 0's." in table
    assert table.count("all, over") == 1
    assert compare_runs([costly]).cost_ratios[str(costly)]["wall_seconds"] == 1.0


def test_what_the_policy_writes_under_intervention_is_no_roles(tmp_path):
    with RunWriter(tmp_path, RecordingConfig(tensorboard=False), resolved_config="") as writer:
        writer.write_metrics(
            1, {"rollout/tokens/policy": 5, "rollout/tokens/intervened_policy": 3, "rollout/tokens/validator": 2}
        )
    assert policy_and_role_tokens(compare_runs([tmp_path]).runs[0]) == (8, 2)


def test_the_comparison_is_strict_json(tmp_path):
    comparison = compare_runs([write_run(tmp_path / "rti", updates=2)])
    assert json.loads(comparison.to_json())["runs"][0]["method"] == "rti"


def test_comparing_nothing_is_an_error():
    with pytest.raises(DataError, match="at least one"):
        compare_runs([])


def test_a_run_that_is_given_twice_is_an_error_and_no_second_seed(tmp_path):
    folder = write_curve(tmp_path / "a", method="grpo", seed=0, tokens=10, points={0: 0.0})
    with pytest.raises(DataError, match="is given twice"):
        compare_runs([folder, tmp_path / "b" / ".." / "a"])
