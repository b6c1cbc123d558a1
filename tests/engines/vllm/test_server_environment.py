"""What a server that midcourse starts is told by environment variables and arguments."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from midcourse.engines.vllm.own_server import EXTENSION_FOLDER, OwnServer, OwnServerConfig
from midcourse.training.launch import without_torchrun

OF_TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "6",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchruns_variables_are_taken_out_and_no_others():
    assert without_torchrun({**OF_TORCHRUN, "RANKING": "1", "PATH": "/bin"}) == {"RANKING": "1", "PATH": "/bin"}


def test_a_server_of_ours_is_none_of_torchruns_processes(monkeypatch, tmp_path):
    for name, value in OF_TORCHRUN.items():
        monkeypatch.setenv(name, value)
    given = {"CUDA_VISIBLE_DEVICES": "6,7"}
    server = OwnServer(OwnServerConfig(environment=given, weights_folder=str(tmp_path)), model="x/y")
    told = server._environment()
    assert told["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert OF_TORCHRUN.keys() & told.keys() == set()


def test_a_key_for_servers_elsewhere_is_not_asked_of_us(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    told = OwnServer(OwnServerConfig(weights_folder=str(tmp_path)), model="x/y")._environment()
    assert "VLLM_API_KEY" not in told
    assert told["VLLM_SERVER_DEV_MODE"] == "1"


def test_a_server_imports_the_extension_and_only_its_own_interpreters_paths(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    shared = OwnServer(OwnServerConfig(weights_folder=str(tmp_path)), model="x/y")._environment()
    assert shared["PYTHONPATH"].split(os.pathsep) == [str(EXTENSION_FOLDER), "/ours"]
    other = OwnServerConfig(python="/bin/sh", weights_folder=str(tmp_path))
    assert OwnServer(other, model="x/y")._environment()["PYTHONPATH"] == str(EXTENSION_FOLDER)
    given = OwnServerConfig(environment={"PYTHONPATH": "/given"}, weights_folder=str(tmp_path))
    told = OwnServer(given, model="x/y")._environment()
    assert told["PYTHONPATH"].split(os.pathsep) == [str(EXTENSION_FOLDER), "/given"]
    assert told["VLLM_SERVER_DEV_MODE"] == "1"
    assert told["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "0"


def test_the_arguments_that_drawing_and_updating_depend_on(tmp_path):
    config = OwnServerConfig(weights_folder=str(tmp_path), nccl=True, arguments=("--seed", "7"))
    server = OwnServer(config, model="x/y", write_tokenizer=Path.mkdir)
    arguments = server._arguments()

    def value(name):
        return arguments[arguments.index(name) + 1]

    assert value("--generation-config") == "vllm"
    assert value("--worker-extension-cls") == "midcourse_extension.Extension"
    assert value("--weight-transfer-config") == '{"backend": "nccl"}'
    assert {"--enable-scale-out", "--disable-uvicorn-access-log"} <= set(arguments)
    assert Path(value("--tokenizer")).is_dir()
    assert arguments[-2:] == ["--seed", "7"]  # behind ours, so that they count
    assert "--no-enable-chunked-prefill" not in arguments
    server._is_on_cpu = True
    assert "--no-enable-chunked-prefill" in server._arguments()


@pytest.mark.parametrize(("rank", "known"), [(1, "1"), (2, "8"), (8, "8"), (9, "16"), (512, "512")])
def test_a_rank_is_rounded_up_to_one_that_vllm_knows(rank, known, tmp_path):
    config = OwnServerConfig(weights_folder=str(tmp_path), max_lora_rank=rank)
    arguments = OwnServer(config, model="x/y")._arguments()
    assert arguments[arguments.index("--max-lora-rank") + 1] == known


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--port", "'--port' is midcourse's to give: set engine.server.port"),
        ("--max-model-len=64", "set engine.server.context_length"),
        ("--served_model_name=x", "by a name of its own"),
        ("--no-enable-lora", "set engine.server.max_lora_rank"),
        ("--ssl-keyfile", "without encryption"),
        ("-h", "it ends the server"),
    ],
)
def test_an_argument_that_is_ours_is_refused_with_the_setting_that_is_meant(argument, said):
    with pytest.raises(ValidationError, match=f"arguments\\n.*{said}"):
        OwnServerConfig(arguments=("--seed", "7", argument, "1"))


def test_an_argument_that_only_begins_as_one_of_ours_is_taken():
    given = ("--model-impl", "auto", "--tokenizer-mode=slow", "--generation-config", "a=b", "-tp", "--seed=7")
    assert OwnServerConfig(arguments=given).arguments == given


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "not empty and without '='"),
        ("A=B", "not empty and without '='"),
        ("VLLM_SERVER_DEV_MODE", "is midcourse's to give"),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "set engine.server.max_lora_rank"),
    ],
)
def test_a_variable_that_cannot_be_or_is_ours_is_refused(name, said):
    with pytest.raises(ValidationError, match=f"environment\\n.*{said}"):
        OwnServerConfig(environment={name: "0"})
