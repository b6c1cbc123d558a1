"""Training on rows that begin alike: each shared token computed once, against separate rows. Prints one JSON object.

    python -m benchmarks.shared_prefix

Both sides run in one process, alternating, on one thread; half of the prefix carries loss, too. Seconds are the
thread's processor time, so that other work on the machine counts little; a ratio is separate rows over shared, the
median over rounds.

cases: whole updates (log-probabilities, clipped objective, backward pass, AdamW) with training.shared_prefix off and
auto, of policies by width and of the built-in ones. ceiling: tokens of the rows over tokens that are computed.
max_gradient_difference: largest entry over the largest gradient, of a weighted sum of the log-probabilities.
break_even: forward and backward pass of two rows, and of twelve, that share few tokens, as a tree in any case. `pays`
is what the rule of `PrefixTree` says there.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from benchmarks.models import random_model
from torch import Tensor
from transformers import PreTrainedModel

from midcourse.nano.package import BUILT_IN
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.training.config import TrainingConfig
from midcourse.training.policy import Policy, PolicyConfig, TokenLogprobs, token_logprobs
from midcourse.training.prefix_tree import grow_tree
from midcourse.training.shared_prefix import tree_logprobs
from midcourse.training.update import Updater
from midcourse.types import Group, Member, TokenSource, Trajectory

SHAPES = {"branches": (12, 200, 32), "group": (8, 60, 100)}  # rows, shared tokens, tokens of their own
BREAK_EVEN = ((2, 16), (2, 32), (2, 48), (2, 64), (2, 96), (12, 8), (12, 16), (12, 32))  # rows, shared tokens
OWN_TOKENS = 64  # of a row, in the search for the break-even


def _model(name: str) -> PreTrainedModel:
    return BUILT_IN[name].load().eval() if name in BUILT_IN else random_model(int(name))


def _group(vocabulary: int, branches: int, shared: int, own: int) -> Group:
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randint(0, vocabulary, (shared,), generator=generator).tolist()
    members = []
    for _ in range(branches):
        ids = prefix + torch.randint(0, vocabulary, (own,), generator=generator).tolist()
        trained = [position >= shared // 2 for position in range(len(ids))]
        trajectory = Trajectory(
            task_id="task",
            token_ids=tuple(ids),
            sources=tuple(TokenSource.POLICY if flag else TokenSource.PROMPT for flag in trained),
            behavior_logprobs=tuple(-1.0 if flag else None for flag in trained),
            policy_versions=tuple(0 if flag else None for flag in trained),
            weights=(1.0,) * len(ids),
            calibration_logprobs=(None,) * len(ids),
            reward=0.0,
        )
        members.append(Member(trajectory=trajectory))
    return Group(group_id="group", task_id="task", members=tuple(members))


def _advantages(count: int) -> list[float]:
    return [(-1.0) ** index * (1 + index / 8) for index in range(count)]


def _seconds(step: Callable[[], object]) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


def _ratio(apart: Callable[[], object], shared: Callable[[], object], rounds: int) -> float:
    for step in (apart, shared):  # warm both up
        step()
    return round(statistics.median(_seconds(apart) / _seconds(shared) for _ in range(rounds)), 2)


def _passes(model: PreTrainedModel, group: Group) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return two steps that take the gradient of one weighted sum of log-probabilities: rows apart, and as a tree."""
    rows = [member.trajectory.token_ids for member in group.members]
    trained = [[source is TokenSource.POLICY for source in member.trajectory.sources] for member in group.members]
    asked = {"wanted": trained, "temperatures": [1.0] * len(rows)}
    advantages_B1 = torch.tensor(_advantages(len(rows)))[:, None]

    def gradient(find: Callable[[], TokenLogprobs]) -> Tensor:
        model.zero_grad()
        (1e-3 * advantages_B1 * find().logprobs_BT).sum().backward()
        return torch.cat([part.grad.flatten() for part in model.parameters() if part.grad is not None])

    return (
        partial(gradient, lambda: token_logprobs(model, rows, **asked)),
        partial(gradient, lambda: tree_logprobs(model, grow_tree(rows, segment_tokens=0), **asked)),
    )


def _updater(model: PreTrainedModel, kind: Literal["auto", "off"]) -> Updater:
    policy = Policy(model=model, tokenizer=None, chat=None, config=PolicyConfig(device="cpu"))  # type: ignore[arg-type]
    config = TrainingConfig(shared_prefix=kind, micro_batch_tokens=100_000)
    return Updater(policy, ClippedObjective(ClippedConfig()), config)


def _measure(name: str, shape: str, rounds: int) -> dict[str, object]:
    branches, prefix, own = SHAPES[shape]
    model = _model(name)
    group = _group(model.config.vocab_size, branches, prefix, own)
    apart, shared = (step() for step in _passes(model, group))
    off, auto = (
        partial(_updater(copy.deepcopy(model), kind).update, [group], [_advantages(branches)])
        for kind in ("off", "auto")
    )
    return {
        "model": name,
        "branches": branches,
        "prefix_tokens": prefix,
        "own_tokens": own,
        "ceiling": round(branches * (prefix + own) / auto()["objective/computed_tokens"], 2),
        "ratio": _ratio(off, auto, rounds),
        "max_gradient_difference": float((apart - shared).abs().max() / apart.abs().max()),
    }


def _break_even(name: str, branches: int, shared: int, rounds: int) -> dict[str, object]:
    model = _model(name)
    group = _group(model.config.vocab_size, branches, shared, OWN_TOKENS)
    return {
        "model": name,
        "rows": branches,
        "shared_tokens": shared,
        "ratio": _ratio(*_passes(model, group), rounds),
        "pays": grow_tree([member.trajectory.token_ids for member in group.members]).pays,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["256", "nano", "nano-arithmetic"], help="widths or names")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--break-even", nargs="*", default=["nano"], help="models of the search")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [_measure(name, shape, options.rounds) for name in options.models for shape in options.shapes]
    even = [_break_even(name, *counts, options.rounds) for name in options.break_even for counts in BREAK_EVEN]
    print(json.dumps({"rounds": options.rounds, "cases": cases, "break_even": even}))


if __name__ == "__main__":
    main()
