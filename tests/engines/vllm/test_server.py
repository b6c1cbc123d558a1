import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from tests.engines.vllm.fake_server import endless

from midcourse.engines.vllm.own_server import OwnServer, OwnServerConfig
from midcourse.engines.vllm.server import GivenServer, GivenServerConfig, ServerGoneError
from midcourse.errors import ConfigError, EngineError, EngineTimeoutError

STAND_IN = Path(__file__).parent / "stand_in"
SECONDS = 60.0  # far more than anything takes, on a machine that does other things too
OWNER = """
import asyncio, sys, time
from midcourse.engines.vllm.own_server import OwnServer, OwnServerConfig
server = OwnServer(
    OwnServerConfig(environment={"PYTHONPATH": sys.argv[1]}, stop_seconds=0.2, weights_folder=sys.argv[2]),
    model="x/y",
    write_tokenizer=lambda folder: folder.mkdir(),
)
asyncio.run(server.ready())
print(server.url, flush=True)
time.sleep(600)
"""


@pytest.fixture
def make_server(tmp_path):
    def make(mode: str = "answers", **settings) -> OwnServer:
        environment = {"PYTHONPATH": str(STAND_IN), "STAND_IN": mode, "STAND_IN_MARKER": str(tmp_path / "marker")}
        usual = {"stop_seconds": 0.2, "start_seconds": SECONDS, "weights_folder": str(tmp_path)}
        config = OwnServerConfig(environment=environment, **(usual | settings))
        return OwnServer(config, model="somebody/model", log_folder=tmp_path)

    return make


def _about(url: str) -> dict:
    return httpx.get(f"{url}/about", trust_env=False, timeout=SECONDS).json()


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _soon(condition) -> bool:
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_a_server_is_started_asked_and_ended_with_all_its_parts(make_server, tmp_path):
    async def run():
        server = make_server(context_length=128, max_lora_rank=4)
        await server.ready()
        about = _about(server.url)
        assert all(_is_alive(pid) for pid in about["pids"])
        await server.ready()  # it runs already
        assert _about(server.url)["pids"] == about["pids"]
        await server.stop()
        return server, about

    server, about = asyncio.run(run())
    assert not any(_is_alive(pid) for pid in about["pids"])
    assert not Path("/dev/shm", about["memory"]).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["vllm.log"]
    arguments = about["arguments"]
    assert arguments[arguments.index("--model") + 1] == "somebody/model"
    assert arguments[arguments.index("--max-model-len") + 1] == "128"
    assert arguments[arguments.index("--max-lora-rank") + 1] == "8"
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert "--skip-tokenizer-init" in arguments
    assert "--no-enable-chunked-prefill" not in arguments  # the stand-in is for no CPU
    assert not server.is_started


def test_a_part_that_does_not_end_when_asked_is_killed(make_server):
    async def run():
        server = make_server("is_stubborn")
        await server.ready()
        pids = _about(server.url)["pids"]
        await server.stop()
        return pids

    assert not any(_is_alive(pid) for pid in asyncio.run(run()))


def test_a_dead_server_comes_back_with_the_weights_it_was_told(make_server, tmp_path):
    prepared = []

    async def run():
        server = make_server()

        async def prepare() -> None:
            prepared.append(_about(server.url)["arguments"][1])

        server.prepare = prepare
        await server.ready()
        assert not await server.revive()  # it lives
        folder = tmp_path / "weights-1"
        folder.mkdir()
        (folder / "config.json").write_text('{"dtype": "float32"}')
        server.serve_from(folder)
        for victim in (0, 1):
            pids = _about(server.url)["pids"]
            os.kill(pids[0], signal.SIGKILL)
            started = time.monotonic()
            # Whoever asks at the same time finds it restarted once.
            assert sorted(await asyncio.gather(server.revive(), server.revive())) == [False, True]
            assert time.monotonic() - started < SECONDS
            assert not any(_is_alive(pid) for pid in pids)
            assert server.restarts == victim + 1
            arguments = _about(server.url)["arguments"]
            # vLLM's own "auto" would take 16 bits here.
            assert arguments[arguments.index("--dtype") + 1] == "float32"
        await server.stop()

    asyncio.run(run())
    assert prepared == ["somebody/model", str(tmp_path / "weights-1"), str(tmp_path / "weights-1")]


def test_what_a_killed_keeper_leaves_is_removed_by_its_owner(make_server):
    async def run():
        server = make_server()
        await server.ready()
        about = _about(server.url)
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGKILL)
        for pid in about["pids"]:
            os.kill(pid, signal.SIGKILL)
        assert _soon(lambda: not any(_is_alive(pid) for pid in about["pids"]))
        assert await server.revive()
        assert not Path("/dev/shm", about["memory"]).exists()
        await server.stop()

    asyncio.run(run())


def test_a_server_that_dies_while_it_comes_back_is_started_again(make_server):
    calls = []

    async def run(max_restarts):
        server = make_server(max_restarts=max_restarts, restart_minutes=1e-6)  # too short to count any

        async def prepare() -> None:
            calls.append(server.restarts)
            if len(calls) == 2:
                raise ServerGoneError("the connection broke")

        server.prepare = prepare
        await server.ready()
        os.kill(_about(server.url)["pids"][0], signal.SIGKILL)
        try:
            assert await server.revive()
            _about(server.url)
        finally:
            await server.stop()

    asyncio.run(run(2))
    assert calls == [0, 0, 0]  # it came back once, when all was done
    calls.clear()
    with pytest.raises(EngineError, match="the connection broke"):
        asyncio.run(run(1))


def test_restarts_are_limited(make_server):
    async def run():
        server = make_server(max_restarts=1)
        await server.ready()
        os.kill(_about(server.url)["pids"][0], signal.SIGKILL)
        assert await server.revive()
        os.kill(_about(server.url)["pids"][0], signal.SIGKILL)
        with pytest.raises(EngineError, match="died again after max_restarts = 1"):
            await server.revive()
        await server.stop()

    asyncio.run(run())


def test_restarts_of_long_ago_do_not_count(make_server):
    async def run():
        server = make_server(max_restarts=1, restart_minutes=1e-6)
        await server.ready()
        for _ in range(2):
            os.kill(_about(server.url)["pids"][0], signal.SIGKILL)
            assert await server.revive()
        await server.stop()

    asyncio.run(run())


def test_a_server_that_cannot_be_prepared_does_not_stay(make_server):
    pids = []

    async def run():
        server = make_server()

        async def prepare() -> None:
            pids.extend(_about(server.url)["pids"])
            raise EngineError("the probe disagrees")

        server.prepare = prepare
        with pytest.raises(EngineError, match="the probe disagrees"):
            await server.ready()
        await server.stop()

    asyncio.run(run())
    assert len(pids) == 2
    assert not any(_is_alive(pid) for pid in pids)


def test_a_port_lost_between_its_choice_and_its_use_is_chosen_again(make_server, tmp_path):
    async def run():
        server = make_server("loses_port")
        await server.ready()
        await server.stop()

    asyncio.run(run())
    assert (tmp_path / "marker").exists()


def test_the_error_of_a_server_that_ends_at_once_has_what_its_log_says(make_server):
    async def run():
        server = make_server("refuses")
        try:
            await server.ready()
        finally:
            await server.stop()

    with pytest.raises(EngineError, match=r"ended with status 1 .*vllm\.log\n  ValueError: the context does not fit"):
        asyncio.run(run())


def test_a_server_that_never_answers_is_given_up_and_ended(make_server):
    async def run():
        server = make_server("is_silent", start_seconds=1.5)
        try:
            await server.ready()
        finally:
            await server.stop()

    with pytest.raises(EngineTimeoutError, match=r"start_seconds = 1\.5"):
        asyncio.run(run())


def _raised(server: OwnServer) -> str:
    async def run():
        try:
            await server.ready()
        finally:
            await server.stop()

    with pytest.raises(ConfigError) as caught:
        asyncio.run(run())
    return str(caught.value)


def test_a_taken_port_is_told(make_server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"engine.server.port = {port}: taken" in _raised(make_server(port=port))


def test_an_interpreter_without_vllm_is_told_how_to_get_it(make_server, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    message = _raised(make_server(python=str(python)))
    assert f"python = {str(python)!r} has no vLLM: pip install vllm" in message
    assert "engine.server.python = '/bin/true' is no Python: " in _raised(make_server(python="/bin/true"))


def test_a_folder_for_weights_that_cannot_be_used_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    missing = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match=f"^engine.server.weights_folder = '{missing}': no folder can be made in"):
        OwnServer(OwnServerConfig(weights_folder=missing), model="x/y")
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HOME", str(tmp_path))
    assert OwnServer(OwnServerConfig(weights_folder="~"), model="x/y").folder.parent == tmp_path
    assert GivenServer(GivenServerConfig(url="http://a", weights_folder="~/w")).folder == tmp_path / "w"


def test_a_checkpoint_or_interpreter_that_is_not_there_is_told_before_anything_starts(tmp_path):
    config = OwnServerConfig(weights_folder=str(tmp_path))
    with pytest.raises(ConfigError, match="python = '/no/python': no such program"):
        OwnServer(OwnServerConfig(python="/no/python"), model="x")
    with pytest.raises(ConfigError, match="no such folder"):
        OwnServer(config, model="/no/folder")
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        OwnServer(config, model=tmp_path)


@pytest.mark.parametrize("victim", ["owner", "keeper"])
def test_nothing_is_left_when_who_started_it_is_killed(victim, tmp_path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(STAND_IN), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert owner.stdout is not None
        about = _about(owner.stdout.readline().strip())
        keeper = int(Path(f"/proc/{about['pids'][0]}/stat").read_text().rpartition(")")[2].split()[1])
        if victim == "keeper":
            os.kill(keeper, signal.SIGKILL)
            assert _soon(lambda: not _is_alive(about["pids"][0]))
            os.kill(about["pids"][1], signal.SIGKILL)  # which vLLM's parts do themselves: see test_real_vllm.py
        else:
            owner.kill()
            assert _soon(lambda: not any(_is_alive(pid) for pid in [keeper, *about["pids"]]))
            assert not Path("/dev/shm", about["memory"]).exists()
            assert list(tmp_path.iterdir()) == []
    finally:
        owner.kill()
        owner.communicate()


@pytest.mark.parametrize(
    "url",
    [
        "10.0.0.5:8000",
        "http://",
        "http://a:b",
        "http://a:8000/v1",
        "http://a:8000?x=1",
        "http://me:secret@a:8000",
        "http://a b",
    ],
)
def test_an_address_that_no_server_can_have_is_told(url):
    with pytest.raises(ValidationError, match="expected an address without path and password"):
        GivenServerConfig(url=url)


def test_waits_are_kept_though_a_server_answers_without_end():
    async def run(url, **settings):
        given = GivenServer(GivenServerConfig(url=url, **settings))
        await given.ready()
        return await given.revive()

    for piece, pause in ((b"x" * 65536, 0.0), (b"x", 0.1)):
        with endless(piece, pause=pause) as url:
            assert not asyncio.run(asyncio.wait_for(run(url), SECONDS))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EngineTimeoutError, match=r"wait_seconds = 0\.3"):
            asyncio.run(asyncio.wait_for(run(url, wait_seconds=0.3, health_seconds=2 * SECONDS), SECONDS))


def test_a_given_server_is_waited_for_and_left_running(make_server):
    async def run():
        server = make_server()
        given = GivenServer(GivenServerConfig(url="http://127.0.0.1:1", wait_seconds=0.3))
        with pytest.raises(EngineTimeoutError, match=r"wait_seconds = 0\.3"):
            await given.ready()
        await server.ready()
        prepared = []
        given = GivenServer(GivenServerConfig(url=server.url + "/", wait_seconds=0.3))

        async def prepare() -> None:
            prepared.append(given.url)

        given.prepare = prepare
        await given.ready()
        assert not await given.revive()
        await given.stop()
        assert _about(server.url)["pids"]
        await server.stop()
        assert prepared == [server.url]

    asyncio.run(run())
