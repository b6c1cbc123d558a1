"""Updates by one process and by two, each in forked processes of its own.

`python distributed_run.py FOLDER` makes every scenario and leaves FOLDER/<name>.pt with what it came to; torch is
imported once for all of them.
"""

import copy
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from training_building import INTERVENTION, make_group, make_trajectory, tiny_policy, weights_of
from transformers import Qwen3ForCausalLM

from midcourse.advantages.group import group_advantages
from midcourse.errors import TrainingError
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.distillation import DistillationObjective
from midcourse.objectives.regression import RegressionConfig, RegressionObjective
from midcourse.training.checkpoint import TrainingState, load_latest, save_checkpoint
from midcourse.training.config import TrainingConfig
from midcourse.training.distributed import joined
from midcourse.training.launch import Launch
from midcourse.training.lora import LoraConfig, add_adapter
from midcourse.training.policy import keep_fewer_activations
from midcourse.training.update import Updater, follow
from midcourse.training.world import Alone
from midcourse.types import Group, Member

HANG_SECONDS = 4.0
"""How long the others are waited for where one hangs; elsewhere machines may be slow."""
UPDATES = 2
CALM = {"adam_epsilon": 1e-3}
"""AdamW moves a weight by the sign of its gradient, were that 1e-9 and rounding alone; not so with this."""
PROPORTIONAL = {"adam_epsilon": 1.0}
"""AdamW moves a weight by no more than the learning rate times its gradient."""
PREFIX = list(range(3, 23)) * 4


def lettered(group: Group) -> Group:
    """The group with its third and fourth token by the intervention, and a teacher's numbers."""
    members = []
    for index, member in enumerate(group.members):
        old = member.trajectory
        sources = tuple(INTERVENTION if place in (3, 4) else source for place, source in enumerate(old.sources))
        teacher = tuple(None if value is None else -0.5 * index - 1.0 for value in old.behavior_logprobs)
        members.append(Member(trajectory=replace(old, sources=sources, teacher_logprobs=teacher)))
    return replace(group, members=tuple(members))


def branches() -> Group:
    """Rows with 80 tokens in common."""
    rows = [[*PREFIX, *range(3, 3 + length)] for length in (4, 9, 6, 5)] + [[*PREFIX[:40], 7, 8, 9]]
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0]
    members = [make_trajectory(row, reward=reward) for row, reward in zip(rows, rewards, strict=True)]
    return Group(group_id="b", task_id="task", members=tuple(Member(trajectory=row) for row in members))


PLAIN = [
    make_group([1.0, 0.0, 0.0, 1.0], seed=1),
    make_group([0.0, 0.0, 1.0, None], seed=2, lengths=(12, 4, 30, 5)),
    make_group([0.0, 1.0, 1.0], seed=3),
]
LETTERED = [lettered(group) for group in PLAIN]


class BrokenOnce(ClippedObjective):
    """Gives one process a gradient that is not a number, in its third micro-batch."""

    calls = 0

    def __call__(self, inputs):
        self.calls += 1
        output = super().__call__(inputs)
        is_broken = self.calls == 3 and inputs.advantages_BT.shape[1] > 0
        return replace(output, loss=output.loss * (float("nan") if is_broken else 1.0))


def clipped(**settings) -> ClippedObjective:
    return ClippedObjective(ClippedConfig(**settings))


def regression() -> RegressionObjective:
    return RegressionObjective(RegressionConfig(anchor="const", beta=0.1, kappa=-0.3, huber_delta=0.5))


def untied_policy():
    """The head has weights of its own."""
    policy = tiny_policy()
    config = copy.deepcopy(policy.model.config)
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    return replace(policy, model=Qwen3ForCausalLM(config).eval())


def lora_policy(dtype: torch.dtype = torch.float32):
    policy = tiny_policy(dtype=dtype)
    add_adapter(policy.model, LoraConfig(rank=2), base="tiny")
    policy.model.get_submodule("model.layers.0.self_attn.q_proj").lora_B["default"].weight.data.normal_(
        generator=torch.Generator().manual_seed(4)
    )
    return policy


# name -> policy, objective, groups, settings
EQUAL: dict[str, tuple[Callable[[], Any], Callable[[], Any], list[Group], dict[str, Any]]] = {
    "clipped": (tiny_policy, clipped, PLAIN, {"num_minibatches": 2}),
    "reference": (tiny_policy, lambda: clipped(kl_coefficient=0.3), PLAIN, {"num_epochs": 2}),
    "token mean": (
        lambda: tiny_policy(logprob_chunk_tokens=3),
        lambda: clipped(aggregation="token-mean"),
        PLAIN,
        {"max_grad_norm": 0.01},
    ),
    "regression": (tiny_policy, regression, LETTERED, {"num_epochs": 2, "importance_cap": 1.2}),
    "distillation": (tiny_policy, lambda: DistillationObjective(ClippedConfig(), coefficient=0.5), LETTERED, {}),
    "no work": (tiny_policy, lambda: clipped(kl_coefficient=0.3), PLAIN[:1], {"micro_batch_tokens": 1000}),
    "branches": (
        lambda: tiny_policy(gradient_checkpointing=True),
        clipped,
        [branches(), *PLAIN],
        {"num_epochs": 2, "micro_batch_tokens": 200, **CALM},
    ),
    "untied": (untied_policy, clipped, PLAIN, CALM),
    "bfloat16": (lambda: tiny_policy(dtype=torch.bfloat16), clipped, PLAIN, PROPORTIONAL),
    "adapter": (lora_policy, lambda: clipped(kl_coefficient=0.3), PLAIN, {"num_epochs": 2, **CALM}),
    "adapter on bfloat16": (lambda: lora_policy(dtype=torch.bfloat16), clipped, PLAIN, CALM),
}

# name -> policy, settings
SAVED: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "float32": (tiny_policy, {}),
    "bfloat16": (lambda: tiny_policy(dtype=torch.bfloat16), PROPORTIONAL),
    "adapter": (lora_policy, CALM),
}


def settings_of(**changed) -> TrainingConfig:
    return TrainingConfig(**{"learning_rate": 1e-2, "updates": 10, "micro_batch_tokens": 24, **changed})


def update(updater: Updater, groups: list[Group]) -> dict[str, float]:
    return updater.update(groups, [group_advantages(group.rewards) for group in groups])


def equal(world) -> dict[str, Any]:
    """Some updates of every scenario."""
    outcomes = {}
    for name, (make_policy, objective, groups, settings) in EQUAL.items():
        policy = make_policy()
        if policy.config.gradient_checkpointing:
            keep_fewer_activations(policy.model)
        if not world.is_main:
            with torch.no_grad():
                for weight in policy.model.parameters():
                    weight.mul_(1.5)  # the main process's weights are the ones that count
            follow(policy, world, world.calls())
            continue
        before = weights_of(policy.model)
        updater = Updater(policy, objective(), settings_of(**settings), world=world)
        metrics = [update(updater, groups) for _ in range(UPDATES)]
        outcomes[name] = {
            "before": before,
            "weights": weights_of(policy.model),
            "moments": updater.moments(),
            "metrics": metrics,
            "is_split": [
                isinstance(weight, DTensor)
                for model in (updater.model, updater.reference)
                if model is not None
                for weight in model.parameters()
            ],
        }
        release(world)
    return outcomes


def nonfinite(world) -> dict[str, Any]:
    """A step that one process cannot take, then one that it can; and then too many in a row."""
    policy = tiny_policy()
    if not world.is_main:
        try:
            follow(policy, world, world.calls())
        except TrainingError as error:
            return {"error": str(error)}
        return {}
    updater = Updater(policy, BrokenOnce(ClippedConfig()), settings_of(max_nonfinite_steps=2), world=world)
    before = weights_of(policy.model)
    skipped = update(updater, PLAIN)
    kept = weights_of(policy.model)
    taken = update(updater, PLAIN)
    found = {"before": before, "kept": kept, "after": weights_of(policy.model), "metrics": [skipped, taken]}
    broken = Member(trajectory=replace(PLAIN[0].members[0].trajectory, temperature=1e-45))
    try:
        for _ in range(3):
            update(updater, [replace(PLAIN[0], members=(broken, *PLAIN[0].members[1:]))])
    except TrainingError as error:
        return {**found, "error": str(error)}
    return found


def saved(world, folder: Path, *, updates: int = UPDATES, resume: bool = False) -> dict[str, Any]:
    """Some updates and a checkpoint, or, from one, as many more; of every kind of weights."""
    outcomes = {}
    for name, (make_policy, settings) in SAVED.items():
        policy = make_policy()
        if not world.is_main:
            follow(policy, world, world.calls())
            continue
        objective, config = clipped(kl_coefficient=0.1), settings_of(schedule="linear", **settings)
        updater = Updater(policy, objective, config, world=world)
        done = 0
        if resume:
            found = load_latest(folder / name, policy=policy, updater=updater)
            assert found is not None
            done = found.update
        for _ in range(updates):
            update(updater, PLAIN[:1])
        state = TrainingState(update=done + updates, data={"seed": 0})
        save_checkpoint(folder / name, policy=policy, updater=updater, state=state, keep=2)
        outcomes[name] = {
            "weights": weights_of(policy.model),
            "moments": updater.moments(),
            "counters": updater.counters,
        }
        release(world)
    return outcomes


class Fatal(ClippedObjective):
    """Ends process 1, or lets it hang, in the second update."""

    def __init__(self, config, how: str) -> None:
        super().__init__(config)
        self.how, self.calls = how, 0

    def __call__(self, inputs):
        self.calls += 1
        if os.environ["RANK"] == "1" and self.calls > 5:
            if self.how == "hangs":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(inputs)


def lost(world, how: str) -> dict[str, Any]:
    """A process that dies or hangs within an update, or a main one that dies or fails between two."""
    policy = tiny_policy()
    started = time.monotonic()
    try:
        if not world.is_main:
            follow(policy, world, world.calls())
        else:
            updater = Updater(policy, Fatal(ClippedConfig(), how), settings_of(), world=world)
            update(updater, PLAIN)
            if how == "main dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "main fails":
                raise ValueError("the rollouts have failed")
            started = time.monotonic()
            update(updater, PLAIN)
    except TrainingError as error:
        return {"error": str(error), "seconds": time.monotonic() - started}
    return {}


def release(world) -> None:
    """Let the others leave `follow`."""
    if not isinstance(world, Alone):
        world.end(None)


def process(rank: int, size: int, port: int, work: Callable[[Any], Any], place: Path, timeout_seconds: float) -> int:
    """Fork a process that does the work in its world and writes what comes of it; return its id."""
    child = os.fork()
    if child:
        return child
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    status = 1
    try:
        torch.use_deterministic_algorithms(True)
        if size == 1:
            torch.save(work(Alone()), place)
        else:
            settings = settings_of(process_timeout_seconds=timeout_seconds)
            with joined(Launch.from_environment(), "cpu", settings) as world:
                torch.save(work(world), place)
                if not world.is_main:
                    list(world.calls())  # until the main process leaves the block
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def make(name: str, size: int, work: Callable[[Any], Any], folder: Path) -> None:
    """Do the work in `size` processes; their files are NAME.SIZE.RANK.pt, their ends NAME.SIZE.status.pt."""
    port = free_port()
    timeout_seconds = HANG_SECONDS if name == "hangs" else 600.0
    children = [
        process(rank, size, port, work, folder / f"{name}.{size}.{rank}.pt", timeout_seconds) for rank in range(size)
    ]
    by_id = dict.fromkeys(children, 0)
    limit = time.monotonic() + 600
    left = set(children)
    while left:
        for child in list(left):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                by_id[child] = os.waitstatus_to_exitcode(status)
                left.remove(child)
        if left and (time.monotonic() > limit or (name == "hangs" and left == {children[1]})):
            for child in left:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    torch.save([by_id[child] for child in children], folder / f"{name}.{size}.status.pt")


def main(folder: Path) -> None:
    for size in (1, 2):
        make("equal", size, equal, folder)
        make("saved", size, lambda world, place=folder / f"run_{size}": saved(world, place), folder)
    make("nonfinite", 2, nonfinite, folder)
    make("straight", 1, lambda world: saved(world, folder / "straight", updates=2 * UPDATES), folder)
    for first, second in ((1, 2), (2, 1), (2, 2)):
        place = shutil.copytree(folder / f"run_{first}", folder / f"run_{first}_{second}")
        make(f"from {first}", second, lambda world, place=place: saved(world, place, resume=True), folder)
    for how in ("dies", "hangs", "main dies", "main fails"):
        make(how, 2, lambda world, how=how: lost(world, how), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
