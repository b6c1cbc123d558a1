"""Groups of one update -> the numbers of its metrics line. Nothing is dropped without a number that says how many.

Names, each of them in docs/metrics.md: reward/*, group/*, rollout/* (attempts, whatever became of them), turns/* and
tokens/* (of members, as they train), intervention/outcome/* (steps). Cost by role, over every attempt: rollout/tokens/*
(generated), rollout/scored_tokens/*, rollout/prompt_tokens/*, rollout/seconds/* (awaited; the trainer writes them as
time/rollout/*). A rescued group counts as failed "before" and as passed "after".
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from midcourse.evaluation.estimators import is_success
from midcourse.types import (
    Group,
    InterventionOutcome,
    InterventionRecord,
    RolloutCost,
    StopReason,
    TokenSource,
    Trajectory,
)

MAX_TURN_BIN = 6
"""Turn counts up to here have a metric of their own; longer rollouts share turns/more."""


def group_metrics(groups: Sequence[Group]) -> Mapping[str, float]:
    """Return the metrics of one update's groups.

    Fractions lie in [0, 1]; counts are totals over the groups. Means and fractions over nothing are left out, never
    written as 0.
    """
    return {
        **_reward_metrics(groups),
        **_group_outcomes(groups),
        **_rollout_metrics(groups),
        **_member_metrics([member.trajectory for group in groups for member in group.members]),
        **_intervention_metrics(groups),
        **_cost_metrics([group.cost for group in groups]),
    }


def rollouts(group: Group) -> Iterator[Trajectory]:
    """Yield every attempt of the group once: members, those they replaced, and extras."""
    for member in group.members:
        yield member.trajectory
        if member.replaced is not None:
            yield member.replaced
    yield from group.extra


def intervention_records(groups: Iterable[Group]) -> list[InterventionRecord]:
    """Return what the roles said about every step under intervention, in the order of the rollouts."""
    return [
        turn.intervention
        for group in groups
        for trajectory in rollouts(group)
        for turn in trajectory.turns
        if turn.intervention is not None
    ]


def _scored(rewards: Iterable[float | None]) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _reward_metrics(groups: Sequence[Group]) -> dict[str, float]:
    metrics = {}
    for suffix, rewards in (
        ("", _scored(reward for group in groups for reward in group.rewards)),
        ("_before", _scored(reward for group in groups for reward in group.rewards_before)),
    ):
        if rewards:
            metrics[f"reward/mean{suffix}"] = _mean(rewards)
            metrics[f"reward/success_fraction{suffix}"] = _mean([float(is_success(reward)) for reward in rewards])
    return metrics


def _group_outcomes(groups: Sequence[Group]) -> dict[str, float]:
    before = [_scored(group.rewards_before) for group in groups]
    after = [_scored(group.rewards) for group in groups]
    metrics = {
        "group/count": float(len(groups)),
        "group/members": float(sum(len(group.members) for group in groups)),
        "group/unscored": float(sum(not rewards for rewards in after)),
        "group/rescued": float(sum(any(member.replaced is not None for member in group.members) for group in groups)),
    }
    # A group whose members all failed to be scored says nothing of the policy: it leaves the fractions.
    before, after = [rewards for rewards in before if rewards], [rewards for rewards in after if rewards]
    if before:
        metrics["group/frac_all_fail"] = _mean([float(max(rewards) <= 0) for rewards in before])
        metrics["group/frac_all_pass"] = _mean([float(all(map(is_success, rewards))) for rewards in before])
        metrics["group/pass_before"] = _mean([float(any(map(is_success, rewards))) for rewards in before])
    if after:
        metrics["group/frac_zero_std"] = _mean([float(max(rewards) == min(rewards)) for rewards in after])
        metrics["group/pass_after"] = _mean([float(any(map(is_success, rewards))) for rewards in after])
    return metrics


def _rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    attempts = [trajectory for group in groups for trajectory in rollouts(group)]
    failures = Counter(trajectory.failure.value for trajectory in attempts if trajectory.failure is not None)
    cut = sum(trajectory.stop_reason in (StopReason.TOKEN_LIMIT, StopReason.TURN_LIMIT) for trajectory in attempts)
    unreadable = sum(turn.message.parse_error is not None for trajectory in attempts for turn in trajectory.turns)
    return {
        "rollout/count": float(len(attempts)),
        "rollout/errors/total": float(sum(failures.values())),
        **{f"rollout/errors/{kind}": float(count) for kind, count in sorted(failures.items())},
        "rollout/truncated": float(cut),
        "rollout/unreadable_turns": float(unreadable),
    }


def _member_metrics(members: Sequence[Trajectory]) -> dict[str, float]:
    if not members:
        return {}
    lengths = Counter(len(trajectory.turns) for trajectory in members)
    longer = sum(count for length, count in lengths.items() if length > MAX_TURN_BIN)
    return {
        "rollout/turns/mean": _mean([float(len(trajectory.turns)) for trajectory in members]),
        **{f"turns/{length}": lengths[length] / len(members) for length in range(1, MAX_TURN_BIN + 1)},
        "turns/more": longer / len(members),
        **{
            f"tokens/{source.value}": float(sum(trajectory.count(source) for trajectory in members))
            for source in TokenSource
        },
    }


def _intervention_metrics(groups: Sequence[Group]) -> dict[str, float]:
    records = intervention_records(groups)
    if not records:
        return {}
    outcomes = Counter(record.outcome for record in records)
    metrics = {f"intervention/outcome/{outcome.value}": float(outcomes[outcome]) for outcome in InterventionOutcome}
    for name, is_accepted in (("accepted", True), ("rejected", False)):
        perplexities = [
            record.perplexity
            for record in records
            if record.perplexity is not None and (record.outcome is InterventionOutcome.ACCEPTED) == is_accepted
        ]
        if perplexities:
            metrics[f"intervention/perplexity_{name}"] = _mean(perplexities)
    return metrics


def _cost_metrics(costs: Sequence[RolloutCost]) -> dict[str, float]:
    totals: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        for name, amounts in (
            ("tokens", cost.generated_tokens),
            ("scored_tokens", cost.scored_tokens),
            ("prompt_tokens", cost.prompt_tokens),
            ("seconds", cost.seconds),
        ):
            for role, amount in amounts.items():
                totals[f"rollout/{name}/{role}"] += amount
    return dict(sorted(totals.items()))
