"""The nouns of the data path. Letters: T tokens of one trajectory, G members of one group.

A rollout is a token sequence that can be edited in flight. Every token carries who wrote it from the moment it
exists; masks, importance ratios and viewer colours are derived from that one field.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TokenSource(StrEnum):
    """Who wrote a token. Decides what the token may train, so it is never guessed later."""

    PROMPT = "prompt"
    POLICY = "policy"
    INTERVENTION = "intervention"
    ENVIRONMENT = "environment"


TRAINED_SOURCES = frozenset({TokenSource.POLICY, TokenSource.INTERVENTION})
"""Tokens of these sources carry loss and a behaviour log-probability; the others never do."""


class FailureKind(StrEnum):
    """Why a rollout has no reward. A failure is never reward 0."""

    ENVIRONMENT_ERROR = "environment_error"
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    REPLAY_MISMATCH = "replay_mismatch"  # a fork's world did not answer the turns before it as it had
    ENGINE_ERROR = "engine_error"
    REWARD_ERROR = "reward_error"
    ROLLOUT_TIMEOUT = "rollout_timeout"
    PROMPT_TOO_LONG = "prompt_too_long"


class StopReason(StrEnum):
    """Why a scored rollout ended. Only DONE means that the environment said so."""

    DONE = "done"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the policy asked for it. Arguments are whatever JSON object it wrote: nothing is validated yet."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    """A parsed turn of the policy. `parse_error` is set when a tool call could not be read; the readable calls stay."""

    reasoning: str = ""
    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    parse_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What one call of a turn returned. `name` is the tool's, or "" where the call itself was unreadable."""

    name: str
    content: str
    is_error: bool = False


class InterventionOutcome(StrEnum):
    """How one step under intervention ended. Exactly one per step."""

    VALID = "valid"  # the validator let the draft pass
    VALIDATOR_UNREADABLE = "validator_unreadable"  # treated as valid
    CORRECTOR_UNREADABLE = "corrector_unreadable"  # draft kept
    UNCHANGED = "unchanged"  # the correction is the draft itself
    LEAK = "leak"  # rejected by the deterministic leak check
    VERIFIER_REJECTED = "verifier_rejected"
    VERIFIER_UNREADABLE = "verifier_unreadable"  # treated as a rejection
    GATE_REJECTED = "gate_rejected"  # PPL over delta
    ROLE_FAILED = "role_failed"  # a role's engine did not answer: draft kept
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionRecord:
    """What the roles said about one step, and what was done. Texts are a model's words: escape before showing."""

    outcome: InterventionOutcome
    draft_ids: Sequence[int] = ()
    corrected_ids: Sequence[int] = ()
    error_types: Sequence[str] = ()
    diagnosis: str = ""
    suggest_next: str = ""
    verifier_reasons: Sequence[str] = ()
    verifier_diagnosis: str = ""
    leaked_values: Sequence[str] = ()
    perplexity: float | None = None  # of the corrected tokens under the rollout prompt, temperature 1 (RTI Eq. 3)
    min_token_logprob: float | None = None  # nats, the least likely corrected token, temperature 1
    draft_tool_calls: int = 0
    draft_characters: int = 0
    corrected_tool_calls: int = 0
    corrected_characters: int = 0


class ReviewOutcome(StrEnum):
    """How one review of a chunk ended. Only REVISED changes the rollout."""

    KEPT = "kept"
    REVISED = "revised"
    UNREADABLE = "unreadable"  # the verdict: kept
    NOT_FOUND = "not_found"  # the quote names no place in the chunk: kept
    NO_CORRECTION = "no_correction"  # nothing came to put in its place: kept
    JUDGE_FAILED = "judge_failed"  # the judge's engine did not answer: kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRecord:
    """What the judge said about one chunk, and what was done. Texts are a model's words: escape before showing.

    Positions index the trajectory. Example: a chunk of tokens 10 to 14 is cut at 12 and 3 tokens are put there: start
    10, end 15, cut 12, rejected_ids tokens 12 to 14 as they were, correction_tokens 3; now 12 to 14 are the judge's.
    """

    outcome: ReviewOutcome
    start: int  # of the chunk
    end: int  # behind the chunk as it was written, a stop token included
    cut: int | None = None  # the first token that was rejected; None where the chunk stays
    rejected_ids: Sequence[int] = ()
    correction_tokens: int = 0
    ends_turn: bool = False  # the correction does
    holds_answer: bool = False  # a private value of the evidence stands in the correction
    judge_logprob: float | None = None  # nats, mean over the correction's tokens, the judge's own; None: not known
    quote: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange: the span of tokens that policy or intervention wrote, and what the environment answered.

    `start` and `end` index the trajectory's tokens, end exclusive; the answer's tokens follow from `end` on.
    """

    start: int
    end: int
    message: AssistantTurn
    results: Sequence[ToolResult] = ()
    intervention: InterventionRecord | None = None
    reviews: Sequence[ReviewRecord] = ()  # of the turn's chunks, in order
    entropies: Sequence[float] = ()  # nats, to 4 decimals, of the draws of the draft in order; () where not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One token sequence with the writer of every token, its turns and its outcome.

    Example: prompt ids [5, 6], the policy writes [7, 2], the tool answers [9]: token_ids (5, 6, 7, 2, 9), sources
    (prompt, prompt, policy, policy, environment), behavior_logprobs (None, None, -0.1, -0.3, None), one turn with
    start 2, end 4.

    Raises:
        ValueError: the per-token fields differ in length; a behaviour log-probability is missing on a token of
            TRAINED_SOURCES or present elsewhere, and so a teacher's, where a teacher scored the rollout; a weight
            other than 1 on a token that carries no loss; both or neither of reward and failure on a finished rollout;
            a turn that lies outside the tokens.
    """

    task_id: str
    token_ids: Sequence[int]  # [T]
    sources: Sequence[TokenSource]  # [T]
    behavior_logprobs: Sequence[float | None]  # [T] nats, sampling temperature, rollout prompt
    policy_versions: Sequence[int | None]  # [T] weights that sampled or rescored the token; None where no log-prob
    weights: Sequence[float]  # [T] factor on the token's loss; 1 unless a method says otherwise
    calibration_logprobs: Sequence[float | None]  # [T] nats, under the correction prompt (RTI pi_cal); else None
    turns: Sequence[Turn] = ()
    reward: float | None = None  # task units; None where the rollout failed
    failure: FailureKind | None = None
    failure_message: str = ""
    stop_reason: StopReason = StopReason.DONE
    temperature: float = 1.0  # that all log-probabilities were taken at
    teacher_logprobs: Sequence[float | None] | None = None  # [T] nats, of a teacher that scored the whole; else None

    def __post_init__(self) -> None:
        num_tokens = len(self.token_ids)
        for name in ("sources", "behavior_logprobs", "policy_versions", "weights", "calibration_logprobs"):
            self._check_length(name, getattr(self, name))
        for position, (source, logprob, version, weight) in enumerate(
            zip(self.sources, self.behavior_logprobs, self.policy_versions, self.weights, strict=True)
        ):
            trained = source in TRAINED_SOURCES
            if trained != (logprob is not None) or trained != (version is not None):
                raise ValueError(
                    f"task {self.task_id!r}, token {position}: source {source} with log-probability {logprob} "
                    f"and policy version {version}: tokens of policy or intervention have both, others neither"
                )
            if logprob is not None and not math.isfinite(logprob):
                raise ValueError(f"task {self.task_id!r}, token {position}: log-probability {logprob} is not finite")
            if not trained and weight != 1.0:
                raise ValueError(f"task {self.task_id!r}, token {position}: weight {weight} on a {source} token")
        self._check_teacher()
        if (self.reward is None) != (self.failure is not None):
            raise ValueError(
                f"task {self.task_id!r}: a rollout has a reward or a failure: got {self.reward}, {self.failure}"
            )
        for index, turn in enumerate(self.turns):
            if not 0 <= turn.start <= turn.end <= num_tokens:
                raise ValueError(
                    f"task {self.task_id!r}, turn {index}: span [{turn.start}, {turn.end}) is outside "
                    f"the {num_tokens} tokens"
                )

    def _check_length(self, name: str, values: Sequence[Any]) -> None:
        if len(values) != len(self.token_ids):
            raise ValueError(
                f"task {self.task_id!r}: {name} must have one entry per token: "
                f"got {len(values)}, expected {len(self.token_ids)}"
            )

    def _check_teacher(self) -> None:
        if self.teacher_logprobs is None:
            return
        self._check_length("teacher_logprobs", self.teacher_logprobs)
        for position, (source, logprob) in enumerate(zip(self.sources, self.teacher_logprobs, strict=True)):
            if (source in TRAINED_SOURCES) != (logprob is not None):
                raise ValueError(
                    f"task {self.task_id!r}, token {position}: source {source} with a teacher's log-probability of "
                    f"{logprob}: tokens of policy or intervention have one, others none"
                )
            if logprob is not None and not math.isfinite(logprob):
                raise ValueError(
                    f"task {self.task_id!r}, token {position}: a teacher's log-probability {logprob} is not finite"
                )

    @property
    def prompt_length(self) -> int:
        """Tokens before the first that was not given as prompt."""
        for position, source in enumerate(self.sources):
            if source is not TokenSource.PROMPT:
                return position
        return len(self.sources)

    def count(self, source: TokenSource) -> int:
        """Tokens that `source` wrote."""
        return sum(1 for item in self.sources if item is source)

    @property
    def reviews(self) -> list[ReviewRecord]:
        """The reviews of all turns, in order."""
        return [review for turn in self.turns for review in turn.reviews]

    @property
    def accepted_interventions(self) -> int:
        """Turns in which a correction replaced the draft."""
        return sum(
            1
            for turn in self.turns
            if turn.intervention is not None and turn.intervention.outcome is InterventionOutcome.ACCEPTED
        )


class Origin(StrEnum):
    """How a member came into its group."""

    ROOT = "root"
    INTERVENED = "intervened"
    SEMI_ON_POLICY = "semi_on_policy"  # rolled out under reviews, beside unaided members
    TEACHER = "teacher"  # a teacher wrote all of it
    BRANCH = "branch"  # goes on from a turn of another rollout, or was drawn after the pool's rewards were seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A trajectory and how it came to be. `replaced` is the trajectory that it stands in for, kept for the record."""

    trajectory: Trajectory
    origin: Origin = Origin.ROOT
    replaced: Trajectory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecord:
    """Rollouts that began together before one turn of another, why there, and what they brought.

    Example: members 4 to 7 are four continuations of member 1 from its turn 2 on: parent 1, turn 2, rollouts
    (4, 5, 6, 7). They hold the turns 0 and 1 of their parent, token by token.
    """

    parent: int | None  # the member that it began in; None: at the task's start
    turn: int  # that the continuations write first; 0 at the start
    rollouts: Sequence[int]  # places in the group's members, or in its extra where the branch was not kept
    is_kept: bool = True
    rule: str = ""  # who chose it: "warm_up", "controller", "exploration", or a method's own word
    regime: str = ""
    temperature: float = 1.0  # that the continuations were drawn at; their log-probabilities are at the rollout's
    cell: int | None = None  # of the action space
    entropy: float | None = None  # normalised, of the turn that had been written there
    scalars: Sequence[float] = ()  # the ten of the state, see branching/state.py
    hidden: Sequence[float] = ()  # [H] the policy's at the anchor, root mean square 1
    predicted: float | None = None  # gain, before it was run
    gained: float | None = None  # None where no reward came
    chance: float | None = None  # gain to be expected of as many rollouts from the start, at the same cost
    is_first_trial: bool = True  # at its anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCost:
    """Tokens and seconds that a group cost, by who asked for them. Keys: "policy", "validator", "gate", ..."""

    generated_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    scored_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    prompt_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(
        default_factory=dict[str, float]
    )  # awaited: they overlap, sums exceed the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories of one task whose rewards may be compared. Members are listed, never found by a reshape.

    `extra` holds attempts that did not become members (intervened rollouts that failed or came too late): they
    count in cost and statistics and never in advantage or loss.
    """

    group_id: str
    task_id: str
    members: Sequence[Member]  # [G], G may differ between groups
    extra: Sequence[Trajectory] = ()
    cost: RolloutCost = field(default_factory=RolloutCost)
    phase: str = ""  # the part of its method's schedule that collected it; "" where the method has one part
    branches: Sequence[BranchRecord] = ()  # in the order in which they were run
    task_embedding: Sequence[float] = ()  # [E] root mean square 1; () where nobody asked
    decisions: int = 0  # of a learned controller on this task, those to do nothing included
    measured: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])  # for a LearningMethod

    def __post_init__(self) -> None:
        for member in self.members:
            if member.trajectory.task_id != self.task_id:
                raise ValueError(
                    f"group {self.group_id!r}: member of task {member.trajectory.task_id!r}, expected {self.task_id!r}"
                )

    @property
    def rewards(self) -> list[float | None]:
        """[G] rewards, None where the member failed."""
        return [member.trajectory.reward for member in self.members]

    @property
    def rewards_before(self) -> list[float | None]:
        """Rewards of the rollouts that the policy began and wrote alone: before any replacement, none of a branch."""
        return [
            (member.replaced if member.replaced is not None else member.trajectory).reward
            for member in self.members
            if member.origin not in (Origin.SEMI_ON_POLICY, Origin.TEACHER, Origin.BRANCH)
        ]
