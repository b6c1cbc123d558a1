"""What midcourse costs beside the server: rollouts through it against the bare requests of the same rollouts.

    python -m benchmarks.serving [--python PATH_TO_A_PYTHON_THAT_HAS_VLLM]

64 episodes of several turns run side by side on Navigation, whose tools answer at once, with the built-in policy of 1
M parameters: the server's own work is as little as it gets, so that everything around it shows. Then the very requests
of these rollouts are sent by nothing but an HTTP client, 64 lanes, each an episode's turns one after another; of the
answer only the JSON is read. Both sides begin with an empty prefix cache; they alternate, and each goes first in turn.
Prints one JSON object:

throughput_ratio: midcourse's tokens a second over the bare client's, median over rounds; 1 is no cost at all.
weight_sync_share: seconds of bringing new weights, over those and the rollouts of an update.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from midcourse.assembly import assembled
from midcourse.config import build_config
from midcourse.engines.base import Completion, Engine, SamplingParams
from midcourse.engines.vllm.client import GENERATE, sampling_wishes
from midcourse.engines.vllm.routes import Routes
from midcourse.engines.vllm.server import SERVED_MODEL
from midcourse.environments.base import Task
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.methods.base import RolloutTools
from midcourse.methods.grpo import roll_out
from midcourse.nano.settings import navigation_settings
from midcourse.rollout.episode import RolloutKey

ATTEMPTS = 8
ON_A_CPU = {
    "arguments": ["--enforce-eager"],
    "environment": {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    },
}
Asked = tuple[list[int], SamplingParams]


class Noted(MeteredEngine):
    """An engine that notes what one episode asks for."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, purpose="policy", ledger=CostLedger())
        self.asked: list[Asked] = []
        self.tokens = 0

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Note the request and pass it on."""
        self.asked.append((list(prompt_ids), sampling))
        completion = await super().sample(prompt_ids, sampling)
        self.tokens += len(completion.token_ids)
        return completion


async def through_midcourse(tools: RolloutTools, tasks: Sequence[Task]) -> tuple[float, list[list[Asked]]]:
    """Roll every task out ATTEMPTS times side by side; return tokens a second, and what each episode asked for."""
    notes = [Noted(tools.engine) for _ in tasks for _ in range(ATTEMPTS)]
    episodes = [
        roll_out(
            task,
            replace(tools, engine=notes[place * ATTEMPTS + attempt]),
            key=RolloutKey(seed=0, update=0, task_id=task.task_id, attempt=0),
            attempts=[attempt],
            ledger=CostLedger(),
        )
        for place, task in enumerate(tasks)
        for attempt in range(ATTEMPTS)
    ]
    started = time.perf_counter()
    rollouts = await asyncio.gather(*episodes)
    seconds = time.perf_counter() - started
    if failed := [rollout.failure_message for (rollout,) in rollouts if rollout.failure is not None]:
        raise SystemExit(f"{len(failed)} rollouts failed: {failed[0]}")
    return sum(note.tokens for note in notes) / seconds, [note.asked for note in notes]


async def bare(url: str, lanes: Sequence[Sequence[Asked]]) -> float:
    """Send the same requests; return tokens a second."""
    bodies = [[_body(prompt_ids, sampling) for prompt_ids, sampling in lane] for lane in lanes]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, trust_env=False, limits=limits) as http:

        async def run(lane: Sequence[bytes]) -> int:
            tokens = 0
            for body in lane:
                reply = await http.post(GENERATE, content=body, headers={"Content-Type": "application/json"})
                reply.raise_for_status()
                tokens += len(reply.json()["choices"][0]["token_ids"])
            return tokens

        started = time.perf_counter()
        tokens = sum(await asyncio.gather(*map(run, bodies)))
        return tokens / (time.perf_counter() - started)


def _body(prompt_ids: Sequence[int], sampling: SamplingParams) -> bytes:
    wanted = {"model": SERVED_MODEL, "token_ids": prompt_ids, "sampling_params": sampling_wishes(sampling)}
    return json.dumps(wanted).encode()


async def measure(settings: dict[str, Any], *, rounds: int) -> dict[str, Any]:
    """Start a server and compare."""
    async with assembled(build_config(settings)) as parts:
        tools, engine = parts.tools, parts.tools.engine
        server = engine.server
        routes = Routes(server, seconds=60.0)
        tasks = tools.environment.tasks("train")[: 64 // ATTEMPTS]
        ratios, rates, shares = [], [], []
        _, lanes = await through_midcourse(tools, tasks)  # warms the server up
        for round_ in range(rounds):
            rate: dict[str, float] = {}
            for side in ("bare", "midcourse") if round_ % 2 else ("midcourse", "bare"):
                await routes.post("/reset_prefix_cache")
                if side == "bare":
                    rate[side] = await bare(server.url, lanes)
                    continue
                before, started = engine.usage().sync_seconds, time.perf_counter()
                rate[side], lanes = await through_midcourse(tools, tasks)
                await engine.update_weights(None, round_ + 1)
                shares.append((engine.usage().sync_seconds - before) / (time.perf_counter() - started))
            ratios.append(rate["midcourse"] / rate["bare"])
            rates.append(rate["midcourse"])
        return {
            "episodes": len(lanes),
            "requests": sum(map(len, lanes)),
            "rounds": rounds,
            "throughput_ratio": round(statistics.median(ratios), 3),
            "throughput_ratios": [round(ratio, 3) for ratio in ratios],
            "tokens_per_second": round(statistics.median(rates)),
            "weight_sync_share": round(statistics.median(shares), 3),
            "prefix_hit_rate": round(engine.usage().prompt_tokens_reused / engine.usage().prompt_tokens, 3),
        }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="of an environment that has vLLM; default: this one")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = navigation_settings("grpo", seed=0, updates=1, folder=Path(folder) / "run")
        settings["engine"] = {"name": "vllm", "server": {**ON_A_CPU, "python": options.python}}
        if options.python is None:
            del settings["engine"]["server"]["python"]
        print(json.dumps(asyncio.run(measure(settings, rounds=options.rounds))))


if __name__ == "__main__":
    main()
