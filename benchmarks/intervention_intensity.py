"""How much intervention is good: reviews x length of a correction against success (the MInTRL paper's Figure 6).

    python -m benchmarks.intervention_intensity --output runs/intensity

Each arm is MInTRL-Const with the scripted judge; the control has the same objective and no interventions. Ends in one
JSON object; intensity.png has the gain in pass@1 over the control against the part of semi-on-policy tokens that the
judge wrote, mean over training, a point a seed.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from benchmarks.arithmetic import calibrated_kappa
from benchmarks.arms import parser_for, print_result, run_benchmark
from matplotlib import pyplot

from midcourse.nano.demo import read_result
from midcourse.nano.settings import arithmetic_settings, merge_section

CONTROL = "reviews-0"
REVIEWS, LENGTHS = (2, 8), (2, 4, 16, 64)
ARMS: Mapping[str, Mapping[str, int]] = {
    CONTROL: {"max_reviews": 0},
    **{
        f"reviews-{reviews}-length-{length}": {"max_reviews": reviews, "max_intervention_tokens": length}
        for reviews in REVIEWS
        for length in LENGTHS
    },
}


def arm_settings(arm: str, *, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of one run, scored at the start and the end."""
    settings = arithmetic_settings("mintrl", seed=seed, updates=updates, folder=folder)
    settings["evaluation"] |= {"splits": ["test"], "every": updates}
    merge_section(settings["method"], {**ARMS[arm], "regression": {"anchor": "const"}})
    settings["method"]["regression"]["kappa"] = calibrated_kappa("scripted")
    settings["method"]["intervention_updates"] = updates  # GRPO would blur what the interventions did
    return settings


def points(output: Path, arms: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return for every run the fraction of intervention tokens and the gain in hard pass@1 over the control's seed."""
    controls = {seed: read_result(output / f"{CONTROL}-{seed}")["hard"]["pass@1"] for seed in seeds}
    found = []
    for arm in arms:
        for seed in seeds:
            folder = output / f"{arm}-{seed}"
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            fractions = [line.get("intervention/token_fraction_semi", 0.0) for line in lines]
            found.append(
                {
                    "arm": arm,
                    "seed": seed,
                    "token_fraction": sum(fractions) / len(fractions),
                    "gain": read_result(folder)["hard"]["pass@1"] - controls[seed],
                }
            )
    return found


def draw(found: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write the figure."""
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for reviews in REVIEWS:
        chosen = [point for point in found if point["arm"].startswith(f"reviews-{reviews}-")]
        axes.scatter(
            [100 * point["token_fraction"] for point in chosen],
            [100 * point["gain"] for point in chosen],
            label=f"at most {reviews} review{'s' if reviews > 1 else ''}",
        )
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("tokens written by the judge, % of semi-on-policy rollouts")
    axes.set_ylabel("hard pass@1, points above no intervention")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Run, report, draw, print."""
    parser = parser_for(__doc__, arms=list(ARMS), output="runs/intensity", updates=12)
    arguments = parser.parse_args()
    if CONTROL not in arguments.arms:
        parser.error(f"--arms: expected {CONTROL} among them, which the others are compared with")
    result = run_benchmark(arguments, arm_settings)
    found = points(arguments.output, arguments.arms, arguments.seeds)
    draw(found, arguments.output / "intensity.png")
    print_result({**result, "points": found})


if __name__ == "__main__":
    main()
