"""The demo: GRPO and another method train the same built-in policy side by side; a table, plots, one line of JSON.

Each run is a process of its own with one thread: two threads of one process lose more than they win as soon as
anything else runs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from midcourse.assembly import token_decoder
from midcourse.config import build_config, resolved_toml
from midcourse.doctor import available_cores
from midcourse.errors import MidcourseError
from midcourse.evaluation.report import write_report
from midcourse.nano.settings import merge_section, world_settings

BASELINE = "grpo"
DEADLINE_SECONDS = 40 * 60
Runs = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Run -> its method, and what it sets in the method's section. The first is the one that others are compared with."""
SHOWN: Mapping[str, Runs] = {
    "mintrl": {
        BASELINE: (BASELINE, {}),
        "mintrl-proxy": ("mintrl", {"regression": {"anchor": "proxy"}}),
        "mintrl-const": ("mintrl", {"regression": {"anchor": "const"}}),
    },
    "rail": {"grpo-32": (BASELINE, {"group_size": 32}), "rail": ("rail", {})},
    **{
        method: {"grpo-16": (BASELINE, {"group_size": 16}), method: (method, {})}
        for method in ("arpo", "aepo", "vip", "tampo")
    },
    "tree_grpo": {"grpo-6": (BASELINE, {"group_size": 6}), "tree_grpo": ("tree_grpo", {})},
}
"""Method -> what its demo runs; others run beside GRPO under their own names."""


class DemoError(MidcourseError):
    """A run of the demo ended without its result."""


def demo_settings(method: str, *, seed: int, updates: int, output: Path) -> dict[str, dict[str, Any]]:
    """Return run -> settings: GRPO and the method's runs, alike but for the method's section; GRPO first."""
    world = world_settings(method)
    runs = SHOWN.get(method, {BASELINE: (BASELINE, {}), method: (method, {})})
    found = {}
    for name, (chosen, changes) in runs.items():
        found[name] = world(chosen, seed=seed, updates=updates, folder=output / f"{name}-{seed}")
        merge_section(found[name]["method"], changes)
    return found


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
    started = time.monotonic()
    chosen = demo_settings(method, seed=seed, updates=updates, output=output)
    # A bar is drawn on a terminal alone; elsewhere nothing else would be said for minutes.
    told = f"{', '.join(chosen)}: {updates} updates each, {min(available_cores(), len(chosen))} at a time, in minutes."
    console.print(f"{told} Each writes to {output}/RUN-{seed} and its .log.", markup=False)
    folders = {name: output / f"{name}-{seed}" for name in chosen}
    running: dict[str, subprocess.Popen[bytes]] = {}
    with ended_by_sigterm():
        try:
            _run_all(chosen, folders, running, updates, console)
        finally:
            for process in running.values():
                if process.poll() is None:
                    process.kill()
                process.wait()
    results = {name: read_result(folder) for name, folder in folders.items()}
    first = next(iter(chosen))
    console.print(score_table(results, read_start(folders[first])))
    decode = token_decoder(build_config(chosen[first]).policy)
    report = write_report(list(folders.values()), output, decode=decode)
    console.print(f"{time.monotonic() - started:.0f} seconds. Report with plots: {report}", markup=False)
    print(json.dumps({"seed": seed, "methods": results}))


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let a termination signal end the block by SystemExit, so that the runs are ended too."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_all(
    chosen: Mapping[str, Mapping[str, Any]],
    folders: Mapping[str, Path],
    running: dict[str, subprocess.Popen[bytes]],
    updates: int,
    console: Console,
) -> None:
    """Run all of `chosen`, as many at a time as there are cores, and show how far they are. Fills `running`."""
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    deadline = time.monotonic() + DEADLINE_SECONDS
    with Progress(*columns, console=console) as progress:
        bars = {name: progress.add_task(name, total=updates, note="waiting", start=False) for name in chosen}
        while len(running) < len(chosen) or any(process.poll() is None for process in running.values()):
            for name in chosen:
                num_active = sum(process.poll() is None for process in running.values())
                if name not in running and num_active < available_cores():
                    running[name] = _start(chosen[name], folders[name])
                    progress.start_task(bars[name])
            for name, process in running.items():
                lines = _lines(folders[name] / "metrics.jsonl")
                note = f"rollout success {lines[-1].get('reward/mean', float('nan')):.2f}" if lines else "starting"
                progress.update(bars[name], completed=len(lines), note=note)
                if process.poll() not in (None, 0):
                    raise DemoError(f"the {name} run failed; its log: {folders[name]}.log")
            if time.monotonic() > deadline:
                raise DemoError(f"the runs took over {DEADLINE_SECONDS} seconds; run the demo again to go on")
            time.sleep(0.5)


def _start(settings: Mapping[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    file = Path(f"{folder}.toml")
    text = resolved_toml(build_config(settings))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DemoError(f"{file} cannot be written: {error.strerror or error}") from error
    command = [sys.executable, "-m", "midcourse", "train", str(file), "--json"]
    if (folder / "config.toml").is_file():
        command.append("--resume")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with Path(f"{folder}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


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
    result: dict[str, Any] = _parts(evaluations[-1])
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


def read_start(folder: Path) -> dict[str, Any]:
    """Return a run's first scores by difficulty: those before training. Every run of a demo has the same."""
    return _parts(_lines(folder / "evaluations.jsonl")[0])


def _parts(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    sheets = {**evaluation["tags"], **evaluation["splits"]}
    parts = (("easy", "test/easy"), ("hard", "test/hard"), ("ood", "ood"))
    return {name: _scores(sheets[key]) for name, key in parts if key in sheets}


def _scores(sheet: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        "pass@1": sheet["pass_at"]["1"]["value"],
        "pass@4": sheet["pass_at"]["4"]["value"],
        "pass^4": sheet["pass_hat"]["4"]["value"],
    }


def score_table(results: Mapping[str, Mapping[str, Any]], start: Mapping[str, Any]) -> Table:
    """Return the last scores and the costs, a row a run under one for the scores before training; 80 columns wide."""
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    scores = ("easy\npass@1", "hard\npass@1", "hard\npass@4", "ood\npass@1")
    for name in (*scores, "rollouts", "tokens", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("at the start", *_shares(start), "", "", "")
    for name, result in results.items():
        table.add_row(name, *_shares(result), *(str(result[cost]) for cost in ("rollouts", "tokens", "seconds")))
    return table


def _shares(result: Mapping[str, Any]) -> list[str]:
    parts = (("easy", "pass@1"), ("hard", "pass@1"), ("hard", "pass@4"), ("ood", "pass@1"))
    scores = [result.get(part, {}).get(score) for part, score in parts]
    return ["-" if score is None else f"{100 * score:.1f} %" for score in scores]
