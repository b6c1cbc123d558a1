"""What RAIL's branches were and brought, in one update. Groups in, numbers out."""

from collections import Counter
from collections.abc import Sequence

from midcourse.branching.skill import action_map, pearson, skill
from midcourse.methods.branched import branch_statistics, mean
from midcourse.types import BranchRecord, Group

STATES_FAILED = "states_failed"
"""Name in Group.measured: the engine did not give a state of the policy, and the group grew no further."""


def rail_statistics(groups: Sequence[Group], *, names: Sequence[str]) -> dict[str, float]:
    """Return counts, rates and how predictions agreed with gains, under intervention/. Means over nothing are left out.

    Args:
        groups: of one update.
        names: [K] of the action space's cells.
    """
    records = [record for group in groups for record in group.branches]
    rules = Counter(record.rule for record in records)
    cells = action_map([record.cell for record in records if record.cell is not None], names)
    found = {
        "branches_kept": sum(record.is_kept for record in records),
        "rejected_rollouts": sum(len(record.rollouts) for record in records if not record.is_kept),
        "decisions": sum(group.decisions for group in groups),
        STATES_FAILED: sum(STATES_FAILED in group.measured for group in groups),
        **{f"rule/{rule}": count for rule, count in sorted(rules.items())},
        **{f"action/{name.replace(' ', '_')}": count for name, count in cells.items()},
        **_gains([record for record in records if record.gained is not None]),
    }
    own = {f"intervention/{name}": float(value) for name, value in found.items() if value is not None}
    return {**branch_statistics(groups), **own}


def _gains(records: Sequence[BranchRecord]) -> dict[str, float | None]:
    gained = [record.gained for record in records if record.gained is not None]
    over_chance = [
        record.gained - record.chance for record in records if record.gained is not None and record.chance is not None
    ]
    entropies = [(record.entropy, record.gained) for record in records if record.entropy is not None]
    told = [(record.predicted, record.gained) for record in records if record.predicted is not None]
    agreement = skill([predicted for predicted, _ in told], [gain or 0.0 for _, gain in told])
    return {
        "gain": mean(gained),
        "gain_positive_fraction": mean([gain > 0 for gain in gained]),
        "gain_over_chance": mean(over_chance),
        "entropy_pearson": pearson([entropy for entropy, _ in entropies], [gain or 0.0 for _, gain in entropies]),
        **{f"prediction/{name}": value for name, value in agreement.metrics().items() if told},
    }
