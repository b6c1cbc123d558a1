"""The judge-intervention policy of MInTRL: it reviews a chunk, and where it revises, writes how the response goes on.

Played by a model that writes tokens (the policy as it was at the start, the policy itself, another model), by a server
that gives text, or by a script of the environment. A judge that cannot be read answers None; one that does not answer
raises JudgeFailed. What either means for the chunk is decided in `review.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from pydantic import Field

from midcourse.environments.base import Environment, Task
from midcourse.errors import ConfigError, MidcourseError
from midcourse.interventions.locate import ChunkText
from midcourse.interventions.speaker import SpeakerConfig, SpeakerSource
from midcourse.rollout.chat import ChatFormat
from midcourse.rollout.edits import Prefix

if TYPE_CHECKING:
    from midcourse.rollout.episode import RolloutKey


class JudgeFailed(MidcourseError):
    """The judge's engine is down, did not answer in time, or cannot hold what it was to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A chunk that the policy has just written, and what stands before it."""

    task: Task
    prefix: Prefix  # all tokens before the chunk; the rollout prompt of its first token
    turn_start: int  # where the turn that is being written begins in the prefix
    chunk_ids: Sequence[int]  # [N] without a stop token
    is_ended: bool  # the policy has ended its turn behind the chunk
    text: ChunkText  # of the turn up to the chunk's end
    key: "RolloutKey"
    turn_index: int
    review_index: int  # reviews of this rollout before this one

    @property
    def turn_ids(self) -> Sequence[int]:
        """The turn's tokens before the chunk."""
        return self.prefix.token_ids[self.turn_start :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a chunk may stand, else where it first goes wrong: by a quote, or exactly by a character.

    `quotes` are readings of one quote, the likeliest first: what a model wrote as JSON may be meant in two ways.
    """

    is_kept: bool
    quotes: Sequence[str] = ()
    character: int | None = None  # of the chunk's own text
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Tokens of the policy's vocabulary that follow the prefix that was kept; with the stop token where it ends."""

    token_ids: Sequence[int]
    is_ended: bool = False
    mean_logprob: float | None = None  # nats a token that the judge gives to its own words; None where it is not known


class Writer(Protocol):
    """Writes on behind what stands: corrections, or whole responses where nothing stands yet."""

    async def correct(self, passage: Passage, *, num_kept: int, max_tokens: int) -> Correction | None:
        """Return how the turn goes on behind the first `num_kept` tokens of the chunk, in at most `max_tokens` tokens.

        The rejected text is not shown to whoever writes it. None where nothing came. Raises JudgeFailed.
        """
        ...


class Judge(Writer, Protocol):
    """Reviews chunks and writes corrections."""

    async def review(self, passage: Passage) -> Verdict | None:
        """Return the verdict on the chunk; None where it cannot be read. Raises JudgeFailed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What a script lets follow. `is_ended`: the response is complete with it."""

    text: str
    is_ended: bool = False


class JudgeScript(Protocol):
    """A judge without a model: an environment's oracle. Synchronous, deterministic, fast."""

    def review(self, task: Task, *, accepted: str, chunk: str, is_ended: bool) -> int | None:
        """Return the character of `chunk` at which it first goes wrong; None where it may stand.

        `accepted` is the response before the chunk; either text may end within a word. `is_ended`: the policy has
        ended its response behind the chunk.
        """
        ...

    def correct(self, task: Task, *, accepted: str) -> Continuation | None:
        """Return how a right response goes on behind `accepted`; it is cut to the longest correction allowed."""
        ...


@runtime_checkable
class OffersJudgeScript(Protocol):
    """An environment that has a judge of its own."""

    def judge_script(self) -> JudgeScript:
        """Return the judge."""
        ...


class ScriptedJudge:
    """The environment's script as a judge. Its text is encoded once, where it is spliced in."""

    def __init__(self, script: JudgeScript, *, chat: ChatFormat) -> None:
        self._script = script
        self._chat = chat

    async def review(self, passage: Passage) -> Verdict:
        """Return the script's verdict."""
        text = passage.text
        character = self._script.review(
            passage.task, accepted=text.accepted, chunk=text.shown, is_ended=passage.is_ended
        )
        return Verdict(is_kept=character is None, character=character)

    async def correct(self, passage: Passage, *, num_kept: int, max_tokens: int) -> Correction | None:
        """Return the script's continuation, cut to `max_tokens`."""
        accepted = self._chat.decode([*passage.turn_ids, *passage.chunk_ids[:num_kept]])
        found = self._script.correct(passage.task, accepted=accepted)
        if found is None:
            return None
        correction = encoded_correction(self._chat, found.text, is_ended=found.is_ended, max_tokens=max_tokens)
        # A script writes what it writes with probability 1.
        return None if correction is None else replace(correction, mean_logprob=0.0)


def encoded_correction(chat: ChatFormat, text: str, *, is_ended: bool, max_tokens: int) -> Correction | None:
    """Return text as a correction of at most `max_tokens` tokens, stop token included.

    It ends the turn only if the stop token still fits behind all of it. None where nothing is left, or where the
    policy's vocabulary does not hold the text.
    """
    token_ids = chat.encode(text)
    if chat.unknown_id in token_ids:
        return None
    if is_ended and len(token_ids) < max_tokens:
        return Correction(token_ids=(*token_ids, chat.stop_ids[0]), is_ended=True)
    return Correction(token_ids=tuple(token_ids[:max_tokens])) if token_ids else None


def judge_script_of(environment: Environment) -> JudgeScript:
    """Return the environment's judge. Raises ConfigError if it has none."""
    if not isinstance(environment, OffersJudgeScript):
        raise ConfigError(f"environment {environment.name!r} offers no scripted judge")
    return environment.judge_script()


class WriterConfig(SpeakerConfig):
    """Who writes on behind a rollout, and how it draws."""

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Sampling temperature; 0 takes the most likely token. Paper: 1.0."""


class JudgeConfig(WriterConfig):
    """Who judges and corrects, and how it is asked."""

    played_by: SpeakerSource = "frozen"
    """The policy as it was at the start, the policy itself, another model, the server `judge`, the environment."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Longest wait for a verdict or a correction; then the chunk is kept. Ours."""
    domain: Literal["auto", "mathematics", "code", "general"] = "auto"
    """What the prompt for reviews looks for; auto goes by the environment's name."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of a verdict. Ours."""

    @property
    def engine_roles(self) -> Sequence[str]:
        """The roles that a text engine of the run must play."""
        return ("judge",) if self.played_by == "engine" else ()
