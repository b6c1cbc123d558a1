"""Regret of RAIL's controller against fixed rules on a drifting bandit, several seeds; and what the controller costs.

    python -m benchmarks.drifting_bandit --output runs/drifting_bandit

Regret of a round: the greatest expected gain of any action, or 0 for none, less that of what was done. Arms:
- rail: warm-up rule, dynamic promotion, then the controller, learning after every wave; rail-frozen stops learning at
  promotion; rail-branch-only and rail-decoding-only choose from the paper's scalar spaces (C.2: a linear gap).
- fixed rules, which see the same rounds: entropy (ARPO: branch where the entropy is over 0.5), variance (VIP: more
  rollouts where p(1-p) is greater), uniform (GRPO: 12 always), warm-up (RAIL's shadow rule for ever), random, and
  best-fixed: the one action that is best for the whole run, known only afterwards.
`slope` is that of log regret over log rounds in the last nine tenths of the run (1: linear; 0.5: a root), `late_share`
the regret of the second half over that of the first (1: linear). Rail runs under all drifts, others under `root`.

Cost: decisions and training steps by the clock, resident memory from 10,000 decisions to a million, and
while a full buffer of 100,000 traces takes 900,000 more. Prints one JSON object in its last line; writes regret.png.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from benchmarks.drifting_world import DRIFTS, HIDDEN_SIZE, Array, World, make_world, variation
from numpy.typing import NDArray

from midcourse.branching.actions import GRIDS, ActionSpace
from midcourse.branching.controller import ControllerConfig, RecoverabilityController
from midcourse.branching.promotion import Promotion, PromotionConfig
from midcourse.branching.skill import action_map, pearson, skill
from midcourse.branching.state import SCALAR_NAMES, State
from midcourse.branching.traces import TraceBuffer
from midcourse.branching.warm_up import next_trial

SPACE = GRIDS["3x3"].build()
BUDGET = 28
"""Rollouts left at every anchor: nothing is clamped."""
NOTHING = -1
"""The cell of a round in which nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What an arm did in each round."""

    cells: NDArray[numpy.int64]  # [T] of the 3x3 space, or NOTHING
    predicted: Array | None = None  # [T] gain that the controller expected of it
    is_live: NDArray[numpy.bool_] | None = None  # [T] the controller decided
    promoted_at: int | None = None  # round
    reason: str = ""


def state_at(world: World, moment: int) -> State:
    """Return the state of a round."""
    return State(scalars=world.anchors.scalars[moment], hidden=world.anchors.hidden[moment])


def run_rail(world: World, *, seed: int, wave: int, space: ActionSpace = SPACE, learns_when_live: bool = True) -> Run:
    """Return what the controller does; decisions of one wave know nothing of each other."""
    rounds = len(world.expected)
    cell_of = {name: SPACE.names.index(name) for name in space.names}
    controller = RecoverabilityController(ControllerConfig(), space, hidden_size=HIDDEN_SIZE, seed=seed)
    promotion = Promotion(PromotionConfig(rule="dynamic"), total_updates=rounds // wave)
    draws = numpy.random.default_rng([seed, 1]).random(rounds)
    cells = numpy.full(rounds, NOTHING)
    predicted = numpy.zeros(rounds)
    is_live = numpy.zeros(rounds, numpy.bool_)
    for update, start in enumerate(range(0, rounds, wave), start=1):
        live = promotion.begin_update(update)
        traces = []
        moments = range(start, min(start + wave, rounds))
        for moment in moments:
            state = state_at(world, moment)
            if live:
                choice = controller.decide([state], remaining=BUDGET, draw=draws[moment], update=update).choice
            else:
                choice = controller.predict(state, warm_up_action(world, moment, space), update=update)
            if choice is None:
                continue
            cell = cell_of[space.names[choice.action.cell]]
            cells[moment], predicted[moment], is_live[moment] = cell, choice.gain, live
            traces.append(choice.realize(float(world.drawn[moment, cell])))
        controller.absorb(traces, decisions=len(moments) if live else 0)
        for trace in traces:
            promotion.observe(trace.prediction.gain, trace.gained)
        if learns_when_live or not live:
            controller.learn()
    promoted_at = None if promotion.promoted_at is None else (promotion.promoted_at - 1) * wave
    return Run(cells=cells, predicted=predicted, is_live=is_live, promoted_at=promoted_at, reason=promotion.reason)


def warm_up_action(world: World, moment: int, space: ActionSpace) -> Any:
    """Return the shadow rule's action; the counts that it would try at one anchor go to one round each."""
    successes, size = world.anchors.successes[moment], world.anchors.sizes[moment]
    rewards = [1.0] * int(successes) + [0.0] * int(size - successes)
    return next_trial(space, rewards, trials_done=moment % len(space.branch_counts), remaining=BUDGET)


def cell(name: str) -> int:
    """Return the cell of an action by its name."""
    return SPACE.names.index(name)


def run_entropy(world: World, seed: int) -> Run:
    """ARPO-like: branch in the policy's own regime where the entropy is high."""
    entropy = world.anchors.scalars[:, SCALAR_NAMES.index("anchor_entropy")]
    return Run(cells=numpy.where(entropy > 0.5, cell("8 mild"), NOTHING))


def run_variance(world: World, seed: int) -> Run:
    """VIP-like: as many rollouts as the variance of the pool's rewards deserves."""
    variance = world.anchors.scalars[:, SCALAR_NAMES.index("reward_deviation")] ** 2
    counts = numpy.digitize(variance, (0.1, 0.2))
    return Run(cells=numpy.array([cell("4 mild"), cell("8 mild"), cell("12 mild")])[counts])


def run_uniform(world: World, seed: int) -> Run:
    """GRPO-like: the same number everywhere."""
    return Run(cells=numpy.full(len(world.expected), cell("12 mild")))


def run_warm_up(world: World, seed: int) -> Run:
    """RAIL's shadow rule for ever."""
    actions = [warm_up_action(world, moment, SPACE) for moment in range(len(world.expected))]
    return Run(cells=numpy.array([action.cell for action in actions]))


def run_random(world: World, seed: int) -> Run:
    """Every action and doing nothing with equal chance."""
    return Run(cells=numpy.random.default_rng([seed, 2]).integers(-1, len(SPACE.cells), len(world.expected)))


def run_best_fixed(world: World, seed: int) -> Run:
    """The best single answer for the whole run."""
    totals = world.expected.sum(axis=0)
    best = int(totals.argmax()) if totals.max() > 0 else NOTHING
    return Run(cells=numpy.full(len(world.expected), best))


FIXED: Mapping[str, Callable[[World, int], Run]] = {
    "entropy": run_entropy,
    "variance": run_variance,
    "uniform": run_uniform,
    "warm-up": run_warm_up,
    "random": run_random,
    "best-fixed": run_best_fixed,
}


def regret(world: World, run: Run) -> Array:
    """Return [T] cumulative regret, expected, against the best action or none."""
    best = numpy.maximum(world.expected.max(axis=1), 0.0)
    done = numpy.take_along_axis(world.expected, run.cells[:, None].clip(min=0), axis=1)[:, 0]
    return numpy.cumsum(best - numpy.where(run.cells == NOTHING, 0.0, done))


def regret_of_branches(world: World, run: Run) -> float:
    """Return Reg_T as Section 3.1 counts it: over rounds with a branch, against the best branch."""
    rounds = numpy.flatnonzero(run.cells != NOTHING)
    return float((world.expected[rounds].max(axis=1) - world.expected[rounds, run.cells[rounds]]).sum())


def slope(cumulative: Array) -> float:
    """Return the exponent with which regret grows in the last nine tenths of the rounds."""
    rounds = numpy.unique(numpy.geomspace(len(cumulative) // 10, len(cumulative) - 1, 200).astype(int))
    return float(numpy.polyfit(numpy.log(rounds + 1), numpy.log(cumulative[rounds] + 1e-12), 1)[0])


def skill_metrics(world: World, run: Run) -> dict[str, Any]:
    """Return how the controller's live predictions agree with what came, and what it chose."""
    assert run.predicted is not None
    assert run.is_live is not None
    rounds = numpy.flatnonzero(run.is_live)
    gained = world.drawn[rounds, run.cells[rounds]].tolist()
    entropies = world.anchors.scalars[rounds, SCALAR_NAMES.index("anchor_entropy")].tolist()
    return {
        **skill(run.predicted[rounds].tolist(), gained).metrics(),
        "entropy_pearson": pearson(entropies, gained),
        "expected_gain_pearson": pearson(
            run.predicted[rounds].tolist(), world.expected[rounds, run.cells[rounds]].tolist()
        ),
        "actions": action_map(run.cells[rounds].tolist(), SPACE.names),
    }


def measure_cost(decisions: int, capacity: int, appended: int) -> dict[str, float]:
    """Return times and growth of peak memory; the controller learned from a full window before."""
    world = make_world(SPACE, rounds=2048, seed=99, drift="root")
    states = [state_at(world, moment) for moment in range(2048)]
    controller = RecoverabilityController(ControllerConfig(), SPACE, hidden_size=HIDDEN_SIZE, seed=0)
    waves = []
    for start in range(0, 1024, 8):
        predictions = [
            controller.predict(states[moment], SPACE.cells[moment % 9], update=start)
            for moment in range(start, start + 8)
        ]
        controller.absorb([p.realize(float(world.drawn[start + i, p.action.cell])) for i, p in enumerate(predictions)])
        started = time.perf_counter()
        controller.learn()
        waves.append((time.perf_counter() - started) / 8)
    draws = numpy.random.default_rng(0).random(4096).tolist()
    seconds, before = [], 0
    for number in range(decisions):
        if number == decisions // 100:
            before = _resident_kilobytes()
        started = time.perf_counter()
        controller.decide([states[number % 2048]], remaining=BUDGET, draw=draws[number % 4096], update=1)
        if number % 100 == 0:
            seconds.append(time.perf_counter() - started)
    decided = _resident_kilobytes() - before
    buffer = TraceBuffer(
        capacity, code_size=SPACE.code_size, hidden_size=HIDDEN_SIZE, embedding_size=0, num_cells=len(SPACE.cells)
    )
    traces = [
        controller.predict(state, SPACE.cells[index % 9], update=index).realize(0.0)
        for index, state in enumerate(states)
    ]
    for number in range(appended):
        if number == capacity:
            before = _resident_kilobytes()
        buffer.append(traces[number % 2048])
    return {
        "decisions": decisions,
        "decision_microseconds": 1e6 * statistics.median(seconds),
        "decision_microseconds_99th": 1e6 * float(numpy.quantile(seconds, 0.99)),
        "learning_microseconds_per_trace": 1e6 * statistics.median(waves[-64:]),
        "decisions_growth_kilobytes": decided,
        "traces_kept": len(buffer),
        "traces_appended": buffer.total,
        "traces_growth_kilobytes": _resident_kilobytes() - before,
    }


def _resident_kilobytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return mean, least and greatest over seeds."""
    return {
        "mean": round(statistics.fmean(values), 5),
        "least": round(min(values), 5),
        "greatest": round(max(values), 5),
    }


def average(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each number's spread over seeds, and all seeds' actions together."""
    numbers = [name for name in metrics[0] if name != "actions"]
    return {
        **{name: spread([one[name] for one in metrics]) for name in numbers},
        "actions": {name: sum(one["actions"][name] for one in metrics) for name in metrics[0]["actions"]},
    }


def summarize(curves: Sequence[Array], branches: Sequence[float]) -> dict[str, Any]:
    """Return one arm's figures over seeds."""
    half = len(curves[0]) // 2
    return {
        "regret": spread([float(curve[-1]) for curve in curves]),
        "regret_over_branches": spread(branches),
        "slope": spread([slope(curve) for curve in curves]),
        "late_share": spread([float((curve[-1] - curve[half]) / curve[half]) for curve in curves]),
        "regret_per_round_last_tenth": spread(
            [float(curve[-1] - curve[-len(curve) // 10 - 1]) / (len(curve) // 10) for curve in curves]
        ),
    }


def draw_regret(curves: Mapping[str, Sequence[Array]], path: Path) -> None:
    """Draw every arm's mean regret with the band of its seeds, plain and on logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    plain, logarithmic = figure.subplots(1, 2)
    colours = (
        "#0072B2",
        "#56B4E9",
        "#009E73",
        "#CC79A7",
        "#D55E00",
        "#E69F00",
        "#000000",
        "#999999",
        "#8C510A",
        "#762A83",
    )
    for (name, arms), colour in zip(curves.items(), colours * 2, strict=False):
        stack = numpy.stack(arms)
        rounds = numpy.unique(numpy.geomspace(20, stack.shape[1] - 1, 300).astype(int))
        style = "-" if name.startswith("rail") else "--"
        for axes in (plain, logarithmic):
            axes.plot(rounds, stack.mean(axis=0)[rounds], style, color=colour, label=name)
            axes.fill_between(rounds, stack.min(axis=0)[rounds], stack.max(axis=0)[rounds], color=colour, alpha=0.15)
    logarithmic.set(xscale="log", yscale="log", title="the same, logarithmic: slope 1 is linear")
    plain.set(title="cumulative regret under a drift of the root of t", ylabel="gain")
    for axes in (plain, logarithmic):
        axes.set_xlabel("rounds")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = plain.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right upper")
    figure.savefig(path)


def main() -> None:
    """Run, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/drifting_bandit"))
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--wave", type=int, default=8, help="rounds that are decided before anything is learned of them"
    )
    parser.add_argument("--decisions", type=int, default=1_000_000)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Array]] = {}
    branches: dict[str, list[float]] = {}
    live: dict[str, list[dict[str, Any]]] = {"rail": [], "rail-frozen": []}
    promoted: list[tuple[int | None, str]] = []

    def note(arm: str, world: World, run: Run) -> None:
        curves.setdefault(arm, []).append(regret(world, run))
        branches.setdefault(arm, []).append(regret_of_branches(world, run))
        print(f"{arm}: {curves[arm][-1][-1]:.1f}", flush=True)

    for seed in range(options.seeds):
        for drift in DRIFTS:
            world = make_world(SPACE, rounds=options.rounds, seed=seed, drift=drift)
            rail = run_rail(world, seed=seed, wave=options.wave)
            if drift != "root":
                note(f"rail, drift {drift}", world, rail)
                continue
            note("rail", world, rail)
            promoted.append((rail.promoted_at, rail.reason))
            frozen = run_rail(world, seed=seed, wave=options.wave, learns_when_live=False)
            note("rail-frozen", world, frozen)
            live["rail"].append(skill_metrics(world, rail))
            live["rail-frozen"].append(skill_metrics(world, frozen))
            for name in ("branch-only", "decoding-only"):
                note(f"rail-{name}", world, run_rail(world, seed=seed, wave=options.wave, space=GRIDS[name].build()))
            for name, play in FIXED.items():
                note(name, world, play(world, seed))
    draw_regret({arm: found for arm, found in curves.items() if "," not in arm}, options.output / "regret.png")
    result = {
        "rounds": options.rounds,
        "seeds": options.seeds,
        "wave": options.wave,
        "arms": {arm: summarize(found, branches[arm]) for arm, found in curves.items()},
        "promoted": promoted,
        "live": {arm: average(found) for arm, found in live.items()},
        "variation": {
            drift: [round(float(found[len(found) // part]), 2) for part in (4, 2)] + [round(float(found[-1]), 2)]
            for drift in DRIFTS
            if (found := variation(SPACE, rounds=options.rounds, drift=drift)) is not None
        },
        "cost": measure_cost(options.decisions, 100_000, 1_000_000),
        "plot": str(options.output / "regret.png"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
