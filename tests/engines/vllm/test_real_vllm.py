"""A real server on a CPU. Minutes: each start takes half a minute on a quiet machine."""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
import torch

from midcourse.engines.vllm import keeper
from midcourse.engines.vllm.routes import Routes
from midcourse.engines.vllm.server import SERVED_MODEL
from midcourse.engines.vllm.weights import WeightSync
from midcourse.errors import EngineError

pytestmark = pytest.mark.vllm
TOLERANCE = 1e-4  # nats
DETECTION_SECONDS = 10.0
SECONDS = 600.0


class _WithoutTying(WeightSync):
    """Loads as vLLM's own route does, which leaves the head of a tied model as it was."""

    async def _load_file(self, folder: Path) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._routes.post("/collective_rpc", body)


def _shift(model: torch.nn.Module, *, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)


async def _worst_difference(server, model) -> float:
    """Compare every token of a text, not only the last: prompt scores against a forward pass."""
    ids = torch.randint(0, 1000, (40,), generator=torch.Generator().manual_seed(3))
    body = {
        "model": SERVED_MODEL,
        "token_ids": ids.tolist(),
        "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False},
    }
    answer = await Routes(server, seconds=SECONDS).post("/inference/v1/generate", body)
    found = [next(iter(scores.values()))["logprob"] for scores in answer["prompt_logprobs"][1:]]
    with torch.no_grad():
        expected = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    return (torch.tensor(found) - expected).abs().max().item()


def _processes(session: int) -> dict[str, int]:
    """Return the server's processes by their part."""
    commands = {}
    for pid in keeper._members(session):
        with contextlib.suppress(OSError):  # it ends while it is looked at
            commands[pid] = Path(f"/proc/{pid}/cmdline").read_text()
    signs = {"server": "openai.api_server", "engine": "VLLM::EngineCor", "worker": "VLLM::Worker"}
    return {part: pid for part, sign in signs.items() for pid, command in commands.items() if sign in command}


@pytest.fixture(scope="module", params=["tied", "untied"])
def pushed(request, runner, start_real, small_qwen3):
    """A server that was started by the first push, the model and what keeps them equal."""
    model = small_qwen3(is_tied=request.param == "tied")
    server = start_real(max_restarts=10)
    sync = WeightSync(server, seconds=SECONDS)
    started = time.monotonic()
    report = runner.run(sync.push(model, version=0))
    print(f"\n{request.param}: started and pushed in {time.monotonic() - started:.1f} s: {report}")
    yield server, model, sync
    runner.run(sync.close())


def test_every_update_reaches_every_weight(pushed, runner):
    server, model, sync = pushed
    assert runner.run(_worst_difference(server, model)) < TOLERANCE
    for version in (1, 2):
        before = runner.run(_worst_difference(server, model))
        _shift(model, seed=version)
        assert runner.run(_worst_difference(server, model)) > 0.1 > before
        report = runner.run(sync.push(model, version=version))
        print(f"\npushed: {report}")
        assert report.agreement.worst < TOLERANCE
        assert runner.run(_worst_difference(server, model)) < TOLERANCE


def test_the_head_that_a_plain_reload_leaves_behind_is_noticed(pushed, runner):
    server, model, sync = pushed
    is_tied = model.config.tie_word_embeddings
    broken = _WithoutTying(server, seconds=SECONDS)
    _shift(model, seed=7)
    try:
        if is_tied:
            with pytest.raises(EngineError, match=r"does not compute with the trainer's weights \(version 3"):
                runner.run(broken.push(model, version=3))
        else:
            assert runner.run(broken.push(model, version=3)).agreement.worst < TOLERANCE
    finally:
        runner.run(broken.close())
        server.prepare = sync._restore
    assert runner.run(sync.push(model, version=4)).agreement.worst < TOLERANCE


def test_more_prompts_than_one_step_takes_are_drawn_with_seeds(pushed, runner):
    """vLLM dies on a CPU where a prompt is split over two steps and its request has a seed."""
    server, model, _ = pushed
    if not model.config.tie_word_embeddings:
        pytest.skip("the other server shows it")
    restarts = server.restarts

    async def run() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS, trust_env=False) as client:

            async def ask(seed: int) -> int:
                sampling = {"max_tokens": 3, "seed": seed, "ignore_eos": True, "detokenize": False}
                prompt = [(seed * 7 + place * place) % 1000 for place in range(300)]
                body = {"model": SERVED_MODEL, "token_ids": prompt, "sampling_params": sampling}
                return (await client.post("/inference/v1/generate", json=body)).status_code

            return await asyncio.gather(*map(ask, range(60)))

    assert runner.run(run()) == [200] * 60
    assert server.restarts == restarts


@pytest.mark.parametrize("victim", ["server", "engine", "worker"])
def test_a_killed_part_costs_no_request(pushed, runner, victim):
    server, model, sync = pushed
    if not model.config.tie_word_embeddings:
        pytest.skip("the other server shows it")
    restarts = server.restarts
    session = server._process.pid
    parts = _processes(session)
    memory = keeper.shared_memory(session)
    broke_at: list[float] = []

    async def ask(client: httpx.AsyncClient, seed: int) -> dict:
        sampling = {"max_tokens": 400, "seed": seed, "ignore_eos": True, "detokenize": False}
        body = {"model": SERVED_MODEL, "token_ids": [seed, 1, 2], "sampling_params": sampling}
        while True:
            try:
                reply = await client.post(f"{server.url}/inference/v1/generate", json=body)
                if reply.status_code == 200:
                    return reply.json()["choices"][0]
            except httpx.TransportError:
                pass
            broke_at.append(time.monotonic())
            await server.revive()

    async def run() -> tuple[float, list[dict]]:
        async with httpx.AsyncClient(timeout=SECONDS, trust_env=False) as client:
            asked = [asyncio.create_task(ask(client, seed)) for seed in range(4)]
            await asyncio.sleep(0.15)  # 400 tokens take longer, on any machine
            assert not any(task.done() for task in asked)
            killed_at = time.monotonic()
            os.kill(parts[victim], signal.SIGKILL)
            return killed_at, list(await asyncio.gather(*asked))

    _shift(model, seed=20 + restarts)
    runner.run(sync.push(model, version=20 + restarts))
    killed_at, answers = runner.run(run())
    noticed, all_answered = min(broke_at) - killed_at, time.monotonic() - killed_at
    print(f"\n{victim}: noticed after {noticed:.2f} s, everything answered after {all_answered:.1f} s")
    assert noticed < DETECTION_SECONDS
    assert server.restarts == restarts + 1
    assert [len(answer["token_ids"]) for answer in answers] == [400] * 4
    assert {span["version"] for answer in answers for span in answer["weight_versions"]} == {str(20 + restarts)}
    assert runner.run(sync.probe()).worst < TOLERANCE
    assert runner.run(_worst_difference(server, model)) < TOLERANCE
    assert keeper._members(session) == []
    assert not any(os.path.exists(path) for path in memory)


def test_parts_end_without_their_keeper_and_a_stop_leaves_nothing(pushed, runner):
    server, _, _ = pushed
    session = server._process.pid
    parts = _processes(session)
    memory = keeper.shared_memory(session)
    assert len(parts) == 3
    assert memory  # else this test sees nothing
    os.kill(session, signal.SIGKILL)
    deadline = time.monotonic() + DETECTION_SECONDS
    while set(_processes(session)) & set(parts) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _processes(session)
    runner.run(server.stop())
    assert keeper._members(session) == []
    assert not any(os.path.exists(path) for path in (*memory, server.folder, server._scratch))


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
def test_an_adapter_is_loaded_in_place(runner, start_real, small_qwen3, tmp_path):
    peft = pytest.importorskip("peft")
    model = small_qwen3(is_tied=True)
    model.save_pretrained(tmp_path / "base")
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, adapter).eval()
    server = start_real(model=tmp_path / "base", max_lora_rank=4)
    sync = WeightSync(server, seconds=SECONDS)
    for version in (1, 2):
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.3)
        report = runner.run(sync.push(adapted, version=version))
        print(f"\npushed: {report}")
        assert report.how == "lora"
        assert report.agreement.worst < TOLERANCE
    os.kill(_processes(server._process.pid)["server"], signal.SIGKILL)
    assert runner.run(server.revive())  # probes, or raises
    with torch.no_grad(), adapted.disable_adapter():
        plain = torch.log_softmax(adapted(torch.tensor([[1, 2, 3]])).logits[0, -1], -1)
    with torch.no_grad():
        assert (torch.log_softmax(adapted(torch.tensor([[1, 2, 3]])).logits[0, -1], -1) - plain).abs().max() > 0.1
    runner.run(sync.close())
    runner.run(server.stop())


def test_a_context_that_does_not_fit_the_memory_is_told(runner, start_real, small_qwen3, tmp_path):
    small_qwen3(is_tied=True).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 1 << 23}))
    server = start_real(model=tmp_path, context_length=1 << 23)
    with pytest.raises(EngineError, match=r"(?s)ended with status 1 .*\n  ValueError: .*KV cache"):
        runner.run(server.ready())
    runner.run(server.stop())
