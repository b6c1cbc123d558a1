"""The built-in policies trained by RTI, MInTRL and RAIL through a vLLM server, and through the embedded engine.

    python -m benchmarks.vllm_training [--python PATH_TO_A_PYTHON_THAT_HAS_VLLM] [--output runs/vllm-training]

Each method on its own nano world, several seeds, all settings but the engine alike; resumable. The two engines draw by
different generators, so that their runs are as far apart as two seeds are. The weights that a run ended with are scored
through the embedded engine, whoever drew its rollouts, 16 attempts a task. Prints one JSON object: hard and easy pass@1
by method and engine (mean, least and greatest over seeds), seconds of training, and the largest difference of a sampled
token's log-probability from the trainer's own, nats.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.arms import over_seeds, parser_for, print_result, run_all
from benchmarks.serving import ON_A_CPU

from midcourse.config import build_config
from midcourse.nano.demo import read_result
from midcourse.nano.settings import world_settings
from midcourse.recording.reader import RunReader
from midcourse.runs import evaluate_checkpoint, locate_checkpoint

METHODS = ("rti", "mintrl", "rail")
ENGINES = ("transformers", "vllm")
UPDATES = 12
ATTEMPTS = 16
SCORED = ("test/easy", "test/hard")


def arm_settings(
    method: str, engine: str, *, seed: int, updates: int, folder: Path, python: str | None
) -> dict[str, Any]:
    """Return the settings of one run."""
    settings = world_settings(method)(method, seed=seed, updates=updates, folder=folder)
    settings["evaluation"] |= {"splits": ["test"], "every": updates, "at_start": False}
    if engine == "vllm":
        server: dict[str, Any] = {**ON_A_CPU} if python is None else {**ON_A_CPU, "python": python}
        settings["engine"] = {"name": "vllm", "server": server}
        if method == "rail":  # its anchors and states need them
            settings["engine"]["entropies"] = "trainer"
    return settings


def scoring_settings(method: str, *, seed: int) -> dict[str, Any]:
    """Return the settings by which the weights of both engines' runs are scored."""
    settings = arm_settings(method, "transformers", seed=seed, updates=1, folder=Path("unused"), python=None)
    settings["evaluation"] |= {"attempts": ATTEMPTS}
    return settings


def found_in(folder: Path, scored_by: Mapping[str, Any]) -> dict[str, float]:
    """Return what one run ended with, its weights scored by other settings."""
    found = asyncio.run(
        evaluate_checkpoint(build_config(scored_by), locate_checkpoint(folder).model, finished=lambda done, total: None)
    )
    lines = RunReader(folder).metrics()
    return {
        **{f"{name} pass@1": sheet.pass_at["1"].value for name, sheet in found.tags.items() if name in SCORED},
        "seconds": read_result(folder)["seconds"],
        "max_logprob_difference": max(line.get("mismatch/max_abs_logprob", 0.0) for line in lines),
    }


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__, arms=METHODS, output="runs/vllm-training", updates=UPDATES)
    parser.add_argument("--python", help="of an environment that has vLLM; default: this one")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    folders = {
        (method, engine): [arguments.output / f"{method}-{engine}-{seed}" for seed in arguments.seeds]
        for method in arguments.arms
        for engine in ENGINES
    }
    jobs: Mapping[Path, Mapping[str, Any]] = {
        folder: arm_settings(
            method, engine, seed=seed, updates=arguments.updates, folder=folder, python=arguments.python
        )
        for (method, engine), of_seeds in folders.items()
        for seed, folder in zip(arguments.seeds, of_seeds, strict=True)
    }
    run_all(jobs, processes=arguments.processes)
    found: dict[str, dict[str, Any]] = {method: {} for method in arguments.arms}
    for (method, engine), of_seeds in folders.items():
        found[method][engine] = over_seeds(
            [
                found_in(folder, scoring_settings(method, seed=seed))
                for seed, folder in zip(arguments.seeds, of_seeds, strict=True)
            ]
        )
    print_result({"updates": arguments.updates, "seeds": arguments.seeds, "methods": found})


if __name__ == "__main__":
    main()
