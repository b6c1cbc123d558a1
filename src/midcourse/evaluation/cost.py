"""What an update costs, by who asked the engine, and how many times that of another run it is.

Awaited seconds are those that requests waited for their answers. Requests wait side by side, so they add up to more
than the wall clock: they say who is waited for, not how long a run takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

POLICY_ROLES = ("policy", "branch", "intervened_policy", "repaired_branch")
"""The policy's own turns, in rollouts and branches, unaided and under intervention."""
ROLE_TITLES: Mapping[str, str] = {
    "policy": "policy",
    "branch": "policy, in branches",
    "intervened_policy": "policy, under intervention",
    "repaired_branch": "policy, in corrected branches",
    "controller_state": "states for the controller",
    "controller": "controller",
    "validator": "validator",
    "corrector": "corrector",
    "verifier": "verifier",
    "gate": "gate scoring",
    "judge": "judge",
    "intervention": "intervention",
    "intervention_score": "intervention scoring",
    "teacher": "teacher",
}
"""Role -> how a table calls it, in the order of a table. Roles that a method adds follow under their own names."""
GATE_SCORING: Mapping[str, str] = {"calibration": "gate"}
"""Both score a correction's tokens, one under the rollout prompt and one under the correction prompt."""
AMOUNT_PREFIXES: Mapping[str, str] = {
    "generated_tokens": "rollout/tokens/",
    "scored_tokens": "rollout/scored_tokens/",
    "prompt_tokens": "rollout/prompt_tokens/",
    "awaited_seconds": "time/rollout/",
}
"""Field of `RoleCost` -> the metrics that it is read from; a role's name follows."""
ROLLOUT_SECONDS, UPDATE_SECONDS = "time/rollout", "time/update"
SECONDS_KEYS = (ROLLOUT_SECONDS, UPDATE_SECONDS)
"""Wall clock of one update, seconds, in parts that do not overlap; evaluations and checkpoints are not in it."""
ASKED_KEY, REUSED_KEY = "time/engine/prompt_tokens", "time/engine/prompt_tokens_reused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCost:
    """What one role asked for, mean an update."""

    generated_tokens: float = 0.0
    scored_tokens: float = 0.0
    prompt_tokens: float = 0.0  # as asked for, those that the engine had cached included
    awaited_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCost:
    """What a run's updates cost, mean over those recorded."""

    roles: Mapping[str, RoleCost]
    total: RoleCost
    wall_seconds: float
    prompt_reused_fraction: float | None  # prompt tokens that the engine did not compute again; None: not counted

    def ratios(self, baseline: "UpdateCost") -> dict[str, float | None]:
        """Return how many times the baseline's each total is, and the wall clock; None where the baseline has none."""
        own = {**asdict(self.total), "wall_seconds": self.wall_seconds}
        other = {**asdict(baseline.total), "wall_seconds": baseline.wall_seconds}
        return {name: value / other[name] if other[name] else None for name, value in own.items()}


def update_seconds(line: Mapping[str, float]) -> float:
    """Return the wall clock of one update's metrics line, 0 where it has none."""
    return sum(line[key] for key in SECONDS_KEYS if key in line)


def update_cost(lines: Sequence[Mapping[str, float]]) -> UpdateCost:
    """Return the mean cost of an update over metrics lines; all zeros where there are none."""
    totals: dict[str, dict[str, float]] = {}
    for line in lines:
        for amount, prefix in AMOUNT_PREFIXES.items():
            for key, value in line.items():
                if key.startswith(prefix):
                    role = key.removeprefix(prefix)
                    role_totals = totals.setdefault(GATE_SCORING.get(role, role), dict.fromkeys(AMOUNT_PREFIXES, 0.0))
                    role_totals[amount] += value
    num_updates = max(1, len(lines))
    roles = {
        role: RoleCost(**{amount: total / num_updates for amount, total in totals[role].items()})
        for role in (*(role for role in ROLE_TITLES if role in totals), *sorted(totals.keys() - ROLE_TITLES.keys()))
    }
    asked = sum(line.get(ASKED_KEY, 0.0) for line in lines)
    return UpdateCost(
        roles=roles,
        total=RoleCost(**{amount: sum(getattr(cost, amount) for cost in roles.values()) for amount in AMOUNT_PREFIXES}),
        wall_seconds=sum(map(update_seconds, lines)) / num_updates,
        prompt_reused_fraction=sum(line.get(REUSED_KEY, 0.0) for line in lines) / asked if asked else None,
    )


def wall_clock_parts(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean seconds of an update by what they went to: the update, and the rollout by who was waited for.

    Rollouts wait side by side: of the rollout's wall clock each role gets its share of all awaited seconds. A rollout
    whose requests were not timed is one part.
    """
    num_updates = max(1, len(lines))
    update, rollout = (
        sum(line.get(key, 0.0) for line in lines) / num_updates for key in (UPDATE_SECONDS, ROLLOUT_SECONDS)
    )
    awaited = {
        role: cost.awaited_seconds for role, cost in update_cost(lines).roles.items() if cost.awaited_seconds > 0
    }
    total = sum(awaited.values())
    parts = {f"rollout: {ROLE_TITLES.get(role, role)}": rollout * share / total for role, share in awaited.items()}
    found = {"update of the weights": update, **(parts or {"rollout": rollout})}
    return {name: seconds for name, seconds in found.items() if seconds > 0}
