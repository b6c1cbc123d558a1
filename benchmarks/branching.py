"""RAIL, its ablations and its rivals on a nano world, several seeds each; resumable.

    python -m benchmarks.branching --world table_world --output runs/branching-table_world
    python -m benchmarks.branching --world navigation --output runs/branching-navigation

Every arm has the same policy, tasks, updates, learning rate and evaluation; only the method's section differs, and with
it the rollouts that it draws: numbers in names are rollouts a task, or the budget of them. On Navigation, whose policy
plays RTI's roles, RTI and RAIL with repair run too. Ends in one JSON object: scores at equal updates, tokens, rollouts
and seconds, and for the arms with a controller how its predictions in the live phase, made before the outcome, agree
with what came of them, beside entropy. rollouts.png shows success against rollouts; report.md lies beside it.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from benchmarks.arms import over_seeds, parser_for, print_result, run_benchmark
from matplotlib import pyplot

from midcourse.branching.skill import pearson, skill
from midcourse.nano.demo import read_result
from midcourse.nano.settings import NANO_ROLES, merge_section, navigation_settings, table_world_settings
from midcourse.recording.reader import RunReader
from midcourse.types import BranchRecord, Group

WORLDS = {"navigation": navigation_settings, "table_world": table_world_settings}
COUNTS = "branch_counts"
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo-8": ("grpo", {"group_size": 8}),
    "grpo-16": ("grpo", {"group_size": 16}),
    "grpo-32": ("grpo", {"group_size": 32}),
    "rail": ("rail", {}),
    "rail-16": ("rail", {"rollout_budget": 16}),
    "rail-offline": ("rail", {"online": False}),
    "rail-scalar-state": ("rail", {"controller": {"without_features": ["hidden", "task_embedding"]}}),
    "rail-dynamic": ("rail", {"promotion": {"rule": "dynamic"}}),
    "rail-branch-only": ("rail", {"space": {"regimes": ["mild"]}}),
    "rail-decoding-only": ("rail", {"space": {COUNTS: [8]}}),
    "rail-2x2": ("rail", {"space": {COUNTS: [4, 12], "regimes": ["exploit", "aggressive"]}}),
    "rail-4x4": ("rail", {"space": {COUNTS: [4, 8, 12, 16], "regimes": ["exploit", "mild", "warm", "aggressive"]}}),
    "arpo-16": ("arpo", {"rollout_budget": 16, "initial_rollouts": 8}),
    "arpo-32": ("arpo", {"rollout_budget": 32, "initial_rollouts": 16}),
    "aepo-16": ("aepo", {"rollout_budget": 16}),
    "vip-16": ("vip", {"rollouts_per_task": 16, "max_rollouts": 32}),
    "vip-32": ("vip", {"rollouts_per_task": 32, "max_rollouts": 64}),
    "tampo-16": ("tampo", {"group_size": 16}),
    "tree-grpo-16": ("tree_grpo", {"trees": 4, "nodes": 3, "rounds": 1, "leaves": 4}),
}
ROLES_ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "rti": ("rti", {}),
    "rail-repair": (
        "rail",
        {"space": {"regimes": ["exploit", "mild", "aggressive", "repair"]}, "repair": {"roles": NANO_ROLES}},
    ),
}
"""Arms for a policy that plays roles."""
EVALUATE_EVERY = 6
"""Updates."""


def arm_settings(arm: str, *, world: str, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of one run: the demo's, scored more often and on the training world alone."""
    method, changes = {**ARMS, **ROLES_ARMS}[arm]
    settings = WORLDS[world](method, seed=seed, updates=updates, folder=folder)
    settings["evaluation"] |= {"splits": ["test"], "every": EVALUATE_EVERY}
    merge_section(settings["method"], changes)
    return settings


def controller_skill(folder: Path) -> dict[str, float] | None:
    """Return how a run's live predictions, and entropies, agree with gains; None where no controller decided."""
    records = [
        record
        for group in all_groups(folder)
        for record in group.branches
        if record.rule in ("controller", "exploration")
    ]
    told = [record for record in records if record.predicted is not None and record.gained is not None]
    if not told:
        return None
    gained = [record.gained or 0.0 for record in told]
    found: dict[str, float | None] = dict(asdict(skill([record.predicted or 0.0 for record in told], gained)))
    found["entropy_pearson"] = pearson([record.entropy or 0.0 for record in told], gained)
    found["gain"] = sum(gained) / len(gained)
    found["gain_over_chance"] = _over_chance(told)
    return {name: value for name, value in found.items() if value is not None}


def _over_chance(records: Sequence[BranchRecord]) -> float | None:
    differences = [
        record.gained - record.chance for record in records if record.gained is not None and record.chance is not None
    ]
    return sum(differences) / len(differences) if differences else None


def shared(results: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the results with the numbers that all of them have."""
    names = [name for name in results[0] if all(name in result for result in results)]
    return [{name: result[name] for name in names} for result in results]


def draw(result: Mapping[str, Any], file: Path) -> None:
    """Write the figure: hard pass@1 at the end against rollouts drawn, a point an arm, bars over seeds."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for arm, found in result["arms"].items():
        score, rollouts = found["at equal updates"]["hard pass@1"], found["cost"]["rollouts"]
        bars = [[100 * (score["mean"] - score["min"])], [100 * (score["max"] - score["mean"])]]
        marker = "o" if arm.startswith("rail") else "s" if arm.startswith("grpo") else "^"
        axes.errorbar(rollouts["mean"], 100 * score["mean"], yerr=bars, fmt=marker, capsize=2, label=arm)
        axes.annotate(
            arm, (rollouts["mean"], 100 * score["mean"]), fontsize=7, xytext=(4, 4), textcoords="offset points"
        )
    axes.set_xlabel("rollouts drawn in training")
    axes.set_ylabel("hard pass@1, %, mean over seeds (bars: least and greatest)")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Run, report, print."""
    parser = parser_for(__doc__, arms=[*ARMS, *ROLES_ARMS], output="", updates=24)
    parser.add_argument("--world", choices=list(WORLDS), default="table_world")
    parser.set_defaults(output=None, arms=None)
    arguments: argparse.Namespace = parser.parse_args()
    world = arguments.world
    if arguments.arms is None:
        arguments.arms = [*ARMS, *(ROLES_ARMS if world == "navigation" else ())]
    elif world != "navigation" and (unable := sorted(set(arguments.arms) & set(ROLES_ARMS))):
        sys.exit(f"--arms {' '.join(unable)} need a policy that plays roles: --world navigation")
    arguments.output = arguments.output or Path("runs") / f"branching-{world}"
    result = run_benchmark(arguments, lambda arm, **rest: arm_settings(arm, world=world, **rest))
    for arm in arguments.arms:
        folders = [arguments.output / f"{arm}-{seed}" for seed in arguments.seeds]
        skills = [found for folder in folders if (found := controller_skill(folder)) is not None]
        if len(skills) == len(folders):
            result["arms"][arm]["controller"] = over_seeds(shared(skills))
        result["arms"][arm]["rollouts a task"] = over_seeds([rollouts_a_task(folder) for folder in folders])
    draw(result, arguments.output / "rollouts.png")
    print_result({"world": world, **result})


def rollouts_a_task(folder: Path) -> dict[str, float]:
    """Return the mean number of rollouts that one task of one update was given."""
    return {"rollouts": read_result(folder)["rollouts"] / sum(1 for _ in all_groups(folder))}


def all_groups(folder: Path) -> Iterator[Group]:
    """Yield a run's groups in order."""
    reader = RunReader(folder)
    for update in reader.trajectory_updates():
        yield from reader.trajectories(update)


if __name__ == "__main__":
    main()
