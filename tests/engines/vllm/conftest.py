import asyncio
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from midcourse.engines.vllm.own_server import OwnServer, OwnServerConfig

PYTHON = os.environ.get("MIDCOURSE_VLLM_PYTHON") or (sys.executable if find_spec("vllm") else None)
"""Interpreter that has vLLM; none: tests of a real server are skipped."""
ONE_THREAD = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling the sampler takes longer than all that the tests draw
}


def pytest_collection_modifyitems(items):
    skip = pytest.mark.skip(reason="no vLLM here: make test-vllm, or set MIDCOURSE_VLLM_PYTHON")
    for item in items:
        if PYTHON is None and item.get_closest_marker("vllm"):
            item.add_marker(skip)


@pytest.fixture(scope="module")
def runner():
    """One event loop for a module: servers live longer than a test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def small_qwen3():
    """Build a random model of 1000 tokens, sharp enough for wrong weights to show."""

    def make(*, is_tied: bool, seed: int = 0) -> Qwen3ForCausalLM:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        config = Qwen3Config(
            vocab_size=1000,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=is_tied,
            initializer_range=0.2,
            dtype="float32",
        )
        return Qwen3ForCausalLM(config).eval()

    return make


@pytest.fixture(scope="module")
def start_real(runner, tmp_path_factory):
    """Make servers of the real vLLM, not started yet, and stop them when the module's tests are done."""
    made: list[OwnServer] = []

    def make(*, model: Path | None = None, environment: dict[str, str] | None = None, **settings) -> OwnServer:
        config = OwnServerConfig(
            python=PYTHON,
            environment=ONE_THREAD | (environment or {}),
            arguments=("--enforce-eager", *settings.pop("arguments", ())),
            **({"context_length": 512, "start_seconds": 1800.0} | settings),
        )
        made.append(OwnServer(config, model=model, log_folder=tmp_path_factory.mktemp("log")))
        return made[-1]

    yield make
    for server in made:
        runner.run(server.stop())
