"""GRPO, RTI, RTI's ablations and the control on Navigation (nano profile), several seeds each; resumable.

    python -m benchmarks.navigation --output runs/navigation

Every arm has the same tasks, updates, learning rate and evaluation; only the method's section differs. The control is
GRPO given as many further unaided attempts on a failed group as RTI has intervened ones. Ends in one JSON object with
the scores at equal updates, and at the greatest budget of tokens (roles included) and of seconds that every run
reached; report.md and plots lie in the output folder.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midcourse.config import build_config, resolved_toml
from midcourse.evaluation.compare import Comparison, CurvePoint, compare_runs, sheet_scores
from midcourse.evaluation.estimators import seed_interval
from midcourse.evaluation.report import write_report
from midcourse.nano.demo import read_result
from midcourse.nano.navigation.chat import CompactChatFormat
from midcourse.nano.navigation.tokenizer import NanoTokenizer
from midcourse.nano.settings import NANO_ATTEMPTS, merge_section, navigation_settings

ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo-extra-attempts": ("grpo", {"extra_attempts": NANO_ATTEMPTS}),
    "rti": ("rti", {}),
    "rti-scripted-roles": ("rti", {"roles": {"played_by": "scripted"}}),
    "rti-without-verifier": ("rti", {"use_verifier": False}),
    "rti-without-gate": ("rti", {"delta": float("inf")}),
    "rti-without-reweighting": ("rti", {"reweight": False}),
    "rti-without-concealment": ("rti", {"conceal": False}),
    "rti-delta-0": ("rti", {"delta": 0.0}),
    "rti-delta-3": ("rti", {"delta": 3.0}),
    "rti-delta-20": ("rti", {"delta": 20.0}),
}
POLL_SECONDS = 1.0
EVALUATE_EVERY = 6
"""Updates."""
DIFFICULTIES = ("easy", "hard")


def arm_settings(arm: str, *, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of one run: the demo's, scored more often and on the map of the training tasks alone."""
    method, changes = ARMS[arm]
    settings = navigation_settings(method, seed=seed, updates=updates, folder=folder)
    settings["evaluation"] |= {"splits": ["test"], "every": EVALUATE_EVERY}
    merge_section(settings["method"], changes)
    return settings


def run_all(jobs: Sequence[tuple[str, int]], *, updates: int, output: Path, processes: int) -> None:
    """Run the jobs that are not done yet, `processes` at a time; one that fails ends the benchmark."""
    waiting, running = list(jobs), list[tuple[Path, subprocess.Popen[bytes]]]()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    while waiting or running:
        while waiting and len(running) < processes:
            arm, seed = waiting.pop(0)
            folder = output / f"{arm}-{seed}"
            settings = output / f"{arm}-{seed}.toml"
            settings.write_text(
                resolved_toml(build_config(arm_settings(arm, seed=seed, updates=updates, folder=folder)))
            )
            command = [sys.executable, "-m", "midcourse", "train", str(settings), "--json"]
            command += ["--resume"] if (folder / "config.toml").is_file() else []
            with (output / f"{arm}-{seed}.log").open("ab") as log:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            running.append((folder, process))
        time.sleep(POLL_SECONDS)
        for folder, process in list(running):
            if process.poll() is None:
                continue
            running.remove((folder, process))
            if process.returncode != 0:
                for _, other in running:
                    other.kill()
                raise SystemExit(f"{folder.name} failed; its log: {folder}.log")
            print(f"{folder.name} done, {len(waiting) + len(running)} to go", file=sys.stderr, flush=True)


def summarize(runs: Mapping[str, Sequence[Path]], comparison: Comparison) -> dict[str, Any]:
    """Return for each arm scores and costs over its seeds (mean, least, greatest), at each kind of equal budget."""
    curves = {Path(run.folder): run.curve for run in comparison.runs}
    budgets = {name: equal["budget"] for name, equal in comparison.at_equal.items()}
    arms = {}
    for arm, folders in runs.items():
        arms[arm] = {
            f"at equal {name}": over_seeds([scores(point_within(curves[folder], name, budget)) for folder in folders])
            for name, budget in budgets.items()
        }
        results = [read_result(folder) for folder in folders]
        arms[arm]["cost"] = over_seeds(
            [{cost: result[cost] for cost in ("rollouts", "tokens", "seconds")} for result in results]
        )
    return {"budgets": budgets, "arms": arms}


def point_within(curve: Sequence[CurvePoint], cost: str, budget: float) -> CurvePoint:
    """Return the last evaluation whose cost ("updates", "tokens" or "seconds") is within the budget."""
    attribute = "update" if cost == "updates" else cost
    return [point for point in curve if getattr(point, attribute) <= budget][-1]


def scores(point: CurvePoint) -> dict[str, float]:
    """Return {"hard pass@1": ...} of one evaluation."""
    return {
        f"{difficulty} {name}": value
        for difficulty in DIFFICULTIES
        for name, value in sheet_scores(point.tags[f"test/{difficulty}"]).items()
    }


def over_seeds(results: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return (mean, least, greatest) of every figure."""
    return {
        name: dict(zip(("mean", "min", "max"), seed_interval([result[name] for result in results]), strict=True))
        for name in results[0]
    }


def main() -> None:
    """Run, report, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/navigation"))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--processes", type=int, default=2, help="runs side by side, one thread each")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    jobs = [(arm, seed) for seed in arguments.seeds for arm in arguments.arms]
    run_all(jobs, updates=arguments.updates, output=arguments.output, processes=arguments.processes)
    runs = {arm: [arguments.output / f"{arm}-{seed}" for seed in arguments.seeds] for arm in arguments.arms}
    folders = [folder for arm_folders in runs.values() for folder in arm_folders]
    write_report(folders, arguments.output, decode=CompactChatFormat(NanoTokenizer()).decode)
    summary = summarize(runs, compare_runs(folders))
    print(json.dumps({"updates": arguments.updates, "seeds": arguments.seeds, **summary}))


if __name__ == "__main__":
    main()
