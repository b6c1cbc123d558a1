"""Weights on their way to a server that holds a model of its own, in this process."""

import asyncio
import math
import threading
import time
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
import torch
from safetensors.torch import load_file
from tests.engines.vllm.fake_server import Break, FakeServer

from midcourse.engines.vllm.nccl import _in_thread
from midcourse.engines.vllm.probe import Agreement, Bounds, default_bounds, probe_sequences, trainer_logprobs
from midcourse.engines.vllm.server import GivenServer, GivenServerConfig
from midcourse.engines.vllm.weight_folder import WeightFolder, num_bytes
from midcourse.engines.vllm.weights import WeightSync
from midcourse.errors import ConfigError, EngineError, EngineTimeoutError


class ServedModel:
    """What a server does with a model: `decide` answers its routes. The fields are faults that a test may set."""

    def __init__(self, model: torch.nn.Module, *, dtype: str = "float32") -> None:
        self.model, self.dtype, self.version = model, dtype, "0"
        self.paths: list[str] = []
        self.loads = self.reads = True
        self.cache_refusals, self.cache_answers = 0, True
        self.fails_at: str | None = None
        self.breaks_at: str | None = None

    def decide(self, path: str, body):
        place = urlsplit(path)
        name = body["method"] if place.path == "/collective_rpc" else place.path.removeprefix("/")
        self.paths.append(name)
        if name == self.breaks_at:
            self.breaks_at = None
            return Break()
        if name == self.fails_at:
            return 500, "the worker fell over"
        return 200, self._answer(name, body, dict(parse_qsl(place.query)))

    def _answer(self, name: str, body, query: dict[str, str]):
        if name == "can_read":
            return {"results": [{"is_there": self.reads and Path(body["args"][0]).is_dir()}]}
        if name == "load_weights_from":
            if self.loads:
                for path in Path(body["args"][0]).glob("*.safetensors"):
                    self.model.load_state_dict(load_file(path), strict=False)
            return {"results": [{"tensors": 1}]}
        if name == "get_world_size":
            return {"world_size": 1}
        if name == "describe_weights":
            return {"results": [{"dtype": self.dtype}]}
        if name == "update_weight_version":
            self.version = body["new_version"]
        if name == "reset_prefix_cache":
            assert query == {"reset_running_requests": "true"}
            self.cache_refusals -= 1
            return {"success": self.cache_refusals < 0} if self.cache_answers else None
        if name == "inference/v1/generate":
            return self._probe_answer(body)
        return {}

    def _probe_answer(self, body):
        with torch.no_grad():
            logprobs = self.model(torch.tensor([body["token_ids"]])).logits[0, -1].log_softmax(-1)
        values, tokens = logprobs.topk(body["sampling_params"]["logprobs"])
        top = [{"token_id": int(t), "logprob": float(v)} for t, v in zip(tokens, values, strict=True)]
        content = [{"token_id": top[0]["token_id"], "logprob": top[0]["logprob"], "top_logprobs": top}]
        return {
            "choices": [
                {"logprobs": {"content": content}, "weight_versions": [{"version": self.version, "start": 0, "end": 1}]}
            ]
        }


UPDATE = ["pause", "can_read", "load_weights_from", "update_weight_version", "reset_prefix_cache", "resume"]


def push(server: FakeServer, model, tmp_path: Path, *, times: int = 1, shift=None, **settings):
    """Push a model to a server, `times` times; return the reports."""

    async def run():
        given = GivenServer(GivenServerConfig(url=server.url, weights_folder=str(tmp_path), wait_seconds=60.0))
        await given.ready()
        sync = WeightSync(given, seconds=60.0, **settings)
        try:
            reports = []
            for version in range(1, times + 1):
                reports.append(await sync.push(model, version=version))
                if shift is not None:
                    shift()
            return reports
        finally:
            await sync.close()

    return asyncio.run(run())


@pytest.fixture
def served(tiny_qwen3):
    other = tiny_qwen3()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    return ServedModel(other)


def test_an_update_pauses_loads_names_the_version_drops_the_cache_resumes_and_probes(served, tiny_qwen3, tmp_path):
    model = tiny_qwen3().train()

    def shift() -> None:
        with torch.no_grad():
            model.lm_head.weight.add_(0.3)

    with FakeServer(served.decide) as server:
        reports = push(server, model, tmp_path, times=2, shift=shift)
    probe = ["inference/v1/generate"] * 4 + ["describe_weights"]
    assert served.paths == (UPDATE + probe) * 2
    assert served.version == "2"
    assert [report.how for report in reports] == ["file", "file"]
    assert reports[0].bytes == 4 * sum(parameter.numel() for parameter in model.parameters())
    assert reports[1].agreement.worst < 1e-5
    assert model.training  # left as it was
    assert list(tmp_path.iterdir()) == []


def test_weights_that_did_not_arrive_are_noticed(served, tiny_qwen3, tmp_path):
    served.loads = False
    expected = r"version 1, pushed by file.*differ by [\d.]+ nats at worst .*expected at most 0\.001 and 0\.0001"
    with FakeServer(served.decide) as server, pytest.raises(EngineError, match=expected):
        push(server, tiny_qwen3(), tmp_path)


def test_bounds_that_were_set_are_those_that_count(served, tiny_qwen3, tmp_path):
    served.loads = False
    with FakeServer(served.decide) as server:
        report = push(server, tiny_qwen3(), tmp_path, max_difference=100.0, mean_difference=100.0)[0]
        assert report.agreement.worst > 0.01
        with pytest.raises(EngineError, match="expected at most 1e\\+02 and 1e-05"):
            push(server, tiny_qwen3(), tmp_path, max_difference=100.0, mean_difference=1e-5)


def test_a_server_of_another_version_is_noticed(served, tiny_qwen3, tmp_path):
    def decide(path, body):
        answer = served.decide(path, body)
        served.version = "77"
        return answer

    with FakeServer(decide) as server, pytest.raises(EngineError, match=r"with weights \['77'\], expected 1"):
        push(server, tiny_qwen3(), tmp_path)


def test_a_folder_that_the_server_does_not_see_is_told(served, tiny_qwen3, tmp_path):
    served.reads = False
    with (
        FakeServer(served.decide) as server,
        pytest.raises(EngineError, match=r"cannot read .*expected engine.running.weights_folder"),
    ):
        push(server, tiny_qwen3(), tmp_path)
    assert "load_weights_from" not in served.paths


@pytest.mark.parametrize("route", UPDATE)
def test_a_server_that_refuses_a_step_stops_the_run(route, served, tiny_qwen3, tmp_path):
    served.fails_at = route
    with FakeServer(served.decide) as server, pytest.raises(EngineError, match="status 500: the worker fell over"):
        push(server, tiny_qwen3(), tmp_path)
    assert "inference/v1/generate" not in served.paths


def test_a_cache_that_is_dropped_late_is_waited_for(served, tiny_qwen3, tmp_path):
    served.cache_refusals = 2
    with FakeServer(served.decide) as server:
        push(server, tiny_qwen3(), tmp_path)
    assert served.paths.count("reset_prefix_cache") == 3


def test_a_server_that_does_not_say_whether_its_cache_is_dropped_stops_the_run(
    served, tiny_qwen3, tmp_path, monkeypatch
):
    monkeypatch.setattr("midcourse.engines.vllm.weights.CACHE_PAUSE_SECONDS", 0.0)
    served.cache_answers = False
    with FakeServer(served.decide) as server, pytest.raises(EngineError, match="does not drop its cached prefixes"):
        push(server, tiny_qwen3(), tmp_path)


def test_a_server_that_comes_back_during_an_update_gets_the_new_weights(served, tiny_qwen3, tmp_path):
    class Restarted(GivenServer):
        async def revive(self) -> bool:
            await self._wait()  # as after an outage: prepares
            return True

    model = tiny_qwen3()

    async def run(url: str):
        given = Restarted(GivenServerConfig(url=url, weights_folder=str(tmp_path), wait_seconds=60.0))
        await given.ready()
        sync = WeightSync(given, seconds=60.0)
        report = await sync.push(model, version=5)
        await sync.close()
        return report

    served.breaks_at = "load_weights_from"
    with FakeServer(served.decide) as server:
        report = asyncio.run(run(server.url))
    assert report.agreement.worst < 1e-5
    assert served.version == "5"


def test_a_way_that_does_not_fit_the_model_is_told(served, tiny_qwen3, tmp_path):
    with FakeServer(served.decide) as server, pytest.raises(ConfigError, match='no PEFT adapter; expected "file"'):
        push(server, tiny_qwen3(), tmp_path, how="lora")


def test_a_running_server_that_a_killed_run_left_paused_goes_on(served, tmp_path):
    async def run(url: str) -> None:
        given = GivenServer(GivenServerConfig(url=url, weights_folder=str(tmp_path), wait_seconds=60.0))
        sync = WeightSync(given, seconds=60.0)
        await given.ready()
        await sync.close()

    with FakeServer(served.decide) as server:
        asyncio.run(run(server.url))
    assert served.paths == ["resume"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "answer to a probe cannot be read"),
        ([], "answer to a probe cannot be read"),
        ([{"top_logprobs": []}], "must tell the likeliest tokens"),
        ([{"top_logprobs": [{"token_id": 3, "logprob": -9999.0}]}], "must tell the likeliest tokens"),
        ([{"top_logprobs": [{"token_id": -1, "logprob": -0.5}]}], "must tell the likeliest tokens"),
        ([{"top_logprobs": [{"token_id": 61, "logprob": -0.5}]}], "tokens that the trainer's 61 are not"),
    ],
)
def test_a_probes_answer_that_does_not_fit_is_an_engine_error(content, said, served, tiny_qwen3, tmp_path):
    served._probe_answer = lambda body: {
        "choices": [{"logprobs": {"content": content}, "weight_versions": [{"version": served.version}]}]
    }
    with FakeServer(served.decide) as server, pytest.raises(EngineError, match=said):
        push(server, tiny_qwen3(), tmp_path)


@pytest.mark.parametrize(
    ("method", "results", "said"),
    [
        ("can_read", [{}], r"can_read: expected every worker to tell is_there \(bool\): got .*\{\}"),
        ("can_read", [{"is_there": True}, 3], r"expected every worker to tell is_there"),
        ("can_read", {"is_there": True}, r"expected every worker to tell is_there"),
        ("load_weights_from", [], r"load_weights_from: expected every worker to tell tensors \(int\)"),
        ("describe_weights", [{"dtype": 7}], r"describe_weights: expected every worker to tell dtype \(str\): got .*7"),
        ("describe_weights", [{"dtype": "float7"}], r"compute in \['float7'\]: expected \['bfloat16', 'float16', "),
    ],
)
def test_what_workers_tell_is_not_trusted(method, results, said, served, tiny_qwen3, tmp_path):
    usual = served._answer
    served._answer = lambda name, *rest: {"results": results} if name == method else usual(name, *rest)
    with FakeServer(served.decide) as server, pytest.raises(EngineError, match=said):
        push(server, tiny_qwen3(), tmp_path)


def test_over_nccl_a_server_of_ours_still_starts_from_files(served, tiny_qwen3, tmp_path, monkeypatch):
    model, given_folders, sent = tiny_qwen3(), [], []

    class Ours(GivenServer):
        loads_at_start = True

        def serve_from(self, folder: Path) -> None:
            given_folders.append(folder)
            served.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)

    class Sender:
        async def send(self) -> None:
            sent.append(served.version)
            served.model.load_state_dict(model.state_dict())

        async def close(self) -> None:
            sent.append("closed")

    async def open_sender(*args, **kwargs):
        return Sender()

    async def run(url: str) -> None:
        sync = WeightSync(Ours(GivenServerConfig(url=url, weights_folder=str(tmp_path))), how="nccl", seconds=60.0)
        await sync.push(model, version=1)
        with torch.no_grad():
            model.lm_head.weight.add_(0.3)
        await sync.push(model, version=2)
        await sync.close()

    monkeypatch.setattr("midcourse.engines.vllm.weights.open_sender", open_sender)
    with FakeServer(served.decide) as server:
        asyncio.run(run(server.url))
    assert len(given_folders) == 1
    assert sent == ["0", "1", "closed"]
    assert "load_weights_from" not in served.paths


def test_a_transfer_that_hangs_is_given_up_and_keeps_no_process_from_ending():
    released = threading.Event()
    started = time.monotonic()
    try:
        with pytest.raises(EngineTimeoutError, match=r"sending took longer than 0\.05 s"):
            asyncio.run(_in_thread(lambda: released.wait(60), seconds=0.05, what="sending"))
        assert time.monotonic() - started < 50
    finally:
        released.set()
    with pytest.raises(EngineError, match="sending failed: no route"):
        asyncio.run(_in_thread(_no_route, seconds=60, what="sending"))


def _no_route() -> None:
    raise RuntimeError("no route")


def test_nccl_without_vllm_here_is_told(served, tiny_qwen3, tmp_path):
    with (
        FakeServer(served.decide) as server,
        pytest.raises(EngineError, match=r"forming the NCCL group|trainer's environment too"),
    ):
        push(server, tiny_qwen3(), tmp_path, how="nccl")


def test_a_folder_is_whole_or_not_there_and_the_one_before_goes(tiny_qwen3, tmp_path):
    model = tiny_qwen3(tie_word_embeddings=True)
    folder = WeightFolder(tmp_path)
    first, second = folder.write(model), folder.write(model)
    tensors = load_file(second / "model.safetensors")
    assert "lm_head.weight" not in tensors  # tied: written once
    assert sum(tensor.nbytes for tensor in tensors.values()) == num_bytes(model)
    folder.keep_only(second)
    assert sorted(path.name for path in folder.path.iterdir()) == [second.name]
    assert not first.exists()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_place_is_told_before_anything_is_written(tiny_qwen3, tmp_path, monkeypatch):
    folder = WeightFolder(tmp_path)
    monkeypatch.setattr("midcourse.engines.vllm.weight_folder.MARGIN", 1e12)
    with pytest.raises(EngineError, match=r"no room for the weights in .*set engine.server.weights_folder"):
        folder.write(tiny_qwen3())
    assert list(folder.path.iterdir()) == []
    folder.close()


def test_probe_sequences_are_the_same_every_time_and_grow():
    sequences = probe_sequences(61, 7)
    assert sequences == probe_sequences(61, 7)
    assert [len(ids) for ids in sequences] == [3, 5, 8, 13, 21, 34, 55]
    assert all(0 <= token < 61 for ids in sequences for token in ids)


def test_the_trainer_is_read_without_dropout_and_gradient(tiny_qwen3):
    model = tiny_qwen3(attention_dropout=0.5).train()
    first = trainer_logprobs(model, [[1, 2, 3], [4]])
    assert first.shape == (2, 61)
    assert torch.equal(first, trainer_logprobs(model, [[1, 2, 3], [4]]))
    assert first.exp().sum(-1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
    assert not first.requires_grad


def test_bounds_are_wide_where_one_side_is_narrow_and_nan_is_never_within():
    assert default_bounds("float32", "float32") == Bounds(worst=1e-3, mean=1e-4)
    assert default_bounds("float32", "bfloat16").mean == 0.15
    bounds = Bounds(worst=0.5, mean=0.1)
    assert Agreement(worst=0.5, mean=0.1).within(bounds)
    assert not Agreement(worst=0.6, mean=0.1).within(bounds)
    assert not Agreement(worst=0.5, mean=0.2).within(bounds)
    assert not Agreement(worst=math.nan, mean=math.nan).within(bounds)
