"""Lines that training would not have written are errors that name file, line and key; a cut last line is none."""

import json

import pytest

from midcourse.errors import DataError
from midcourse.evaluation.compare import compare_runs
from midcourse.recording.reader import RunReader
from midcourse.recording.writer import RecordingConfig, RunWriter

ESTIMATE = {"value": 0.5, "low": None, "high": 1}
SHEET = {"pass_at": {"1": ESTIMATE}, "pass_hat": {"1": ESTIMATE}}
EVALUATION = {"update": 1, "splits": {"test": SHEET}, "tags": {}}


def make_run(folder, *, metrics="", evaluations=""):
    RunWriter(folder, RecordingConfig(tensorboard=False), resolved_config="seed = 1\n").close()
    (folder / "metrics.jsonl").write_text(metrics)
    (folder / "evaluations.jsonl").write_text(evaluations)
    return RunReader(folder)


def evaluation(**changes):
    return json.dumps({**EVALUATION, **changes})


def sheet(**changes):
    return {"test": {**SHEET, **changes}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "an object with an update must stand here"),
        ('{"loss": 1}', "an object with an update must stand here"),
        ('{"update": true}', "an object with an update must stand here"),
        ('{"update": -1}', "an object with an update must stand here"),
        ('{"update": 1e3}', "an object with an update must stand here"),
        ('{"update": ' + "9" * 400 + "}", "an object with an update must stand here"),
        ('{"update": 2, "loss": "high"}', r"'loss': expected a number, got 'high'"),
        ('{"update": 2, "loss": null}', r"'loss': expected a number, got None"),
        ('{"update": 2, "loss": true}', r"'loss': expected a number, got True"),
        ('{"update": 2, "loss": [1]}', r"'loss': expected a number, got \[1\]"),
        ('{"update": 2, "loss": ' + "9" * 400 + "}", r"'loss': expected a number of 64 bits"),
    ],
)
def test_a_line_of_metrics_that_is_none_is_named(line, message, tmp_path):
    make_run(tmp_path, metrics=f'{{"update": 1}}\n{line}\n')
    with pytest.raises(DataError, match=rf"metrics\.jsonl, line 2[:,].*{message}"):
        compare_runs([tmp_path])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"update": 2}', "splits: Field required"),
        (evaluation(splits=[]), "splits: Input should be a valid dictionary"),
        (evaluation(splits={"test": 3}), r"splits\.test: "),
        (evaluation(splits={"test": {}}), r"splits\.test\.pass_at: Field required"),
        (evaluation(splits=sheet(pass_at={})), r"splits\.test: pass_at and pass_hat must be for k from 1 up"),
        (evaluation(splits=sheet(pass_at={"one": ESTIMATE})), r"splits\.test: pass_at and pass_hat must be for k"),
        (evaluation(splits=sheet(pass_hat={"2": ESTIMATE})), r"splits\.test: pass_at and pass_hat must be for k"),
        (evaluation(splits=sheet(pass_at={"1": {"value": 0.5}})), r"splits\.test\.pass_at\.1\.low: Field required"),
        (evaluation(splits=sheet(pass_at={"1": ESTIMATE | {"value": "0.5"}})), r"splits.*1\.value: .*valid number"),
        (evaluation(splits=sheet(pass_at={"1": ESTIMATE | {"value": float("nan")}})), r"splits.*1\.value: .*finite"),
        (evaluation(tags={"test/hard": None}), r"tags\.test/hard: "),
    ],
)
def test_a_line_of_evaluations_that_is_none_is_named(line, message, tmp_path):
    make_run(tmp_path, evaluations=f"{evaluation()}\n\n{line}\n")
    with pytest.raises(DataError, match=rf"evaluations\.jsonl, line 3, {message}"):
        compare_runs([tmp_path])


@pytest.mark.parametrize("length", [1, 20, len(evaluation())])
def test_a_last_line_that_was_never_finished_is_left_out(length, tmp_path):
    reader = make_run(
        tmp_path,
        metrics='{"update": 1, "loss": "inf"}\n{"update": 2, "loss',
        evaluations=f"{evaluation()}\n{evaluation()[:length]}",
    )
    assert reader.metrics() == [{"update": 1, "loss": float("inf")}]
    assert reader.evaluations() == [EVALUATION]
    assert compare_runs([tmp_path]).runs[0].num_updates == 1


def test_files_that_cannot_be_read_are_named(tmp_path):
    reader = make_run(tmp_path)
    for name, read in (("metrics.jsonl", reader.metrics), ("evaluations.jsonl", reader.evaluations)):
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(DataError, match=f"{name} cannot be read: Is a directory"):
            read()
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"config\.toml cannot be read"):
        compare_runs([tmp_path])
