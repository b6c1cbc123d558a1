"""What the benchmarks share: runs side by side in processes of their own, resumable, and their scores over seeds."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midcourse.assembly import token_decoder
from midcourse.config import build_config, resolved_toml
from midcourse.evaluation.compare import Comparison, CurvePoint, compare_runs, sheet_scores
from midcourse.evaluation.estimators import seed_interval
from midcourse.evaluation.report import write_report
from midcourse.nano.demo import read_result

POLL_SECONDS = 1.0
DIFFICULTIES = ("easy", "hard")
ArmSettings = Callable[..., dict[str, Any]]
"""(arm, *, seed, updates, folder) -> the settings of one run."""


def run_all(jobs: Mapping[Path, Mapping[str, Any]], *, processes: int) -> None:
    """Run the jobs that are not done yet, `processes` at a time; one that fails ends the benchmark.

    Args:
        jobs: folder of a run -> its settings.
        processes: of one thread each.
    """
    waiting, running = list(jobs), list[tuple[Path, subprocess.Popen[bytes]]]()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                folder = waiting.pop(0)
                settings = Path(f"{folder}.toml")
                settings.write_text(resolved_toml(build_config(jobs[folder])))
                command = [sys.executable, "-m", "midcourse", "train", str(settings), "--json"]
                command += ["--resume"] if (folder / "config.toml").is_file() else []
                with Path(f"{folder}.log").open("ab") as log:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                    )
                running.append((folder, process))
            time.sleep(POLL_SECONDS)
            for folder, process in list(running):
                if process.poll() is None:
                    continue
                running.remove((folder, process))
                if process.returncode != 0:
                    raise SystemExit(f"{folder.name} failed; its log: {folder}.log")
                print(f"{folder.name} done, {len(waiting) + len(running)} to go", file=sys.stderr, flush=True)
    finally:
        for _, process in running:
            process.kill()


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


def parser_for(description: str | None, *, arms: Sequence[str], output: str, updates: int) -> argparse.ArgumentParser:
    """Return the options that every benchmark of arms has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(output))
    parser.add_argument("--arms", nargs="+", choices=arms, default=list(arms))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=updates)
    parser.add_argument("--processes", type=int, default=2, help="runs side by side, one thread each")
    return parser


def run_benchmark(arguments: argparse.Namespace, settings: ArmSettings) -> dict[str, Any]:
    """Run every arm on every seed, write the report, and return the summary."""
    output, updates = arguments.output, arguments.updates
    output.mkdir(parents=True, exist_ok=True)
    runs = {arm: [output / f"{arm}-{seed}" for seed in arguments.seeds] for arm in arguments.arms}
    jobs = {
        output / f"{arm}-{seed}": settings(arm, seed=seed, updates=updates, folder=output / f"{arm}-{seed}")
        for seed in arguments.seeds
        for arm in arguments.arms
    }
    run_all(jobs, processes=arguments.processes)
    folders = [folder for arm_folders in runs.values() for folder in arm_folders]
    decode = token_decoder(build_config(next(iter(jobs.values()))).policy)
    write_report(folders, output, decode=decode)
    return {"updates": updates, "seeds": arguments.seeds, **summarize(runs, compare_runs(folders))}


def print_result(result: Mapping[str, Any]) -> None:
    """Print the benchmark's one line of JSON."""
    print(json.dumps(result))
