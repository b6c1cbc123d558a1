"""Commands: what they print, and what a user's mistake looks like. Nothing here trains."""

import asyncio
import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import midcourse
from midcourse.cli import app, main
from midcourse.commands.console import print_json
from midcourse.commands.loading import load_settings
from midcourse.config import default_config, load_config, register_all
from midcourse.doctor import Status, examine
from midcourse.errors import ConfigError
from midcourse.methods.base import METHODS
from midcourse.runs import audit_leaks, collect_groups, locate_checkpoint

register_all()

SMALL = ("--set", "rollout.max_turn_tokens=48", "--set", "method.roles.max_tokens=64")
"""Lengths that fit the built-in policy's context."""
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example(command, capsys):
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert f"midcourse {command}" in out


def test_the_version_is_the_packages(capsys):
    assert run(capsys, "version") == (0, midcourse.__version__ + "\n", "")
    assert json.loads(run(capsys, "version", "--json")[1]) == {"version": midcourse.__version__}


def test_list_names_every_method_with_a_description(capsys):
    found = json.loads(run(capsys, "list", "--json")[1])
    assert sorted(found["method"]) == METHODS.names()
    assert all(line for names in found.values() for line in names.values())
    shown = run(capsys, "list")[1]
    assert all(name in shown for name in METHODS.names())


@pytest.mark.parametrize("method", METHODS.names())
def test_init_writes_a_file_that_loads_and_never_overwrites(method, capsys, tmp_path):
    path = tmp_path / "run.toml"
    assert run(capsys, "init", "--method", method, "--output", str(path))[0] == 0
    assert load_config(path) == default_config(method)
    path.write_text("seed = 3\n", encoding="utf-8")
    status, _, err = run(capsys, "init", "--method", method, "--output", str(path))
    assert (status, path.read_text(encoding="utf-8")) == (2, "seed = 3\n")
    assert "exists" in err


def test_init_writes_the_file_of_the_world_and_the_model_that_are_named(capsys, tmp_path):
    given = ["environment.name=code", "policy.path=folder", "policy.chat=chatml"]
    status, out, _ = run(capsys, "init", "--method", "mintrl", *(word for pair in given for word in ("--set", pair)))
    assert status == 0
    (tmp_path / "run.toml").write_text(out, encoding="utf-8")
    assert load_config(tmp_path / "run.toml") == default_config("mintrl", given)
    assert "but for what --set gave" in out


@pytest.mark.parametrize(("method", "role"), [("mintrl", "judge"), ("rti", "validator"), ("grpo", None)])
def test_init_names_a_role_that_the_method_can_leave_to_a_server(method, role, capsys):
    out = run(capsys, "init", "--method", method)[1]
    assert re.findall(r"\[role_engines\.(\w+)\]", out) == ([role] if role else [])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "missing.toml"], "missing.toml: cannot be read"),
        (["train", "{file}", "--set", "training.max_steps=3"], "did you mean training.updates?"),
        (["train", "{file}", "--set", "method.name=grop"], "did you mean 'grpo'?"),
        (["rollout", "{file}", "--set", "rollout.temperature=hot"], "expected a valid number"),
        (["eval", "{folder}"], "is neither a run folder"),
        (["report", "{folder}"], "is no run folder"),
        (["audit", "missing.toml"], "missing.toml: cannot be read"),
        (["audit", "{folder}"], "is neither a run folder"),
        (["compare", "{folder}"], "is no run folder"),
        (["demo", "--method", "rtii"], "did you mean 'rti'?"),
        (["init", "--method", "rtii"], "did you mean 'rti'?"),
        (["init", "--reference", "--method", "rti"], "expected no --method and no --nano with it"),
        (["init", "--reference", "--nano"], "expected no --method and no --nano with it"),
        (["init", "--reference", "--set", "seed=1"], "nor --set"),
        (["init", "--nano", "--set", "seed=1"], "expected no --set with it"),
        (["init", "--set", "environment.name=mathmatics"], "did you mean 'mathematics'?"),
    ],
)
def test_a_mistake_is_an_error_line(arguments, expected, capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 1\n", encoding="utf-8")
    status, out, err = run(capsys, *(part.format(file=file, folder=tmp_path) for part in arguments))
    assert (status, out) == (2, "")
    assert expected in err
    assert err.startswith("error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("change", "helps"),
    [
        ("training.max_steps=3", True),
        ("method.name=grop", True),
        ("rollout.temperature=hot", True),
        ('plugins=["my_tools"]', False),
        ("policy.path=/no/model", False),
    ],
)
def test_the_list_of_settings_is_named_only_where_a_name_or_a_value_is_wrong(change, helps, capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 1\n", encoding="utf-8")
    status, _, err = run(capsys, "train", str(file), "--set", change, "--output", str(tmp_path / "run"))
    assert status == 2
    assert ("midcourse list" in err) is helps


def test_a_wrong_address_is_told_without_the_list_of_settings(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('engine.name = "vllm"\nengine.running.url = "http://a:8000/v1"\n', encoding="utf-8")
    status, _, err = run(capsys, "train", str(file))
    assert (status, "expected an address without path" in err, "next:" in err) == (2, True, False)


@pytest.mark.parametrize("method", ["grpo", "mintrl"])
def test_each_methods_demo_has_a_folder_of_its_own(method, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("", encoding="utf-8")  # in the way, so that nothing is started
    status, _, err = run(capsys, "demo", "--method", method)
    assert status == 2
    assert f"runs/demo-{method}/grpo-0.toml cannot be written" in err


MISSING_PROBLEMS = (
    *("--set", "environment.name=mathematics", "--set", 'environment.files=["train=missing.jsonl"]'),
    *("--set", "policy.chat=chatml", "--set", "policy.path=missing"),
)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["train", "{file}", *MISSING_PROBLEMS], "mend the file at the place that is named"),
        (["train", "{file}", "--output", "{file}/run"], "choose another place with --output"),
        (["init", "--output", "{file}"], "choose another place with --output"),
        (["train", "{file}", "--output", "{folder}"], "`midcourse train FOLDER --resume` goes on with a run"),
        (["report", "{folder}"], "check the path; a run folder holds config.toml"),
        (["eval", "{folder}"], "check the path; a run folder holds config.toml"),
    ],
)
def test_what_to_do_next_fits_what_went_wrong(arguments, hint, capsys, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"update": 1}\n', encoding="utf-8")
    file = tmp_path / "run.toml"
    file.write_text("rollout.max_turn_tokens = 48\nmethod.roles.max_tokens = 64\n", encoding="utf-8")
    status, _, err = run(capsys, *(part.format(file=file, folder=folder) for part in arguments))
    assert status == 2
    assert f"next: {hint}" in err


@pytest.mark.parametrize("command", ["train", "eval", "rollout", "audit", "report", "compare"])
def test_a_name_that_no_file_system_takes_is_an_error_line(command, capsys):
    status, out, err = run(capsys, command, "n" * 300)
    assert (status, out) == (2, "")
    assert err.startswith("error: nnn")
    assert "\nnext: " in err  # where a settings file comes from, or what a run folder is


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["--tasks", "0"], 2, "greater than or equal to 1"),
        (["--tasks=-3"], 2, "greater than or equal to 1"),
        (["--split", "nope", *SMALL], 2, "unknown split 'nope' of navigation; known: ood, test, train"),
        (["--split", "", *SMALL], 2, "unknown split '' of navigation; known: ood, test, train"),
        (["--set", "environment.train_tasks=0"], 2, "train_tasks = 0: expected greater than or equal to 1"),
    ],
)
def test_rollouts_that_cannot_be_are_said(arguments, status, expected, capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("", encoding="utf-8")
    found, out, err = run(capsys, "rollout", str(file), *arguments)
    assert (found, out) == (status, "")
    assert expected in " ".join(err.split())


@pytest.mark.parametrize("num_tasks", [0, -1])
def test_no_tasks_are_not_all_but_the_last(num_tasks):
    config = default_config()
    with pytest.raises(ConfigError, match=f"num_tasks = {num_tasks}: expected at least 1"):
        asyncio.run(collect_groups(config, num_tasks=num_tasks, split="test", intervene=True, advance=print))
    with pytest.raises(ConfigError, match=f"num_tasks = {num_tasks}: expected at least 1"):
        asyncio.run(audit_leaks(config, num_tasks=num_tasks, attempts=1, split="test", advance=print))


def test_the_module_runs_as_a_program_without_a_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "midcourse.cli", "train", "missing.toml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: missing.toml")
    assert "Traceback" not in done.stderr


NANO = [
    *("--set", "environment.train_tasks=4", "--set", "environment.test_tasks=1", "--set", "rollout.max_turn_tokens=48"),
    *("--set", "method.roles.temperature=0", "--set", "method.roles.max_tokens=64"),
]


def test_an_audit_of_the_scripted_roles_finds_corrections_and_none_that_follows_the_evidence(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 1\n", encoding="utf-8")
    audit = ["audit", str(file), "--tasks", "2", "--attempts", "2", *NANO, "--set", "method.roles.played_by=scripted"]
    status, out, err = run(capsys, *audit, "--json")
    found = json.loads(out)
    assert (status, found["followed_fraction"], found["failed"]) == (0, 0.0, 0)
    assert found["corrected"] == len(found["corrections"]) > 0
    assert {"task_id", "attempt", "turn", "draft", "correction", "under_other_evidence"} <= found["corrections"][
        0
    ].keys()
    assert "steps" in err
    _, shown, _ = run(capsys, *audit)
    assert f"│ {found['steps']} " in shown
    assert "follows the evidence" in shown


def test_the_roles_of_rails_repair_can_be_audited(capsys, tmp_path):
    file = tmp_path / "run.toml"
    roles = 'repair.roles = { played_by = "scripted", max_tokens = 64 }'
    space = 'space.regimes = ["mild", "repair"]'
    file.write_text(f'seed = 1\n[method]\nname = "rail"\n{roles}\n{space}\n', encoding="utf-8")
    status, out, _ = run(capsys, "audit", str(file), "--tasks", "2", "--attempts", "2", *NANO[:6], "--json")
    assert status == 0
    assert json.loads(out)["corrected"] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--split", "dev", *NANO], "unknown split 'dev'"), (["--set", "method.name=grpo"], "it has no roles to audit")],
)
def test_what_cannot_be_audited_is_said(arguments, expected, capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 1\n", encoding="utf-8")
    status, out, err = run(capsys, "audit", str(file), *arguments)
    assert (status, out) == (2, "")
    assert expected in err


def test_a_run_whose_rollouts_fail_says_so(capsys, tmp_path):
    file = tmp_path / "run.toml"
    lines = ('method.name = "grpo"', "method.group_size = 2", "training.updates = 1", "training.tasks_per_update = 2")
    lines += ("evaluation.at_start = false", "rollout.rollout_timeout_seconds = 1e-6")
    file.write_text("\n".join(lines), encoding="utf-8")
    status, out, err = run(capsys, "train", str(file), *NANO[:6], "--output", str(tmp_path / "run"), "--json")
    assert status == 0
    assert json.loads(out)["failed"] == {"rollouts": 4}
    assert "warning: 4 rollouts failed" in err


def test_a_run_folder_is_its_own_output_unless_another_is_named(tmp_path):
    (tmp_path / "config.toml").write_text("seed = 1\n", encoding="utf-8")
    assert load_settings(tmp_path, None).output_folder == tmp_path
    assert load_settings(tmp_path, ["output=other"]).output_folder == Path("other")
    assert load_settings(tmp_path, None, Path("other")).output_folder == Path("other")
    with pytest.raises(ConfigError, match="both name the run folder"):
        load_settings(tmp_path, ["output=other"], Path("third"))


def test_a_checkpoint_is_found_from_within_its_run_and_takes_no_other_weights(capsys, tmp_path, monkeypatch):
    step = tmp_path / "checkpoints" / "step_2"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text('{"files": {}}', encoding="utf-8")
    (tmp_path / "config.toml").write_text("seed = 1\n", encoding="utf-8")
    monkeypatch.chdir(step.parent)
    for name in ("step_2", str(step)):
        status, _, err = run(capsys, "eval", name, "--set", "policy.path=other")
        assert status == 2
        assert "--set policy.path=other: not used" in err


@pytest.mark.filterwarnings("default")
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(capsys, tmp_path):
    (tmp_path / "config.toml").write_text("seed = 1\n", encoding="utf-8")
    for name in ("step_2", "step_10"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    whole = tmp_path / "checkpoints" / "step_2" / "manifest.json"
    whole.write_text('{"files": {}}', encoding="utf-8")
    with pytest.warns(UserWarning, match="step_10"):
        assert locate_checkpoint(tmp_path).step == whole.parent
    _, _, err = run(capsys, "eval", str(tmp_path), "--set", "policy.path=other")
    assert "warning: checkpoint file" in err
    assert "step_10/manifest.json cannot be read" in err
    assert "--set policy.path=other: not used" in err
    whole.unlink()
    status, _, err = run(capsys, "eval", str(tmp_path))
    assert status == 2
    assert "is whole: step_10, step_2" in err


def test_a_run_is_not_resumed_with_other_settings(capsys, tmp_path):
    assert run(capsys, "init", "--method", "grpo", "--output", str(tmp_path / "config.toml"))[0] == 0
    changes = ["--set", "method.group_size=3", "--set", "rollout.temperature=1.0", "--set", "training.updates=999"]
    status, out, err = run(capsys, "train", str(tmp_path), "--resume", *changes)
    assert (status, out) == (2, "")
    assert "must not change: rollout.temperature = 0.8, now 1.0; method.group_size = 8, now 3. A run" in err
    assert "next: `midcourse train FOLDER --resume`" in err
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("splits", ['["dev"]', '["test", "test"]', "[]"])
def test_splits_that_cannot_be_scored_are_said_before_training(splits, capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('method.name = "grpo"\nevaluation.at_start = false\n', encoding="utf-8")
    folder = tmp_path / "run"
    arguments = ["train", str(file), *NANO[:6], "--output", str(folder), "--set", f"evaluation.splits={splits}"]
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "evaluation.splits = [" in err
    assert not folder.exists()


def _refuse_to_load(config):
    raise AssertionError("the policy was loaded")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["engine.name=vllm", 'engine.server.python="/x"'], "engine.server.python = '/x': no such program"),
        (
            ["policy.path=folder", "policy.chat=template", 'policy.chat_template="/x"'],
            "policy.chat_template = '/x': expected a template's file",
        ),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_loaded(changes, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("midcourse.assembly.load_policy", _refuse_to_load)
    file = tmp_path / "run.toml"
    file.write_text('method.name = "grpo"\n', encoding="utf-8")
    folder = tmp_path / "run"
    given = [word for change in changes for word in ("--set", change)]
    status, out, err = run(capsys, "train", str(file), *given, "--output", str(folder))
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {expected}")
    assert not folder.exists()


def test_a_folder_that_holds_a_run_or_is_being_trained_in_is_refused_before_anything_is_loaded(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr("midcourse.assembly.load_policy", _refuse_to_load)
    assert run(capsys, "init", "--method", "grpo", "--output", str(tmp_path / "config.toml"))[0] == 0
    (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n', encoding="utf-8")
    status, _, err = run(capsys, "train", str(tmp_path))
    assert (status, err.partition(" already holds a run")[0]) == (2, f"error: {tmp_path}")
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, _, err = run(capsys, "train", str(tmp_path), "--resume")
    finally:
        os.close(held)
    assert (status, err.partition(": another process is training there")[0]) == (2, f"error: {tmp_path}")


def test_a_run_that_is_done_ends_at_once_with_its_scores(capsys, tmp_path, monkeypatch):
    file, folder = tmp_path / "run.toml", tmp_path / "run"
    lines = ('method.name = "grpo"', "method.group_size = 2", "training.updates = 1", "training.tasks_per_update = 1")
    lines += ("evaluation.at_start = false", "evaluation.attempts = 1")
    file.write_text("\n".join(lines), encoding="utf-8")
    train = ["train", str(file), *NANO[:6], "--output", str(folder), "--json"]
    status, first, err = run(capsys, *train)
    assert status == 0
    assert "loading the policy nano\n" in err
    assert "scores after update 1: test pass@1 " in err
    monkeypatch.setattr("midcourse.assembly.load_policy", _refuse_to_load)
    status, second, err = run(capsys, *train, "--resume")
    assert (status, json.loads(second)) == (0, json.loads(first))
    assert "updates 1/1\n" in err
    assert "all 1 updates are done\n" in err


def test_the_file_for_the_built_in_policy_rolls_out_and_the_default_one_says_what_does_not_fit(capsys, tmp_path):
    for name, option in (("nano.toml", ["--nano"]), ("default.toml", [])):
        assert run(capsys, "init", *option, "--output", str(tmp_path / name))[0] == 0
    status, out, _ = run(capsys, "rollout", str(tmp_path / "nano.toml"), "--tasks", "1")
    assert status == 0
    assert "prompt_too_long" not in out
    status, out, err = run(capsys, "rollout", str(tmp_path / "default.toml"), "--tasks", "1")
    assert (status, out) == (2, "")
    assert "rollout.max_turn_tokens = 512: expected less than the policy's context" in err


def test_json_output_spells_half_a_surrogate_pair(capsys):
    print_json({"reply": "a\ud800"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"reply": "a\ud800"}
    assert out.isascii()


def test_the_doctor_says_that_a_folder_cannot_be_made(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    found = next(finding for finding in examine(file / "runs") if finding.name == "disk")
    assert (found.status, found.value) == (Status.FAILED, f"{file / 'runs'} cannot be made: {file} is a file")


def test_an_error_cannot_steer_the_terminal(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('"\\u001b[31mkey" = 1\n', encoding="utf-8")
    status, _, err = run(capsys, "rollout", str(file))
    assert status == 2
    assert "\\x1b[31mkey" in err
    assert "\x1b[31mkey" not in err


def test_json_output_has_no_bare_infinity(capsys):
    print_json({"delta": float("inf"), "nested": [float("nan")]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"delta": "inf", "nested": ["nan"]}
