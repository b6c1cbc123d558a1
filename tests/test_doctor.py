"""What the doctor says of vLLM in another environment, and of what settings name."""

import json
import socket

import pytest
from tests.engines.vllm.fake_server import FakeServer, generated

from midcourse import doctor
from midcourse.cli import main
from midcourse.config import load_config
from midcourse.doctor import Status, examine_settings, examine_vllm


@pytest.fixture
def interpreter(tmp_path):
    def make(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("script", "status", "expected"),
    [
        ("echo cpu", Status.OK, "has vLLM for a CPU"),
        ("echo gpu", Status.OK, "has vLLM for a GPU"),
        ("exit 1", Status.FAILED, "has no vLLM"),
    ],
)
def test_an_interpreter_is_asked_whether_it_has_vllm(script, status, expected, interpreter):
    found = examine_vllm(interpreter(script))
    assert found.status is status
    assert expected in found.value


def test_an_interpreter_that_is_not_there_is_told():
    found = examine_vllm("/x")
    assert (found.status, "no such program" in found.value) == (Status.FAILED, True)


def test_settings_are_looked_through_for_what_is_not_there():
    (found,) = examine_settings(load_config(None, ["method.name=grpo"]))
    assert found.status is Status.OK
    (found,) = examine_settings(load_config(None, ["engine.name=vllm", 'engine.server.python="/x"']))
    assert found.status is Status.FAILED
    assert found.value.startswith("engine.server.python = '/x'")


def test_a_running_server_that_does_not_answer_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "SERVER_SECONDS", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        settings, server = examine_settings(load_config(None, ["engine.name=vllm", f'engine.running.url="{url}"']))
    assert (settings.status, server.status) == (Status.OK, Status.FAILED)
    assert f"{url} did not answer" in server.value


def test_a_running_server_is_asked_how_it_was_started():
    def decide(path, body):
        told = {"/health": "", "/v1/models": {"data": [{"id": "policy", "max_model_len": 64}]}}
        return 200, told.get(path, generated((1, 2, 3, 4), logprobs=[0.0] * 4, finish_reason="length"))

    with FakeServer(decide) as fake:
        given = ["engine.name=vllm", f'engine.running.url="{fake.url}"']
        _, good = examine_settings(load_config(None, given))
        _, bad = examine_settings(load_config(None, [*given, "engine.logprobs=raw"]))
    assert (good.status, good.value) == (Status.OK, f"{fake.url} answers, and takes 64 tokens")
    assert (bad.status, "tells processed log-probabilities" in bad.value) == (Status.FAILED, True)


def test_the_command_adds_both_to_what_it_finds(capsys, tmp_path, interpreter, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda folder: iter(()))
    file = tmp_path / "run.toml"
    file.write_text('method.name = "grpo"\n', encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", str(file), "--vllm-python", interpreter("exit 1"), "--json"])
    assert stopped.value.code == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(item["name"], item["status"]) for item in found] == [("vllm of its own", "failed"), ("settings", "ok")]
