"""The demo: GRPO and another method train the same nano policy side by side; a table, plots, one line of JSON.

Each run is a process of its own with one thread: two threads of one process lose more than they win as soon as
anything else runs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from midcourse.config import build_config, resolved_toml
from midcourse.errors import MidcourseError

BASELINE = "grpo"
DEADLINE_SECONDS = 40 * 60
NANO_ROLES: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 64}
NANO_ATTEMPTS = 4
"""Intervened rollouts of a failed group; the paper has 8, which would double the cost on a laptop."""
METHOD_SETTINGS: Mapping[str, Mapping[str, Any]] = {"rti": {"roles": NANO_ROLES, "attempts": NANO_ATTEMPTS}}


HARD_FRACTION = 0.7
"""Share of hard tasks: most groups begin by failing as a whole."""


class DemoError(MidcourseError):
    """A run of the demo ended without its result."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process and where it writes."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]


def nano_settings(method: str, *, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of a nano run: the same for every method but for the method's own section.

    The learning rate is that of a 1 M parameter policy, not the papers' 1e-6. The hard tasks are 70 % of training,
    so that most groups begin by failing as a whole.
    """
    return {
        "seed": seed,
        "output": str(folder),
        "environment": {"name": "navigation", "profile": "nano", "hard_fraction": HARD_FRACTION},
        "rollout": {"temperature": 0.8, "max_turn_tokens": 48},
        "method": {"name": method, **METHOD_SETTINGS.get(method, {})},
        "training": {
            "updates": updates,
            "tasks_per_update": 8,
            "learning_rate": 2e-4,
            "weight_decay": 0.0,
            "checkpoint_every": 10,
            "micro_batch_tokens": 4096,
        },
        "evaluation": {"attempts": 4, "splits": ["test", "ood"], "every": max(1, updates // 2), "max_tasks": 60},
    }


def run_demo(method: str, *, seed: int, updates: int, output: Path) -> None:
    """Train GRPO and `method`, print a table, write the report, and end with one line of JSON.

    Args:
        method: a registered method; "grpo" runs alone.
        seed: of both runs.
        updates: of both runs.
        output: folder of the runs and the report; runs that are there go on where they stopped.

    Raises:
        DemoError: `output` cannot be written; a run failed or did not end in time, and the message names its log.
    """
    console = Console(stderr=True)
    names = list(dict.fromkeys([BASELINE, method]))
    started = time.monotonic()
    runs = [_start(name, seed=seed, updates=updates, output=output) for name in names]
    try:
        _watch(runs, updates, console)
    finally:
        for run in runs:
            if run.process.poll() is None:
                run.process.kill()
            run.process.wait()
    results = {run.name: read_result(run.folder) for run in runs}
    console.print(_table(results))
    report = _report([run.folder for run in runs], output)
    console.print(f"{time.monotonic() - started:.0f} seconds. Report with plots: {report}", markup=False)
    print(json.dumps({"seed": seed, "methods": results}))


def _start(name: str, *, seed: int, updates: int, output: Path) -> Run:
    folder = output / f"{name}-{seed}"
    settings = output / f"{name}-{seed}.toml"
    text = resolved_toml(build_config(nano_settings(name, seed=seed, updates=updates, folder=folder)))
    try:
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DemoError(f"{settings} cannot be written: {error.strerror or error}") from error
    command = [sys.executable, "-m", "midcourse", "train", str(settings), "--json"]
    if (folder / "config.toml").is_file():
        command.append("--resume")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (output / f"{name}-{seed}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    return Run(name, folder, process)


def _watch(runs: Sequence[Run], updates: int, console: Console) -> None:
    """Show how far the runs are until all have ended."""
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    deadline = time.monotonic() + DEADLINE_SECONDS
    with Progress(*columns, console=console) as progress:
        bars = {run.name: progress.add_task(run.name, total=updates, note="") for run in runs}
        while True:
            for run in runs:
                lines = _lines(run.folder / "metrics.jsonl")
                note = f"rollout success {lines[-1].get('reward/mean', float('nan')):.2f}" if lines else "starting"
                progress.update(bars[run.name], completed=len(lines), note=note)
                if run.process.poll() not in (None, 0):
                    raise DemoError(f"the {run.name} run failed; its log: {run.folder}.log")
            if all(run.process.poll() == 0 for run in runs):
                return
            if time.monotonic() > deadline:
                raise DemoError(f"the runs took over {DEADLINE_SECONDS} seconds; run the demo again to go on")
            time.sleep(0.5)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of JSON lines that may be growing."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line.strip()]


def read_result(folder: Path) -> dict[str, Any]:
    """Return a run's last scores on the test split by difficulty, and what it cost.

    Raises:
        DemoError: the run was never scored.
    """
    evaluations, metrics = _lines(folder / "evaluations.jsonl"), _lines(folder / "metrics.jsonl")
    if not evaluations:
        raise DemoError(f"{folder} holds no evaluation")
    last = evaluations[-1]
    sheets = {**last["tags"], **last["splits"]}
    result: dict[str, Any] = {
        name: _scores(sheets[key])
        for name, key in (("easy", "test/easy"), ("hard", "test/hard"), ("ood", "ood"))
        if key in sheets
    }
    tokens = sum(
        value
        for line in metrics
        for key, value in line.items()
        if key.startswith(("rollout/tokens/", "rollout/scored_tokens/"))
    )
    result["rollouts"] = int(sum(line.get("rollout/count", 0) for line in metrics))
    result["tokens"] = int(tokens)
    result["seconds"] = round(sum(line["time/rollout"] + line["time/update"] for line in metrics), 1)
    return result


def _scores(sheet: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        "pass@1": sheet["pass_at"]["1"]["value"],
        "pass@4": sheet["pass_at"]["4"]["value"],
        "pass^4": sheet["pass_hat"]["4"]["value"],
    }


def _table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("method", "easy pass@1", "hard pass@1", "hard pass@4", "ood pass@1", "rollouts", "tokens", "seconds")
    for name, result in results.items():
        scores = [
            result.get(part, {}).get(score)
            for part, score in (("easy", "pass@1"), ("hard", "pass@1"), ("hard", "pass@4"), ("ood", "pass@1"))
        ]
        shown = ["-" if score is None else f"{100 * score:.1f} %" for score in scores]
        table.add_row(name, *shown, str(result["rollouts"]), str(result["tokens"]), str(result["seconds"]))
    return table


def _report(folders: Sequence[Path], output: Path) -> Path:
    from midcourse.evaluation.report import write_report
    from midcourse.nano.chat import CompactChatFormat
    from midcourse.nano.tokenizer import NanoTokenizer

    return write_report(folders, output, decode=CompactChatFormat(NanoTokenizer()).decode)
