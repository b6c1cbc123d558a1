"""What a server that midcourse starts is told by environment variables."""

from midcourse.engines.vllm.own_server import OwnServer, OwnServerConfig
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
