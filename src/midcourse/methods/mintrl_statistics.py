"""What reviews did: how much who wrote, where the first error was, what it was worth. Groups in, numbers out."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from midcourse.methods.grpo import is_success
from midcourse.types import Group, Origin, ReviewOutcome, ReviewRecord, TokenSource, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class MInTRLStatistics:
    """Counts and means over groups. A mean over nothing is None, never 0.

    "Revised" are semi-on-policy rollouts with at least one correction. Positions count tokens from the start of the
    response.
    """

    num_semi_on_policy: int
    num_revised: int
    outcomes: Mapping[str, int]  # reviews by every ReviewOutcome, 0 included
    token_fraction_semi: float | None  # intervention tokens of what trains in semi-on-policy rollouts, in [0, 1]
    token_fraction_all: float | None  # of what trains in all members
    first_error_position: float | None  # tokens, mean over revised rollouts
    first_error_fraction: float | None  # the same, over the length of the response as it became, in [0, 1]
    rejected_tokens: float | None  # mean a correction
    correction_tokens: float | None  # mean a correction
    num_ended_by_correction: int
    num_holding_answer: int  # corrections in which a private value of the evidence stands
    policy_logprob: float | None  # nats, mean over intervention tokens, by the policy at the rollout weights
    judge_logprob: float | None  # nats, the same by the judge; of a pilot, it is the estimate of kappa
    success_on_policy: float | None
    success_semi: float | None
    success_revised: float | None
    success_unrevised: float | None  # semi-on-policy rollouts that were kept throughout
    reward_on_policy: float | None
    reward_semi: float | None
    anchor_bonus_max: float | None  # |beta S|, advantage units; None without the const anchor
    failed_pushed_up_fraction: float | None  # failed rollouts with A + beta S > 0, in [0, 1]

    def metrics(self) -> dict[str, float]:
        """Return the numbers under the names of metrics.jsonl; what is None is left out."""
        if not self.num_semi_on_policy:
            return {}
        numbers = {
            f"intervention/{name}": getattr(self, name)
            for name in self.__dataclass_fields__
            if name != "outcomes" and getattr(self, name) is not None
        }
        reviews = {f"intervention/review/{name}": count for name, count in self.outcomes.items()}
        return {name: float(value) for name, value in {**numbers, **reviews}.items()}


def mintrl_statistics(
    groups: Sequence[Group],
    *,
    advantages: Sequence[Sequence[float | None]],
    beta: float,
    kappa: float | None,
) -> MInTRLStatistics:
    """Return the statistics of an update's groups.

    Args:
        groups: any groups.
        advantages: for each group [G] as the method gave them.
        beta: of the regression, advantage units a nat.
        kappa: the const anchor, nats a token; None: the anchor is the policy's own.
    """
    members = [member for group in groups for member in group.members]
    values = [value for row in advantages for value in row]
    semi = [member.trajectory for member in members if member.origin is Origin.SEMI_ON_POLICY]
    alone = [member.trajectory for member in members if member.origin is not Origin.SEMI_ON_POLICY]
    revised = [trajectory for trajectory in semi if _revisions(trajectory)]
    unrevised = [trajectory for trajectory in semi if not _revisions(trajectory)]
    corrections = [review for trajectory in semi for review in _revisions(trajectory)]
    outcomes = Counter(review.outcome for trajectory in semi for review in trajectory.reviews)
    first = [(_revisions(trajectory)[0], trajectory) for trajectory in revised]
    positions = [(review.cut or 0) - trajectory.prompt_length for review, trajectory in first]
    bonuses = [0.0 if kappa is None else beta * _anchor_excess(member.trajectory, kappa) for member in members]
    pushed = [
        value + bonus > 0
        for member, value, bonus in zip(members, values, bonuses, strict=True)
        if value is not None and member.trajectory.reward is not None and member.trajectory.reward <= 0
    ]
    known = [review for review in corrections if review.judge_logprob is not None]
    return MInTRLStatistics(
        num_semi_on_policy=len(semi),
        num_revised=len(revised),
        outcomes={outcome.value: outcomes[outcome] for outcome in ReviewOutcome},
        token_fraction_semi=intervention_fraction(semi),
        token_fraction_all=intervention_fraction([*semi, *alone]),
        first_error_position=_mean(positions),
        first_error_fraction=_mean(
            position / max(len(trajectory.token_ids) - trajectory.prompt_length, 1)
            for position, (_, trajectory) in zip(positions, first, strict=True)
        ),
        rejected_tokens=_mean(len(review.rejected_ids) for review in corrections),
        correction_tokens=_mean(review.correction_tokens for review in corrections),
        num_ended_by_correction=sum(review.ends_turn for review in corrections),
        num_holding_answer=sum(review.holds_answer for review in corrections),
        policy_logprob=_mean(logprob for trajectory in semi for logprob in _intervention_logprobs(trajectory)),
        judge_logprob=_ratio(
            math.fsum((review.judge_logprob or 0.0) * review.correction_tokens for review in known),
            sum(review.correction_tokens for review in known),
        ),
        success_on_policy=_success(alone),
        success_semi=_success(semi),
        success_revised=_success(revised),
        success_unrevised=_success(unrevised),
        reward_on_policy=_mean(item.reward for item in alone if item.reward is not None),
        reward_semi=_mean(item.reward for item in semi if item.reward is not None),
        anchor_bonus_max=None if kappa is None else max(map(abs, bonuses), default=None),
        failed_pushed_up_fraction=None if kappa is None else _mean(pushed),
    )


def intervention_fraction(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the part of the tokens that carry loss which interventions wrote, in [0, 1]; None without such tokens."""
    written = sum(trajectory.count(TokenSource.INTERVENTION) for trajectory in trajectories)
    return _ratio(written, written + sum(trajectory.count(TokenSource.POLICY) for trajectory in trajectories))


def _revisions(trajectory: Trajectory) -> list[ReviewRecord]:
    return [review for review in trajectory.reviews if review.outcome is ReviewOutcome.REVISED]


def _intervention_logprobs(trajectory: Trajectory) -> list[float]:
    return [
        logprob
        for source, logprob in zip(trajectory.sources, trajectory.behavior_logprobs, strict=True)
        if source is TokenSource.INTERVENTION and logprob is not None
    ]


def _anchor_excess(trajectory: Trajectory, kappa: float) -> float:
    """Return S, nats: the sum over intervention tokens of kappa minus the policy's log-probability."""
    return math.fsum(kappa - logprob for logprob in _intervention_logprobs(trajectory))


def _success(trajectories: Iterable[Trajectory]) -> float | None:
    return _mean(is_success(trajectory) for trajectory in trajectories if trajectory.reward is not None)


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return _ratio(math.fsum(listed), len(listed))


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None
