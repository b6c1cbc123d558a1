"""A server's log is told when it starts, and is there after the error that names it."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from midcourse.engines.vllm.own_server import OwnServer, OwnServerConfig, check_vllm
from midcourse.errors import ConfigError, EngineError

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def _started(mode: str, folder: Path) -> None:
    environment = {"PYTHONPATH": str(STAND_IN), "STAND_IN": mode, "STAND_IN_MARKER": str(folder / "marker")}
    config = OwnServerConfig(environment=environment, stop_seconds=0.2, start_seconds=60, weights_folder=str(folder))

    async def run():
        server = OwnServer(config, model="somebody/model")
        try:
            await server.ready()
        finally:
            await server.stop()

    asyncio.run(run())


def test_the_log_of_a_start_that_failed_is_kept_where_the_error_says(temporary):
    with pytest.raises(EngineError) as caught:
        _started("refuses", temporary)
    log = Path(re.search(r"log: (\S+)", str(caught.value))[1])
    assert log.read_text()
    assert [path for path in temporary.iterdir() if path.name != "marker"] == [log.parent]


def test_a_log_is_told_and_goes_with_a_server_that_did_not_fail(temporary, caplog):
    with caplog.at_level(logging.INFO, logger="midcourse"):
        _started("answers", temporary)
    first, last = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(rf"starting the vLLM server \(log: {temporary}/\S+/vllm\.log; at most 60 s\)", first)
    assert last == "the vLLM server answers"
    assert [path for path in temporary.iterdir() if path.name != "marker"] == []


def test_an_interpreter_is_checked_as_the_server_will_find_it(tmp_path):
    check_vllm(OwnServerConfig(environment={"PYTHONPATH": str(STAND_IN)}))
    with pytest.raises(ConfigError, match=r"engine\.server\.python = '/x': no such program"):
        check_vllm(OwnServerConfig(python="/x"))
