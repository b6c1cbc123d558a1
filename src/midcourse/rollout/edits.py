"""Edits of a rollout: extend, cut, splice, fork. Pure functions; a token keeps its writer through all of them.

Letters: T tokens of the prefix, N tokens that are added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from midcourse.types import (
    TRAINED_SOURCES,
    FailureKind,
    StopReason,
    TokenSource,
    Trajectory,
    Turn,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A rollout without its outcome: what an edit returns and what a rollout can go on from.

    It has no reward on purpose: the reward of the trajectory that was cut is not the reward of what is left.

    Raises:
        ValueError: as Trajectory; or turns out of order, overlapping, or over a token that no turn can hold.
    """

    task_id: str
    token_ids: Sequence[int] = ()  # [T]
    sources: Sequence[TokenSource] = ()  # [T]
    behavior_logprobs: Sequence[float | None] = ()  # [T] nats
    policy_versions: Sequence[int | None] = ()  # [T]
    weights: Sequence[float] = ()  # [T]
    calibration_logprobs: Sequence[float | None] = ()  # [T] nats
    turns: Sequence[Turn] = ()
    temperature: float = 1.0

    def __post_init__(self) -> None:
        # What a trajectory may hold is stated once, by the type that this becomes.
        self.finish(failure=FailureKind.ROLLOUT_TIMEOUT)
        before = 0
        for index, turn in enumerate(self.turns):
            if turn.start < before:
                raise ValueError(
                    f"task {self.task_id!r}, turn {index}: starts at {turn.start}, before the end {before} of the last"
                )
            for position in range(turn.start, turn.end):
                if self.sources[position] not in TRAINED_SOURCES:
                    raise ValueError(
                        f"task {self.task_id!r}, turn {index}: token {position} was written by "
                        f"{self.sources[position]}, expected policy or intervention"
                    )
            before = turn.end

    @property
    def prompt_length(self) -> int:
        """Tokens before the first that was not given as prompt."""
        return next(
            (index for index, source in enumerate(self.sources) if source is not TokenSource.PROMPT), len(self.sources)
        )

    @property
    def open_start(self) -> int:
        """Where the turn begins that is being written: behind the last turn and the last token that was given.

        Equal to the number of tokens where no turn was begun.
        """
        start = self.turns[-1].end if self.turns else 0
        for position in range(len(self.sources) - 1, start - 1, -1):
            if self.sources[position] not in TRAINED_SOURCES:
                return position + 1
        return start

    def finish(
        self,
        *,
        reward: float | None = None,
        failure: FailureKind | None = None,
        failure_message: str = "",
        stop_reason: StopReason = StopReason.DONE,
    ) -> Trajectory:
        """Return the trajectory with its outcome. A failure sets the stop reason itself.

        Raises:
            ValueError: both or neither of `reward` and `failure`.
        """
        return Trajectory(
            task_id=self.task_id,
            token_ids=self.token_ids,
            sources=self.sources,
            behavior_logprobs=self.behavior_logprobs,
            policy_versions=self.policy_versions,
            weights=self.weights,
            calibration_logprobs=self.calibration_logprobs,
            turns=self.turns,
            reward=reward,
            failure=failure,
            failure_message=failure_message,
            stop_reason=StopReason.FAILED if failure is not None else stop_reason,
            temperature=self.temperature,
        )


def as_prefix(trajectory: Trajectory | Prefix) -> Prefix:
    """Return all of the trajectory, without its outcome."""
    return cut(trajectory, len(trajectory.token_ids))


def extend(
    prefix: Prefix,
    token_ids: Sequence[int],
    source: TokenSource,
    *,
    behavior_logprobs: Sequence[float] | None = None,
    policy_version: int | None = None,
    weights: Sequence[float] | None = None,
    calibration_logprobs: Sequence[float | None] | None = None,
) -> Prefix:
    """Return `prefix` followed by tokens of one writer.

    Args:
        prefix: what stands before.
        token_ids: [N] tokens to add.
        source: who wrote them.
        behavior_logprobs: [N] nats under the rollout prompt; given for policy and intervention, and only for them.
        policy_version: weights that sampled or scored the tokens; given where the log-probabilities are.
        weights: [N] factors on the tokens' loss; none is 1.
        calibration_logprobs: [N] nats under the correction prompt.

    Raises:
        ValueError: a per-token argument of another length than `token_ids`, or one that the source does not allow.
    """
    num_tokens = len(token_ids)
    for name, values in (
        ("behavior_logprobs", behavior_logprobs),
        ("weights", weights),
        ("calibration_logprobs", calibration_logprobs),
    ):
        if values is not None and len(values) != num_tokens:
            raise ValueError(
                f"task {prefix.task_id!r}: {name} must have one entry per added token: "
                f"got {len(values)}, expected {num_tokens}"
            )
    nothing = (None,) * num_tokens
    return replace(
        prefix,
        token_ids=(*prefix.token_ids, *token_ids),
        sources=(*prefix.sources, *(source,) * num_tokens),
        behavior_logprobs=(*prefix.behavior_logprobs, *(nothing if behavior_logprobs is None else behavior_logprobs)),
        policy_versions=(*prefix.policy_versions, *(policy_version,) * num_tokens),
        weights=(*prefix.weights, *((1.0,) * num_tokens if weights is None else weights)),
        calibration_logprobs=(
            *prefix.calibration_logprobs,
            *(nothing if calibration_logprobs is None else calibration_logprobs),
        ),
    )


def add_turn(prefix: Prefix, turn: Turn) -> Prefix:
    """Return `prefix` with one more turn over tokens that it has. Raises ValueError as Prefix does."""
    return replace(prefix, turns=(*prefix.turns, turn))


def cut(trajectory: Trajectory | Prefix, at: int) -> Prefix:
    """Return the first `at` tokens, and the turns that end in them.

    A turn that the cut runs through is no turn any more: its tokens before `at` stay as the beginning of a turn that
    is still being written (`Prefix.open_start`). A turn that ends at or before `at` stays with its results, also
    where their tokens are cut off.

    Raises:
        ValueError: `at` is outside [0, T].
    """
    if not 0 <= at <= len(trajectory.token_ids):
        raise ValueError(
            f"task {trajectory.task_id!r}: a cut must lie within the {len(trajectory.token_ids)} tokens: got {at}"
        )
    return Prefix(
        task_id=trajectory.task_id,
        token_ids=tuple(trajectory.token_ids[:at]),
        sources=tuple(trajectory.sources[:at]),
        behavior_logprobs=tuple(trajectory.behavior_logprobs[:at]),
        policy_versions=tuple(trajectory.policy_versions[:at]),
        weights=tuple(trajectory.weights[:at]),
        calibration_logprobs=tuple(trajectory.calibration_logprobs[:at]),
        turns=tuple(turn for turn in trajectory.turns if turn.end <= at),
        temperature=trajectory.temperature,
    )


def splice(
    trajectory: Trajectory | Prefix,
    at: int,
    token_ids: Sequence[int],
    source: TokenSource,
    *,
    behavior_logprobs: Sequence[float] | None = None,
    policy_version: int | None = None,
    weights: Sequence[float] | None = None,
    calibration_logprobs: Sequence[float | None] | None = None,
) -> Prefix:
    """Return the first `at` tokens followed by `token_ids`: `cut`, then `extend`, and what both raise."""
    return extend(
        cut(trajectory, at),
        token_ids,
        source,
        behavior_logprobs=behavior_logprobs,
        policy_version=policy_version,
        weights=weights,
        calibration_logprobs=calibration_logprobs,
    )


def fork(trajectory: Trajectory | Prefix, turn_index: int) -> Prefix:
    """Return what stood before a turn: all earlier turns with their answers, and the generation prompt.

    Raises:
        ValueError: there is no such turn.
    """
    if not 0 <= turn_index < len(trajectory.turns):
        raise ValueError(
            f"task {trajectory.task_id!r}: cannot fork before turn {turn_index} of {len(trajectory.turns)} turns"
        )
    return cut(trajectory, trajectory.turns[turn_index].start)
