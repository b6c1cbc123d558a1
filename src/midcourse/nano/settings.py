"""Settings of the built-in policies' runs: the demo, the benchmarks and `midcourse init --nano` start from them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEMO_UPDATES = 24
NANO_ROLES: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 64}
NANO_ATTEMPTS = 4
"""Intervened rollouts of a failed group; the paper has 8, which would double the cost on a laptop."""
NAVIGATION_METHODS: Mapping[str, Mapping[str, Any]] = {"rti": {"roles": NANO_ROLES, "attempts": NANO_ATTEMPTS}}
HARD_FRACTION = 0.7
"""Share of hard tasks: most groups begin by failing as a whole."""
HARD_STEPS = 4
"""Steps of a hard chain that multiply by 6 to 9: with so many hardly any unaided attempt gets through."""
GROUP_SIZE = 16
REVIEW: Mapping[str, Any] = {"chunk_tokens": 32, "max_reviews": 8, "max_intervention_tokens": 4}
"""Chosen as the paper does, on rollouts of the untrained policy: success up, a few per cent of tokens by the judge."""
NANO_JUDGE: Mapping[str, Any] = {"played_by": "scripted", "max_tokens": 64}
ARITHMETIC_METHODS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"group_size": GROUP_SIZE},
    "gspo": {"group_size": GROUP_SIZE},
    # A script is certain of its tokens: kappa is 0. beta keeps the bonus of the const anchor near 0.25 at the start.
    "mintrl": {**REVIEW, "judge": NANO_JUDGE, "regression": {"beta": 0.008, "kappa": 0.0}},
    "opd": {"group_size": GROUP_SIZE},
    "rti": {"group_size": GROUP_SIZE, "attempts": NANO_ATTEMPTS, "roles": {"played_by": "scripted"}},
    "sft_grpo": {"group_size": GROUP_SIZE, "demonstrations": 1, "teacher": {"played_by": "scripted"}},
}
EARLY = {"mintrl": "intervention_updates", "sft_grpo": "supervised_updates"}
"""Methods with a schedule -> the setting that says for how many updates something else comes before GRPO."""


def navigation_settings(method: str, *, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of a run on Navigation: the same for every method but for the method's own section.

    The learning rate is that of a 1 M parameter policy, not the papers' 1e-6.
    """
    return {
        "seed": seed,
        "output": str(folder),
        "environment": {"name": "navigation", "profile": "nano", "hard_fraction": HARD_FRACTION},
        "rollout": {"temperature": 0.8, "max_turn_tokens": 48},
        "method": {"name": method, **NAVIGATION_METHODS.get(method, {})},
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


def arithmetic_settings(method: str, *, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of a run on arithmetic: the same for every method but for the method's own section.

    Where a method has a schedule, the last half of the updates is GRPO's (the paper: 300 of 500).
    """
    section = {"name": method, **ARITHMETIC_METHODS.get(method, {})}
    if method in EARLY:
        section[EARLY[method]] = updates - updates // 2
    return {
        "seed": seed,
        "output": str(folder),
        "policy": {"path": "nano-arithmetic", "chat": "digits"},
        "environment": {"name": "arithmetic", "hard_fraction": HARD_FRACTION, "hard_steps": HARD_STEPS},
        "rollout": {"temperature": 0.8, "max_turn_tokens": 340},
        "method": section,
        "training": {
            "updates": updates,
            "tasks_per_update": 4,
            "learning_rate": 3e-4,
            "weight_decay": 0.0,
            "checkpoint_every": 10,
            "micro_batch_tokens": 4096,
        },
        "evaluation": {"attempts": 4, "splits": ["test", "ood"], "every": max(1, updates // 2), "max_tasks": 60},
    }


def table_world_settings(method: str, *, seed: int, updates: int, folder: Path) -> dict[str, Any]:
    """Return the settings of a run on the table world: the same for every method but for its name."""
    return {
        "seed": seed,
        "output": str(folder),
        "policy": {"path": "nano-table-world", "chat": "tables"},
        "environment": {"name": "table_world", "hard_fraction": HARD_FRACTION},
        "rollout": {"temperature": 0.8, "max_turn_tokens": 16},
        "method": {"name": method},
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


WORLDS: Mapping[str, Callable[..., dict[str, Any]]] = {
    **dict.fromkeys(("mintrl", "opd", "sft_grpo"), arithmetic_settings),
    **dict.fromkeys(("rail", "arpo", "aepo", "vip", "tampo", "tree_grpo"), table_world_settings),
}
"""Method -> the settings of its world; methods that are not here are shown on Navigation."""


def world_settings(method: str) -> Callable[..., dict[str, Any]]:
    """Return the function that makes the settings of any method's run on the world that `method` is shown on."""
    return WORLDS.get(method, navigation_settings)


def merge_section(section: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set what `changes` has in a method's section; tables are merged one level deep."""
    for key, value in changes.items():
        section[key] = {**section.get(key, {}), **value} if isinstance(value, Mapping) else value
