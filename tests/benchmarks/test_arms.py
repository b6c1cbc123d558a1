import json
from pathlib import Path

import pytest
from benchmarks.arms import over_seeds, point_within

from benchmarks import arithmetic, intervention_intensity, navigation
from midcourse.config import build_config
from midcourse.evaluation.compare import CurvePoint

FOLDER = Path("unused")


@pytest.fixture(autouse=True)
def no_pilot(monkeypatch):
    """A pilot rolls out for a minute; which number it finds changes nothing here."""
    for module in (arithmetic, intervention_intensity):
        monkeypatch.setattr(module, "calibrated_kappa", lambda played_by: -0.125)


@pytest.mark.parametrize("benchmark", [arithmetic, intervention_intensity, navigation])
def test_arms_differ_in_their_method_alone(benchmark):
    configs = [build_config(benchmark.arm_settings(arm, seed=1, updates=6, folder=FOLDER)) for arm in benchmark.ARMS]
    first, *others = (
        config.model_dump(exclude={"method": True, "environment": {"private_answer"}}) for config in configs
    )
    assert all(other == first for other in others)
    assert len({json.dumps(config.model_dump(mode="json")["method"]) for config in configs}) == len(configs)
    assert len({config.method.group_size for config in configs}) == 1


def test_the_const_anchor_is_calibrated_and_proxy_needs_none():
    settings = arithmetic.arm_settings("mintrl-const-self", seed=0, updates=1, folder=FOLDER)
    assert settings["method"]["regression"]["kappa"] == -0.125
    settings = arithmetic.arm_settings("mintrl-proxy-self", seed=0, updates=1, folder=FOLDER)
    assert settings["method"]["regression"]["kappa"] == 0.0  # not asked for: the pilot is not run


def test_a_point_is_the_last_within_the_budget():
    curve = [
        CurvePoint(update=update, seconds=10.0 * update, tokens=100.0 * update, splits={}, tags={})
        for update in (0, 6, 12)
    ]
    assert point_within(curve, "updates", 6).update == 6
    assert point_within(curve, "seconds", 119.0).update == 6
    assert point_within(curve, "tokens", 1200).update == 12


def test_seeds_are_summed_up_as_mean_least_and_greatest():
    found = over_seeds([{"hard pass@1": 0.2}, {"hard pass@1": 0.5}, {"hard pass@1": 0.2}])
    assert found["hard pass@1"] == pytest.approx({"mean": 0.3, "min": 0.2, "max": 0.5})


def test_the_gain_of_intervention_is_over_the_control_of_the_same_seed(tmp_path):
    for arm, seed, success, fraction in (("reviews-0", 0, 0.1, None), ("reviews-4-length-8", 0, 0.35, 0.04)):
        folder = tmp_path / f"{arm}-{seed}"
        folder.mkdir()
        sheet = {"pass_at": {"1": {"value": success}, "4": {"value": success}}, "pass_hat": {"4": {"value": success}}}
        (folder / "evaluations.jsonl").write_text(json.dumps({"tags": {"test/hard": sheet}, "splits": {}}) + "\n")
        line = {"update": 1, "rollout/count": 16.0, "time/rollout": 1.0, "time/update": 1.0}
        lines = [line, line] if fraction is None else [{**line, "intervention/token_fraction_semi": fraction}, line]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines))
    control, arm = intervention_intensity.points(tmp_path, ["reviews-0", "reviews-4-length-8"], [0])
    assert (control["gain"], control["token_fraction"]) == (0.0, 0.0)
    assert arm["gain"] == pytest.approx(0.25)
    assert arm["token_fraction"] == pytest.approx(0.02)  # the second update had no intervention
    intervention_intensity.draw([control, arm], tmp_path / "intensity.png")
    assert (tmp_path / "intensity.png").stat().st_size > 1000
