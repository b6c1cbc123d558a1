"""What branches were and brought, in one update. Groups in, numbers out."""

import math
from collections import Counter
from collections.abc import Sequence

from midcourse.branching.skill import action_map, pearson, skill
from midcourse.methods.grpo import is_success
from midcourse.types import BranchRecord, Group, Origin, Trajectory


def rail_statistics(groups: Sequence[Group], *, names: Sequence[str]) -> dict[str, float]:
    """Return counts, rates and how predictions agreed with gains, under intervention/. Means over nothing are left out.

    Args:
        groups: of one update.
        names: [K] of the action space's cells.
    """
    records = [record for group in groups for record in group.branches]
    used = [len(group.members) + len(group.extra) for group in groups]
    counts = {
        "branches": len(records),
        "branches_kept": sum(record.is_kept for record in records),
        "branch_rollouts": sum(len(record.rollouts) for record in records),
        "rejected_rollouts": sum(len(record.rollouts) for record in records if not record.is_kept),
        "decisions": sum(group.decisions for group in groups),
        "groups_unbranched": sum(not group.branches for group in groups),
    }
    rules = Counter(record.rule for record in records)
    cells = action_map([record.cell for record in records if record.cell is not None], names)
    found = {
        **counts,
        "rollouts_a_task": _mean(used),
        **{f"rule/{rule}": count for rule, count in sorted(rules.items())},
        **{f"action/{name.replace(' ', '_')}": count for name, count in cells.items()},
        "anchor_turn": _mean([record.turn for record in records]),
        **_gains([record for record in records if record.gained is not None]),
        **_successes(groups),
    }
    return {f"intervention/{name}": float(value) for name, value in found.items() if value is not None}


def _gains(records: Sequence[BranchRecord]) -> dict[str, float | None]:
    gained = [record.gained for record in records if record.gained is not None]
    over_chance = [
        record.gained - record.chance for record in records if record.gained is not None and record.chance is not None
    ]
    entropies = [(record.entropy, record.gained) for record in records if record.entropy is not None]
    told = [(record.predicted, record.gained) for record in records if record.predicted is not None]
    agreement = skill([predicted for predicted, _ in told], [gain or 0.0 for _, gain in told])
    return {
        "gain": _mean(gained),
        "gain_positive_fraction": _mean([gain > 0 for gain in gained]),
        "gain_over_chance": _mean(over_chance),
        "entropy_pearson": pearson([entropy for entropy, _ in entropies], [gain or 0.0 for _, gain in entropies]),
        **{f"prediction/{name}": value for name, value in agreement.metrics().items() if told},
    }


def _successes(groups: Sequence[Group]) -> dict[str, float | None]:
    """Return the success of the initial pools, and of kept branches."""

    def rate(origins: set[Origin]) -> float | None:
        chosen: list[Trajectory] = [m.trajectory for g in groups for m in g.members if m.origin in origins]
        return _mean([is_success(trajectory) for trajectory in chosen if trajectory.reward is not None])

    return {"success_initial": rate({Origin.ROOT}), "success_branches": rate({Origin.BRANCH})}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
