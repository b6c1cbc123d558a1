"""MInTRL, its control and its baselines, and RTI, on arithmetic with worked steps; several seeds each; resumable.

    python -m benchmarks.arithmetic --output runs/arithmetic

Every arm has the same policy, tasks, rollouts a task, updates, learning rate and evaluation; only the method's section
differs. Two judges: the scripted one, exact and certain of its tokens (-scripted), and the policy itself as it was at
the start with the reference solution in its prompt (-self), which is also the teacher of OPD. kappa of the const anchor
is calibrated on the judge in pilot rollouts of the untrained policy, as in the paper. RTI's roles are scripted: they
and the scripted judge follow the same rules. Ends in one JSON object with the scores at equal updates, and at the
greatest budget of tokens (judges included) and of seconds that every run reached; report.md and plots lie in the output
folder.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.arms import parser_for, print_result, run_benchmark

from midcourse.config import build_config
from midcourse.methods.mintrl_statistics import mintrl_statistics
from midcourse.nano.settings import arithmetic_settings, merge_section
from midcourse.runs import collect_groups

SELF = {"judge": {"played_by": "frozen"}}
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {}),
    "gspo": ("gspo", {}),
    "sft-grpo-scripted": ("sft_grpo", {}),
    "sft-grpo-self": ("sft_grpo", {"demonstrations": 8, "teacher": {"played_by": "frozen"}}),
    "opd": ("opd", {"mode": "reverse_kl"}),
    "opd-with-grpo": ("opd", {"mode": "with_grpo"}),
    "regression": ("mintrl", {"max_reviews": 0}),
    "mintrl-proxy-scripted": ("mintrl", {"regression": {"anchor": "proxy"}}),
    "mintrl-const-scripted": ("mintrl", {"regression": {"anchor": "const"}}),
    "mintrl-proxy-self": ("mintrl", {**SELF, "regression": {"anchor": "proxy"}}),
    "mintrl-const-self": ("mintrl", {**SELF, "regression": {"anchor": "const"}}),
    "rti": ("rti", {}),
}
EVALUATE_EVERY = 4
"""Updates."""
EVALUATED_TASKS = 40
PILOT_TASKS = 8


def arm_settings(arm: str, *, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of one run: the demo's, scored more often and on the test split alone."""
    method, changes = ARMS[arm]
    settings = arithmetic_settings(method, seed=seed, updates=updates, folder=folder)
    settings["evaluation"] |= {"splits": ["test"], "every": EVALUATE_EVERY, "max_tasks": EVALUATED_TASKS}
    merge_section(settings["method"], changes)
    if method == "rti":
        # In a single turn every finished solution holds the answer: see docs/mathematics.md.
        settings["environment"]["private_answer"] = False
    if changes.get("regression", {}).get("anchor") == "const":
        settings["method"]["regression"]["kappa"] = calibrated_kappa(settings["method"]["judge"]["played_by"])
    return settings


@cache
def calibrated_kappa(played_by: str) -> float:
    """Return the mean log-probability, nats a token, that a judge gives to its own tokens in pilot rollouts."""
    settings = arithmetic_settings("mintrl", seed=0, updates=1, folder=Path("unused"))
    merge_section(settings["method"], {"judge": {"played_by": played_by}})
    collected = asyncio.run(
        collect_groups(
            build_config(settings), num_tasks=PILOT_TASKS, split="train", intervene=True, advance=lambda *_: None
        )
    )
    groups = [group for _, group in collected.groups]
    blank = [[None] * len(group.members) for group in groups]
    found = mintrl_statistics(groups, advantages=blank, beta=1.0, kappa=None).judge_logprob
    if found is None:
        raise SystemExit(f"the judge played by {played_by} corrected nothing in {PILOT_TASKS} pilot tasks")
    return round(found, 3)


def main() -> None:
    """Run, report, print."""
    parser = parser_for(__doc__, arms=list(ARMS), output="runs/arithmetic", updates=16)
    print_result(run_benchmark(parser.parse_args(), arm_settings))


if __name__ == "__main__":
    main()
