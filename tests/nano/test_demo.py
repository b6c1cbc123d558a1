import json
import os
import signal
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from midcourse.config import build_config
from midcourse.nano.demo import (
    DemoError,
    demo_settings,
    ended_by_sigterm,
    read_result,
    read_start,
    run_demo,
    score_table,
)


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def sheet(value: float) -> dict:
    estimate = {"value": value}
    return {"pass_at": {"1": estimate, "4": estimate}, "pass_hat": {"4": estimate}}


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("rti", ["grpo", "rti"]),
        ("mintrl", ["grpo", "mintrl-proxy", "mintrl-const"]),
        ("rail", ["grpo-32", "rail"]),
        ("arpo", ["grpo-16", "arpo"]),
        ("aepo", ["grpo-16", "aepo"]),
        ("vip", ["grpo-16", "vip"]),
        ("tampo", ["grpo-16", "tampo"]),
        ("tree_grpo", ["grpo-6", "tree_grpo"]),
    ],
)
def test_methods_are_compared_under_the_same_settings(method, names):
    settings = demo_settings(method, seed=3, updates=10, output=Path("out"))
    assert list(settings) == names
    configs = [build_config(values) for values in settings.values()]
    first, *others = (config.model_dump(exclude={"method", "output"}) for config in configs)
    assert all(other == first for other in others)
    assert len({config.method.group_size for config in configs}) == 1


def test_the_two_anchors_of_mintrl_are_shown():
    settings = demo_settings("mintrl", seed=0, updates=4, output=Path("out"))
    assert settings["mintrl-proxy"]["method"]["regression"]["anchor"] == "proxy"
    assert settings["mintrl-const"]["method"]["regression"]["anchor"] == "const"


def test_a_result_is_the_last_evaluation_and_the_sum_of_the_costs(tmp_path):
    scores = [0.1, 0.6]
    write_lines(
        tmp_path / "evaluations.jsonl",
        [
            {"tags": {"test/easy": sheet(1.0), "test/hard": sheet(value)}, "splits": {"ood": sheet(0.0)}}
            for value in scores
        ],
    )
    line = {
        "rollout/count": 64.0,
        "rollout/tokens/policy": 100.0,
        "rollout/tokens/validator": 10.0,
        "rollout/scored_tokens/gate": 5.0,
        "rollout/prompt_tokens/policy": 1000.0,
        "time/rollout": 2.0,
        "time/update": 0.5,
    }
    write_lines(tmp_path / "metrics.jsonl", [line, line])
    result = read_result(tmp_path)
    assert result["hard"] == {"pass@1": 0.6, "pass@4": 0.6, "pass^4": 0.6}
    assert result["ood"]["pass@1"] == 0.0
    assert (result["rollouts"], result["tokens"], result["seconds"]) == (128, 230, 5.0)


def test_the_table_tells_the_start_and_cuts_no_name_at_eighty_columns(tmp_path):
    write_lines(
        tmp_path / "evaluations.jsonl",
        [{"tags": {"test/easy": sheet(1.0), "test/hard": sheet(value)}, "splits": {}} for value in (0.1, 0.6)],
    )
    result = {**read_result(tmp_path), "rollouts": 123456, "tokens": 1234567, "seconds": 1234.5}
    console = Console(file=StringIO(), width=80)
    console.print(score_table({"mintrl-proxy": result, "mintrl-const": result}, read_start(tmp_path)))
    start, proxy, const = [line.split() for line in console.file.getvalue().splitlines() if "%" in line]
    assert start[:7] == ["at", "the", "start", "100.0", "%", "10.0", "%"]
    assert [proxy[0], const[0]] == ["mintrl-proxy", "mintrl-const"]
    assert proxy[3:5] == ["60.0", "%"]
    assert proxy[-3:] == ["123456", "1234567", "1234.5"]


def test_a_run_that_was_never_scored_is_told(tmp_path):
    with pytest.raises(DemoError, match="no evaluation"):
        read_result(tmp_path)


def test_an_output_that_is_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoError, match=r"grpo-0\.toml cannot be written"):
        run_demo("grpo", seed=0, updates=1, output=tmp_path / "file")


def test_a_termination_signal_ends_the_demo_in_order_and_the_handler_goes_with_it():
    before = signal.getsignal(signal.SIGTERM)
    ended = []

    def stopped() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            ended.append(True)

    with ended_by_sigterm(), pytest.raises(SystemExit) as found:
        stopped()
    assert found.value.code == 143
    assert ended
    assert signal.getsignal(signal.SIGTERM) is before
