"""What intervention did: RTI's Table 6, Fig. 4, 5 and 7, and what they do not show. Groups in, numbers out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from midcourse.types import (
    Group,
    InterventionOutcome,
    InterventionRecord,
    Origin,
    TokenSource,
    Trajectory,
)

UNFLAGGED = frozenset({InterventionOutcome.VALID, InterventionOutcome.VALIDATOR_UNREADABLE})
"""The validator let the draft pass, or is taken to have."""


def is_flagged(record: InterventionRecord) -> bool:
    """Return whether the validator called the draft invalid. A role that failed before it spoke flagged nothing."""
    if record.outcome is InterventionOutcome.ROLE_FAILED:
        return bool(record.error_types or record.diagnosis or record.suggest_next or record.corrected_ids)
    return record.outcome not in UNFLAGGED


def is_flagged_but_kept(record: InterventionRecord) -> bool:
    """Return whether the draft was called invalid and stands all the same."""
    return is_flagged(record) and record.outcome is not InterventionOutcome.ACCEPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class RTIStatistics:
    """Counts and means over groups. A mean over nothing is None, never 0.

    "Original" and "corrected" compare the draft and the correction of the same accepted steps, per step; per
    trajectory their sums over its accepted steps, over intervened trajectories with at least one.
    """

    num_groups: int
    num_groups_triggered: int
    num_groups_rescued: int
    num_steps: int  # under intervention
    num_flagged: int
    outcomes: Mapping[str, int]  # every InterventionOutcome, 0 included
    num_intervened: int  # trajectories
    num_intervened_with_accepted: int
    num_lucky_successes: int  # succeeded under intervention without an accepted correction
    original_tool_calls_per_step: float | None
    corrected_tool_calls_per_step: float | None
    original_characters_per_step: float | None
    corrected_characters_per_step: float | None
    original_tool_calls_per_trajectory: float | None
    corrected_tool_calls_per_trajectory: float | None
    original_characters_per_trajectory: float | None
    corrected_characters_per_trajectory: float | None
    turns_per_intervened: float | None
    flagged_but_kept_fraction: float | None  # of the turns of rescued rollouts, in [0, 1]
    accepted_perplexity_mean: float | None  # accepted steps of successful rollouts (Fig. 5a)
    min_token_logprob: float | None  # nats, the least over the same steps
    weight_clip_fraction: float | None  # of the intervened tokens of rescued rollouts, in [0, 1]
    net_first_turn_weight: float | None  # mean over rescued groups, see `net_first_turn_weight`
    pass_at_group_before: float | None  # share of scored groups with a success, in [0, 1] (Fig. 4)
    pass_at_group_after: float | None

    def metrics(self) -> dict[str, float]:
        """Return the numbers under the names of metrics.jsonl; what is None is left out."""
        numbers = {
            f"intervention/{name}": getattr(self, name)
            for name in self.__dataclass_fields__
            if name != "outcomes" and getattr(self, name) is not None
        }
        outcomes = {f"intervention/outcome/{name}": count for name, count in self.outcomes.items()}
        return {name: float(value) for name, value in {**numbers, **outcomes}.items()}


def rti_statistics(
    groups: Sequence[Group],
    *,
    advantages: Sequence[Sequence[float | None]] | None = None,
    epsilon_cal: float = 0.2,
) -> RTIStatistics:
    """Return the statistics of an update's groups.

    Args:
        groups: any groups; those without intervention count in `num_groups` and pass@G alone.
        advantages: for each group [G] as the method gave them; without them no net weight of the first turn.
        epsilon_cal: the clip of Eq. 6, by which a clipped weight is known.

    Raises:
        ValueError: `advantages` has another number of entries than `groups`.
    """
    if advantages is not None and len(advantages) != len(groups):
        raise ValueError(f"one list of advantages per group: got {len(advantages)} for {len(groups)}")
    per_group = [intervened_trajectories(group) for group in groups]
    intervened = [trajectory for trajectories in per_group for trajectory in trajectories]
    rescued = [member.trajectory for group in groups for member in group.members if member.origin is Origin.INTERVENED]
    records = _records(intervened)
    accepted = [record for record in records if record.outcome is InterventionOutcome.ACCEPTED]
    corrected = [trajectory for trajectory in intervened if trajectory.accepted_interventions]
    successful = _accepted(trajectory for trajectory in intervened if _succeeded(trajectory))
    outcomes = Counter(record.outcome.value for record in records)
    net_weights = [
        net_first_turn_weight(group, row)
        for group, row in zip(groups, advantages or (), strict=advantages is not None)
        if any(member.origin is Origin.INTERVENED for member in group.members)
    ]
    scored = [group for group in groups if any(reward is not None for reward in group.rewards_before)]
    return RTIStatistics(
        num_groups=len(groups),
        num_groups_triggered=sum(map(bool, per_group)),
        num_groups_rescued=sum(any(member.origin is Origin.INTERVENED for member in group.members) for group in groups),
        num_steps=len(records),
        num_flagged=sum(map(is_flagged, records)),
        outcomes={outcome.value: outcomes[outcome.value] for outcome in InterventionOutcome},
        num_intervened=len(intervened),
        num_intervened_with_accepted=len(corrected),
        num_lucky_successes=sum(
            _succeeded(trajectory) and not trajectory.accepted_interventions for trajectory in intervened
        ),
        original_tool_calls_per_step=_mean(record.draft_tool_calls for record in accepted),
        corrected_tool_calls_per_step=_mean(record.corrected_tool_calls for record in accepted),
        original_characters_per_step=_mean(record.draft_characters for record in accepted),
        corrected_characters_per_step=_mean(record.corrected_characters for record in accepted),
        original_tool_calls_per_trajectory=_ratio(sum(r.draft_tool_calls for r in accepted), len(corrected)),
        corrected_tool_calls_per_trajectory=_ratio(sum(r.corrected_tool_calls for r in accepted), len(corrected)),
        original_characters_per_trajectory=_ratio(sum(r.draft_characters for r in accepted), len(corrected)),
        corrected_characters_per_trajectory=_ratio(sum(r.corrected_characters for r in accepted), len(corrected)),
        turns_per_intervened=_mean(len(trajectory.turns) for trajectory in intervened),
        flagged_but_kept_fraction=_mean(is_flagged_but_kept(record) for record in _records(rescued)),
        accepted_perplexity_mean=_mean(record.perplexity for record in successful if record.perplexity is not None),
        min_token_logprob=min(
            (record.min_token_logprob for record in successful if record.min_token_logprob is not None), default=None
        ),
        weight_clip_fraction=_mean(
            abs(weight - 1.0) >= epsilon_cal - 1e-9
            for trajectory in rescued
            for weight, source in zip(trajectory.weights, trajectory.sources, strict=True)
            if source is TokenSource.INTERVENTION
        ),
        net_first_turn_weight=_mean(net_weights),
        pass_at_group_before=_mean(any((reward or 0) > 0 for reward in group.rewards_before) for group in scored),
        pass_at_group_after=_mean(any((reward or 0) > 0 for reward in group.rewards) for group in scored),
    )


def intervened_trajectories(group: Group) -> list[Trajectory]:
    """Return the attempts that ran under intervention, the one that became a member included."""
    candidates = [*(member.trajectory for member in group.members), *group.extra]
    return [trajectory for trajectory in candidates if any(turn.intervention is not None for turn in trajectory.turns)]


def net_first_turn_weight(group: Group, advantages: Sequence[float | None]) -> float:
    """Return what the group's loss puts on first turns that equal the rescued rollout's: sum of A x weight / length.

    The rescued rollout often shares its first turn with members that failed. Eq. 7 divides by a rollout's length, so
    that a longer rescued rollout gives that turn less than the failures take: a negative value unlearns it.

    Args:
        group: a group with an intervened member.
        advantages: [G] as the method gave them.

    Raises:
        ValueError: no member is intervened.
    """
    rescued = next((m.trajectory for m in group.members if m.origin is Origin.INTERVENED), None)
    if rescued is None:
        raise ValueError(f"group {group.group_id!r} has no intervened member")
    shared = _first_turn(rescued)
    total = 0.0
    for member, advantage in zip(group.members, advantages, strict=True):
        trajectory = member.trajectory
        if advantage is None or not trajectory.turns or _first_turn(trajectory) != shared:
            continue
        length = sum(logprob is not None for logprob in trajectory.behavior_logprobs)
        first = trajectory.turns[0]
        total += advantage * sum(trajectory.weights[first.start : first.end]) / length
    return total


def _first_turn(trajectory: Trajectory) -> Sequence[int]:
    turn = trajectory.turns[0]
    return tuple(trajectory.token_ids[turn.start : turn.end])


def _records(trajectories: Iterable[Trajectory]) -> list[InterventionRecord]:
    return [
        turn.intervention for trajectory in trajectories for turn in trajectory.turns if turn.intervention is not None
    ]


def _accepted(trajectories: Iterable[Trajectory]) -> list[InterventionRecord]:
    return [record for record in _records(trajectories) if record.outcome is InterventionOutcome.ACCEPTED]


def _succeeded(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and trajectory.reward > 0


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return _ratio(sum(listed), len(listed))


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None
