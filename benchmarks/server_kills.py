"""A vLLM server that is killed in mid-rollout, again and again, in one run: is anything lost, twice, or wrong?

    python -m benchmarks.server_kills [--python PATH_TO_A_PYTHON_THAT_HAS_VLLM] [--kills 10]

RTI trains the built-in policy on Navigation. In each of the first updates, while requests are in flight, one part of
the server gets SIGKILL: its front, its engine or its worker, in turn. The server comes back with the weights pushed
last, is probed, and is asked again. Afterwards the record is counted. Prints one JSON object; ends in an error unless
every update has its groups, each once, no rollout failed, and every token's log-probability is the trainer's own.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving import ON_A_CPU

from midcourse.assembly import assembled
from midcourse.config import build_config, resolved_toml
from midcourse.engines.base import Completion, SamplingParams
from midcourse.engines.vllm.engine import VllmEngine
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.nano.settings import navigation_settings
from midcourse.recording.reader import RunReader
from midcourse.recording.writer import RunWriter
from midcourse.training.trainer import TrainingParts, train_async
from midcourse.types import TokenSource

PARTS = {"front": "api_server", "engine": "VLLM::EngineCore", "worker": "VLLM::Worker"}
MOST_DIFFERENCE = 1e-3
"""Nats, between server and trainer on any trained token; both compute in float32."""


class Deadly(MeteredEngine):
    """The engine; kills a part of its server once in an update, while that works on a request."""

    def __init__(self, engine: VllmEngine, *, kills: int, at_request: int) -> None:
        super().__init__(engine, purpose="policy", ledger=CostLedger())
        self.left, self.at_request = kills, at_request
        self.killed: list[str] = []
        self.requests = 0

    async def update_weights(self, weights: Any, version: int) -> None:
        """Pass the weights on; from here on requests are counted anew."""
        await super().update_weights(weights, version)
        self.requests = 0

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Ask, and in the middle of it kill who is asked."""
        self.requests += 1
        if self.left and self.requests == self.at_request:
            self.left -= 1
            asyncio.get_running_loop().call_later(0.02, self._kill)
        return await super().sample(prompt_ids, sampling)

    def _kill(self) -> None:
        part = list(PARTS)[len(self.killed) % len(PARTS)]
        for process in processes(PARTS[part]):
            os.kill(process, signal.SIGKILL)
            self.killed.append(part)
            return


def processes(sign: str) -> Iterator[int]:
    """Yield the processes under this one whose command has `sign`, but for keepers, whose arguments have it too."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                if sign in command and "keeper.py" not in command and os.getpid() in ancestors(int(entry.name)):
                    yield int(entry.name)


def ancestors(process: int) -> Iterator[int]:
    """Yield a process's parent, its parent's, and so on."""
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
        yield process


async def train(settings: dict[str, Any], *, kills: int) -> tuple[list[str], int, float]:
    """Train; return what was killed, how often the server was restarted, and the seconds."""
    config = build_config(settings)
    started = time.monotonic()
    async with assembled(config) as parts:
        engine = parts.tools.engine
        deadly = Deadly(engine, kills=kills, at_request=config.training.tasks_per_update * 8 + 4)
        with RunWriter(config.output_folder, config.recording, resolved_config=resolved_toml(config)) as writer:
            await train_async(
                TrainingParts(
                    policy=parts.policy,
                    tools=replace(parts.tools, engine=deadly),
                    method=parts.method,
                    recorder=writer,
                    tasks=parts.tools.environment.tasks("train"),
                ),
                config.training,
                seed=config.seed,
                folder=config.output_folder,
            )
        return deadly.killed, engine.server.restarts, time.monotonic() - started


def read_back(folder: Path, *, updates: int, tasks_per_update: int) -> dict[str, Any]:
    """Return what the record holds, as counts."""
    reader = RunReader(folder)
    lines = reader.metrics()
    groups = {update: reader.trajectories(update) for update in reader.trajectory_updates()}
    tokens_of_wrong_version = sum(
        version != update - 1
        for update, found in groups.items()
        for group in found
        for member in group.members
        for source, version in zip(member.trajectory.sources, member.trajectory.policy_versions, strict=True)
        if source is TokenSource.POLICY
    )
    return {
        "updates": sorted({int(line["update"]) for line in lines}) == list(range(1, updates + 1)),
        "groups": sum(map(len, groups.values())),
        "groups_expected": updates * tasks_per_update,
        "groups_twice": sum(len(found) - len({group.task_id for group in found}) for found in groups.values()),
        "rollouts_failed": sum(line["rollout/errors/total"] for line in lines),
        "tokens_of_wrong_version": tokens_of_wrong_version,
        "max_logprob_difference": max(line["mismatch/max_abs_logprob"] for line in lines),
    }


def main() -> None:
    """Run, read back, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="of an environment that has vLLM; default: this one")
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    updates = options.kills + 2
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        settings = navigation_settings("rti", seed=0, updates=updates, folder=folder)
        server = {**ON_A_CPU, "max_restarts": options.kills}
        settings["engine"] = {"name": "vllm", "server": server | ({"python": options.python} if options.python else {})}
        killed, restarts, seconds = asyncio.run(train(settings, kills=options.kills))
        found = read_back(folder, updates=updates, tasks_per_update=settings["training"]["tasks_per_update"])
    print(json.dumps({"killed": killed, "restarts": restarts, "seconds": round(seconds), **found}))
    is_whole = (
        found["updates"]
        and found["groups"] == found["groups_expected"]
        and not found["groups_twice"]
        and not found["rollouts_failed"]
        and not found["tokens_of_wrong_version"]
        and found["max_logprob_difference"] < MOST_DIFFERENCE
        and len(killed) == options.kills <= restarts
    )
    raise SystemExit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
