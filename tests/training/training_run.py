"""A small real run, its parts wrapped so that they can kill the process at a named moment.

`python training_run.py FOLDER` makes one run that is never killed and one for each scenario, each part of it in a
forked process, and prints as JSON what every one of them ended with.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from training_building import tiny_policy
from transformers import Qwen3ForCausalLM

from midcourse.advantages.group import group_advantages
from midcourse.engines.transformers import TransformersEngineConfig
from midcourse.environments.base import Evidence, Observation, RoleGuide, Task
from midcourse.methods.base import RolloutTools
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.recording.writer import RecordingConfig, RunWriter
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.training.config import TrainingConfig
from midcourse.training.trainer import TrainingParts, train
from midcourse.types import AssistantTurn, Group, Member, ToolCall, ToolResult

SCENARIOS = {
    "in the first wave": [("collect", 1)],
    "before the first checkpoint": [("write_groups", 2)],
    "between two waves": [("collect", 3)],
    "within a wave": [("collected", 8)],
    "between groups and metrics": [("write_metrics", 3)],
    "before a checkpoint": [("save_model", 1)],
    "within a checkpoint": [("saved_model", 2)],
    "within an evaluation": [("evaluate", 2)],
    "three times": [("collected", 2), ("write_metrics", 2), ("saved_model", 1)],
    "after the end": [],
}
UPDATES = 4


class Bomb:
    """Kills this process, without any goodbye, the n-th time a moment is passed."""

    def __init__(self, moment: str | None = None, count: int = 0) -> None:
        self.moment, self.count = moment, count
        self.passed: Counter[str] = Counter()

    def at(self, moment: str) -> None:
        self.passed[moment] += 1
        if moment == self.moment and self.passed[moment] == self.count:
            os.kill(os.getpid(), signal.SIGKILL)


class DigitChat:
    """Token ids are the text: a token from 2 to 9 ends a turn, a first token over 18 calls a tool."""

    stop_ids = tuple(range(2, 10))

    def open(self, *, system_prompt, tools, query):
        return [1, *(3 + int(digit) for digit in query)]

    def parse(self, turn_ids, *, tools=()):
        calls = (ToolCall(name="look", arguments={"token": turn_ids[0]}),) if turn_ids[0] > 18 else ()
        return AssistantTurn(content=" ".join(map(str, turn_ids)), tool_calls=calls)

    def observe(self, results):
        return [1, *(3 + int(result.content) % 10 for result in results), 1]


class ParityEpisode:
    """Rewards answers whose tokens sum to an even number; takes its time, differently each time."""

    def __init__(self):
        self.reward = 0.0

    def act(self, turn):
        time.sleep(0.002 * (time.monotonic_ns() % 3))
        if turn.tool_calls:
            return Observation(results=(ToolResult(name="look", content=str(turn.tool_calls[0].arguments["token"])),))
        self.reward = float(sum(map(int, turn.content.split())) % 2 == 0)
        return Observation(done=True)

    def score(self):
        return self.reward

    def fork(self):
        copy = ParityEpisode()
        copy.reward = self.reward
        return copy

    def close(self):
        pass


class ParityEnvironment:
    name, system_prompt, tools, max_turns = "parity", "", (), 3
    role_guide = RoleGuide(hard_rules=(), error_types=(), verifier_rejects=(), verifier_allows=())

    def tasks(self, split):
        return [
            Task(
                task_id=f"t{index}",
                split=split,
                query=f"{index}{index + 1}",
                evidence=Evidence(text="", private_values=()),
            )
            for index in range(5)
        ]

    def start(self, task, *, seed):
        return ParityEpisode()


class WatchedMethod:
    """Three plain rollouts a task."""

    def __init__(self, bomb: Bomb) -> None:
        self.bomb = bomb
        self.objective = ClippedObjective(ClippedConfig())

    async def collect(self, task, tools, *, seed, update):
        self.bomb.at("collect")
        trajectories = await asyncio.gather(
            *(
                run_episode(
                    task,
                    engine=tools.engine,
                    chat=tools.chat,
                    environment=tools.environment,
                    config=tools.rollout,
                    key=RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=attempt),
                )
                for attempt in range(3)
            )
        )
        self.bomb.at("collected")
        members = tuple(Member(trajectory=trajectory) for trajectory in trajectories)
        return Group(group_id=f"{update}:{task.task_id}", task_id=task.task_id, members=members)

    def advantages(self, group):
        return group_advantages(group.rewards)

    def statistics(self, groups):
        return {"intervention/groups": float(len(groups))}


class WatchedWriter(RunWriter):
    bomb: Bomb

    def write_metrics(self, update, metrics):
        self.bomb.at("write_metrics")
        super().write_metrics(update, metrics)

    def write_groups(self, update, groups):
        self.bomb.at("write_groups")
        super().write_groups(update, groups)


class WatchedModel(Qwen3ForCausalLM):
    bomb: Bomb

    def save_pretrained(self, *arguments, **settings):
        self.bomb.at("save_model")
        super().save_pretrained(*arguments, **settings)
        self.bomb.at("saved_model")


def run(folder: Path, *, resume: bool, bomb: Bomb, kept=None, **settings) -> None:
    """Train; `kept` are the settings that a resumed run must have, `settings` change those of training."""
    policy = tiny_policy()
    policy.model.__class__ = WatchedModel
    policy.model.bomb = bomb
    policy = replace(policy, chat=DigitChat())
    environment = ParityEnvironment()
    tools = RolloutTools(
        engine=TransformersEngineConfig(max_batch_rows=4).build(policy.model),
        chat=policy.chat,
        environment=environment,
        rollout=RolloutConfig(max_turn_tokens=8, groups_per_wave=2, temperature=0.9),
    )

    def evaluate(update):
        bomb.at("evaluate")
        total = sum(float(parameter.detach().double().sum()) for parameter in policy.model.parameters())
        return {"splits": {"eval": {"weights_sum": total}}}

    config = TrainingConfig(
        **{
            "updates": UPDATES,
            "tasks_per_update": 3,
            "learning_rate": 1e-2,
            "schedule": "cosine",
            "checkpoint_every": 2,
            "micro_batch_tokens": 40,
            "num_minibatches": 2,
            **settings,
        }
    )
    writer = WatchedWriter(folder, RecordingConfig(tensorboard=False), resolved_config="seed = 7\n", resume=resume)
    writer.bomb = bomb
    with writer:
        parts = TrainingParts(
            policy=policy,
            tools=tools,
            method=WatchedMethod(bomb),
            recorder=writer,
            tasks=environment.tasks("train"),
            settings=kept or {},
            evaluate=evaluate,
        )
        train(parts, config, seed=7, folder=folder, resume=resume, evaluate_every=2)


def outcome(folder: Path) -> dict:
    """Everything a run leaves that must not depend on whether it was killed."""

    def lines(name):
        records = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        return [{key: value for key, value in record.items() if not key.startswith("time/")} for record in records]

    last = folder / "checkpoints" / f"step_{UPDATES}"
    return {
        "files": {
            name: hashlib.sha256((last / name).read_bytes()).hexdigest()
            for name in ("model/model.safetensors", "optimizer.safetensors", "state.json")
        },
        "metrics": lines("metrics.jsonl"),
        "evaluations": lines("evaluations.jsonl"),
        "trajectories": sorted(path.name for path in (folder / "trajectories").iterdir()),
        "checkpoints": sorted(path.name for path in (folder / "checkpoints").iterdir()),
        "journal": sorted(path.name for path in (folder / "journal").rglob("*.jsonl")),
    }


def forked(folder: Path, *, resume: bool, bomb: Bomb) -> int:
    """Run in a process of its own and return its exit status, negative for a signal."""
    process = os.fork()
    if process == 0:
        try:
            run(folder, resume=resume, bomb=bomb)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(folder: Path) -> None:
    statuses, outcomes = {}, {}
    for number, (name, bombs) in enumerate({"never": None, **SCENARIOS}.items()):
        place = folder / f"run_{number}"
        chain = [Bomb(*bomb) for bomb in bombs or ()] + [Bomb()] * (2 if name == "after the end" else 1)
        statuses[name] = [forked(place, resume=index > 0, bomb=bomb) for index, bomb in enumerate(chain)]
        if statuses[name][-1] == 0:
            outcomes[name] = outcome(place)
    print(json.dumps({"statuses": statuses, "outcomes": outcomes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
