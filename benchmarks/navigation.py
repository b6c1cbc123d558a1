"""GRPO, RTI, RTI's ablations and the control on Navigation (nano profile), several seeds each; resumable.

    python -m benchmarks.navigation --output runs/navigation

Every arm has the same tasks, updates, learning rate and evaluation; only the method's section differs. The control is
GRPO given as many further unaided attempts on a failed group as RTI has intervened ones. Ends in one JSON object with
the scores at equal updates, and at the greatest budget of tokens (roles included) and of seconds that every run
reached; report.md and plots lie in the output folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.arms import parser_for, print_result, run_benchmark

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
EVALUATE_EVERY = 6
"""Updates."""


def arm_settings(arm: str, *, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of one run: the demo's, scored more often and on the map of the training tasks alone."""
    method, changes = ARMS[arm]
    settings = navigation_settings(method, seed=seed, updates=updates, folder=folder)
    settings["evaluation"] |= {"splits": ["test"], "every": EVALUATE_EVERY}
    merge_section(settings["method"], changes)
    return settings


def main() -> None:
    """Run, report, print."""
    parser = parser_for(__doc__, arms=list(ARMS), output="runs/navigation", updates=24)
    print_result(run_benchmark(parser.parse_args(), arm_settings))


if __name__ == "__main__":
    main()
