"""Settings of the built-in policies' runs: the demo, the benchmarks and `midcourse init --nano` start from them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

NANO_ROLES: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 64}
NANO_ATTEMPTS = 4
"""Intervened rollouts of a failed group; the paper has 8, which would double the cost on a laptop."""
NAVIGATION_METHODS: Mapping[str, Mapping[str, Any]] = {"rti": {"roles": NANO_ROLES, "attempts": NANO_ATTEMPTS}}
HARD_FRACTION = 0.7
"""Share of hard tasks: most groups begin by failing as a whole."""
REVIEW: Mapping[str, Any] = {"chunk_tokens": 32, "max_reviews": 8, "max_intervention_tokens": 4}
GROUP_SIZE = 16
ARITHMETIC_METHODS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"group_size": GROUP_SIZE},
    "gspo": {"group_size": GROUP_SIZE},
    "mintrl": {**REVIEW, "judge": {"played_by": "scripted", "max_tokens": 64}},
    "opd": {"group_size": GROUP_SIZE},
    "rti": {"group_size": GROUP_SIZE, "attempts": NANO_ATTEMPTS, "roles": {"played_by": "scripted"}},
    "sft_grpo": {"group_size": GROUP_SIZE},
}


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
    """Return the settings of a run on arithmetic: the same for every method but for the method's own section."""
    return {
        "seed": seed,
        "output": str(folder),
        "policy": {"path": "nano-arithmetic", "chat": "digits"},
        "environment": {"name": "arithmetic", "hard_fraction": HARD_FRACTION},
        "rollout": {"temperature": 0.8, "max_turn_tokens": 340},
        "method": {"name": method, **ARITHMETIC_METHODS.get(method, {})},
        "training": {
            "updates": updates,
            "tasks_per_update": 4,
            "learning_rate": 2e-4,
            "weight_decay": 0.0,
            "checkpoint_every": 10,
            "micro_batch_tokens": 4096,
        },
        "evaluation": {"attempts": 4, "splits": ["test", "ood"], "every": max(1, updates // 2), "max_tasks": 60},
    }


WORLDS: Mapping[str, Callable[..., dict[str, Any]]] = dict.fromkeys(("mintrl", "opd", "sft_grpo"), arithmetic_settings)
"""Method -> the settings of its world; methods that are not here are shown on Navigation."""


def world_settings(method: str) -> Callable[..., dict[str, Any]]:
    """Return the function that makes the settings of any method's run on the world that `method` is shown on."""
    return WORLDS.get(method, navigation_settings)


def merge_section(section: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set what `changes` has in a method's section; tables are merged one level deep."""
    for key, value in changes.items():
        section[key] = {**section.get(key, {}), **value} if isinstance(value, Mapping) else value
