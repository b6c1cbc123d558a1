"""A teacher beside the policy, in its two ways: it scores what the policy wrote, or writes whole responses itself."""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from midcourse.engines.base import Engine
from midcourse.errors import ConfigError, EngineError
from midcourse.interventions.judge import JudgeFailed, Passage, WriterConfig
from midcourse.interventions.locate import chunk_text
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.interventions.model_judges import cast_writer
from midcourse.interventions.speaker import RolloutReader, SpeakerConfig, speaker_of
from midcourse.methods.base import RolloutTools, Speaker
from midcourse.rollout.edits import extend
from midcourse.rollout.episode import OpenTurn, Step, StepDecision, WrittenTurn
from midcourse.types import TokenSource, Trajectory

logger = logging.getLogger(__name__)


class ScorerConfig(SpeakerConfig):
    """Whose log-probabilities of the policy's tokens are taken."""

    played_by: Literal["frozen", "self", "model"] = "frozen"
    """The policy as it was at the start, the policy itself, or another model of the same vocabulary."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Longest wait for the scores of one turn; then its rollout does not train. Ours."""

    @model_validator(mode="after")
    def _knows_more_than_the_policy(self) -> Self:
        if self.played_by == "self" and not self.sees_evidence:
            raise ValueError(
                "the policy itself without evidence is no teacher: expected is_privileged other than false"
            )
        return self

    def check(self, speaker: Speaker) -> None:
        """Raise ConfigError unless the model can say how likely the policy's tokens are: it must know them."""
        if not speaker.shares_tokens:
            raise ConfigError(
                f"teacher.path = {self.path!r}: its vocabulary is not the policy's, so it cannot score the policy's "
                "tokens; expected a model of the same vocabulary"
            )


class DemonstratorConfig(WriterConfig):
    """Who writes the responses that are imitated."""

    played_by: Literal["frozen", "self", "model", "scripted"] = "frozen"
    """The policy as it was at the start, the policy itself, another model, or the environment's judge script."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Longest wait for one turn; then the rollout has failed. Ours."""


class ScoringTeacher:
    """A hook that lets every draft stand and asks how likely the teacher finds it, at the rollout's temperature.

    It asks while rollouts go on, for each turn once it is drafted. What was drafted in one batch is then scored in one,
    whatever the environments' timing, and a run stays the same bit for bit. A teacher that does not answer, in time and
    with numbers, is not asked again for that rollout, which goes on without it.

    Raises:
        ConfigError: this run has no such model, or it has another vocabulary.
    """

    def __init__(self, tools: RolloutTools, *, config: ScorerConfig, ledger: CostLedger) -> None:
        speaker = speaker_of(tools, config)
        self._reader = RolloutReader(speaker, config, environment=tools.environment, policy_chat=tools.chat)
        self._engine = MeteredEngine(speaker.engine, purpose="teacher", ledger=ledger)
        self._temperature = tools.rollout.temperature
        self._timeout_seconds = config.timeout_seconds
        self._scores: defaultdict[int, list[Sequence[float]]] = defaultdict(list)  # attempt -> turns
        self._given_up: set[int] = set()  # attempts

    async def __call__(self, step: Step) -> StepDecision:
        """Keep the draft, and its scores for `attach`."""
        attempt = step.key.attempt
        if attempt not in self._given_up:
            try:
                self._scores[attempt].append(await self._score(step))
            except (EngineError, TimeoutError) as error:
                self._given_up.add(attempt)
                logger.warning("task %s: the teacher gave no scores: %s", step.task.task_id, error or "not in time")
        return StepDecision()

    def attach(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Return the rollouts of attempts 0, 1, ... with the teacher's scores; without, where a turn has none."""
        return [self._scored(trajectory, attempt) for attempt, trajectory in enumerate(trajectories)]

    async def _score(self, step: Step) -> Sequence[float]:
        prompt_length = step.turns[0].start if step.turns else len(step.history_ids)
        prompt_ids = self._reader.read(step.task, step.history_ids, prompt_length=prompt_length)
        async with asyncio.timeout(self._timeout_seconds):
            scores = await self._engine.score(prompt_ids, step.draft_ids, temperature=self._temperature)
        return _checked(scores.logprobs, num_tokens=len(step.draft_ids))

    def _scored(self, trajectory: Trajectory, attempt: int) -> Trajectory:
        scores = self._scores[attempt]
        if len(scores) != len(trajectory.turns) or not scores:
            return trajectory
        logprobs: list[float | None] = [None] * len(trajectory.token_ids)
        for turn, values in zip(trajectory.turns, scores, strict=True):
            logprobs[turn.start : turn.end] = values
        return replace(trajectory, teacher_logprobs=tuple(logprobs))


class Demonstrator:
    """Writes whole turns in the policy's place, by whoever the settings name.

    Its tokens are those of an intervention from the first to the last, with the policy's own log-probability under the
    rollout prompt. A teacher that does not answer, or has nothing to say, fails the rollout.

    Args:
        tools: chat format, limits, and who there is.
        config: who writes.
        ledger: counts what the writer costs as "intervention", the policy's scores as "intervention_score".

    Raises:
        ConfigError: this run has no such model or script.
    """

    def __init__(self, tools: RolloutTools, *, config: DemonstratorConfig, ledger: CostLedger) -> None:
        self._writer = cast_writer(tools, config=config, ledger=ledger)
        self._scorer: Engine = MeteredEngine(tools.engine, purpose="intervention_score", ledger=ledger)
        self._chat = tools.chat
        self._rollout = tools.rollout

    async def __call__(self, turn: OpenTurn) -> WrittenTurn:
        """Return the turn, of at most `max_turn_tokens` tokens. Raises EngineError."""
        prefix = turn.prefix
        # A correction of nothing at the place where the turn begins.
        passage = Passage(
            task=turn.task,
            prefix=prefix,
            turn_start=turn.start,
            chunk_ids=(),
            is_ended=False,
            text=chunk_text(self._chat.decode, prefix.token_ids[turn.start :], ()),
            key=turn.key,
            turn_index=turn.turn_index,
            review_index=0,
        )
        try:
            written = await self._writer.correct(passage, num_kept=0, max_tokens=self._rollout.max_turn_tokens)
        except JudgeFailed as error:
            raise EngineError(f"the teacher did not write: {error}") from error
        if written is None or not written.token_ids:
            raise EngineError("the teacher had nothing to write")
        scores = await self._scorer.score(prefix.token_ids, written.token_ids, temperature=self._rollout.temperature)
        extended = extend(
            prefix,
            written.token_ids,
            TokenSource.INTERVENTION,
            behavior_logprobs=_checked(scores.logprobs, num_tokens=len(written.token_ids)),
            policy_version=scores.policy_version,
        )
        return WrittenTurn(prefix=extended, is_ended=written.is_ended)


def _checked(logprobs: Sequence[float], *, num_tokens: int) -> Sequence[float]:
    if len(logprobs) != num_tokens or not all(math.isfinite(logprob) for logprob in logprobs):
        num_finite = sum(map(math.isfinite, logprobs))
        raise EngineError(f"{num_tokens} tokens need a finite log-probability each: got {num_finite} finite ones")
    return tuple(logprobs)
