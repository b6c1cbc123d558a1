"""RTI, MInTRL and RAIL on a real model, from rollouts to a checkpoint: two updates each, few tokens, on either engine.

The model is a base model of 270 M parameters: it calls no tools, solves nothing, and its verdicts as a role or a judge
are mostly unreadable. That must be counted, and no run may fail for it.
"""

import asyncio
import math

import pytest
from tests.engines.vllm.conftest import ONE_THREAD
from tests.engines.vllm.conftest import PYTHON as VLLM_PYTHON

from midcourse.config import build_config, register_all
from midcourse.recording.reader import RunReader
from midcourse.runs import train_run
from midcourse.training.checkpoint import check_manifest
from midcourse.training.policy import PolicyConfig, load_policy

pytestmark = pytest.mark.gemma

ROLES = {"max_tokens": 12}
METHODS = {
    "rti": ("navigation", {"group_size": 2, "attempts": 1, "roles": ROLES}),
    "mintrl": (
        "arithmetic",
        {
            "on_policy_rollouts": 2,
            "semi_on_policy_rollouts": 2,
            "chunk_tokens": 8,
            "max_reviews": 1,
            "max_intervention_tokens": 4,
            "judge": {"played_by": "self", "max_tokens": 12},
        },
    ),
    "rail": ("table_world", {"initial_rollouts": 2, "rollout_budget": 4, "shadow_anchors": 1}),
}

SERVER = {
    "python": VLLM_PYTHON or "",
    "context_length": 2048,
    "arguments": ["--enforce-eager"],
    "environment": ONE_THREAD,
}
ENGINES = {
    "transformers": {"name": "transformers", "context_length": 2048},
    "vllm": {"name": "vllm", "server": SERVER, "entropies": "trainer", "trainer_pass": {"context_length": 2048}},
}


def run(method: str, engine: str, policy, folder):
    environment, settings = METHODS[method]
    register_all()
    config = build_config(
        {
            "output": str(folder),
            "environment": {"name": environment},
            "policy": {**policy, "logprob_chunk_tokens": 128, "lora": {"rank": 4}},
            "engine": ENGINES[engine],
            "rollout": {"max_turn_tokens": 8, "max_turns": 2},
            "method": {"name": method, **settings},
            "training": {"updates": 2, "tasks_per_update": 1, "learning_rate": 1e-4, "micro_batch_tokens": 1024},
            "evaluation": {"every": 0, "at_start": False, "attempts": 1, "splits": ["test"], "max_tasks": 1},
        }
    )
    summary = asyncio.run(train_run(config, resume=False, advance=lambda *_: None))
    assert not summary["failed"]
    return RunReader(folder).metrics()


def counted(metrics, beginning: str) -> float:
    return sum(value for name, value in metrics.items() if name.startswith(beginning))


@pytest.mark.parametrize(
    "engine",
    [
        "transformers",
        pytest.param("vllm", marks=pytest.mark.skipif(not VLLM_PYTHON, reason="no vLLM: set MIDCOURSE_VLLM_PYTHON")),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_two_updates_end_with_finite_numbers_and_a_checkpoint(method, engine, gemma_settings, tmp_path):
    folder = tmp_path / "run"
    updates = run(method, engine, gemma_settings, folder)
    assert [metrics["update"] for metrics in updates] == [1, 2]
    for metrics in updates:
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["rollout/count"] >= 2
        assert metrics["rollout/errors/total"] == 0
        assert metrics["tokens/policy"] > 0
        if method == "rti":  # the group fails as a whole, and every step of its attempt has one outcome
            assert metrics["intervention/num_groups_triggered"] == 1
            assert counted(metrics, "intervention/outcome/") == metrics["intervention/num_steps"] > 0
        if method == "mintrl":
            assert counted(metrics, "intervention/review/") > 0
    check_manifest(folder / "checkpoints" / "step_2")
    again = load_policy(PolicyConfig(**gemma_settings | {"path": str(folder / "checkpoints" / "step_2" / "model")}))
    assert type(again.model).__name__ == "Gemma3ForCausalLM"
