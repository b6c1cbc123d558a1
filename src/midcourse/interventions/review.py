"""Semi-on-policy writing (papers: "MInTRL", Algorithm 2.1): the policy writes, the judge reviews, control returns.

The policy writes a chunk; the judge keeps it, or names the earliest place where it is wrong. There the rollout is cut,
the intervention policy writes a few tokens, and the policy goes on. All of it is edits of one token sequence: nothing
is encoded again, and every request's prompt is a prefix that the engine has seen.

Chunks draw as one long request would (`SamplingParams.first_draw`), so a rollout whose chunks are all kept is the one
that the policy would have written unwatched. After a revision draws begin anew: those of the rejected tokens were seen
by the judge.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from midcourse.engines.base import Completion, Engine, SamplingParams
from midcourse.errors import EngineError
from midcourse.interventions.judge import Correction, Judge, JudgeFailed, Passage, Verdict
from midcourse.interventions.locate import chunk_text, locate_character, locate_quote
from midcourse.methods.base import RolloutTools
from midcourse.rollout.edits import Prefix, cut, extend
from midcourse.rollout.episode import OpenTurn, WrittenTurn, sample_checked
from midcourse.types import ReviewOutcome, ReviewRecord, TokenSource


class ReviewConfig(BaseModel):
    """How often a rollout is reviewed, and how much a correction may write."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    chunk_tokens: int = Field(default=512, ge=1)
    """Tokens that the policy writes between reviews. Paper: 512 for mathematics, 128 for code."""
    max_reviews: int = Field(default=4, ge=0)
    """Most reviews of one rollout, those that keep included; what follows the last is not reviewed. Paper: 4."""
    max_intervention_tokens: int = Field(default=64, ge=1)
    """Most tokens of one correction. Paper: 64."""


class ChunkWriter:
    """Writes turns in chunks; with a judge, under review.

    Without one it writes what the policy would write in one request. Rollouts that are written side by side then ask
    for chunks of one length, and an engine that decodes in batches lets nobody wait for a longer request.

    Args:
        tools: chat format, sampling and limits.
        config: lengths.
        engine: the policy's, for chunks.
        scorer: the policy's, for the log-probabilities that it gives to corrections under the rollout prompt.
        judge: None reviews nothing.
    """

    def __init__(
        self, tools: RolloutTools, *, config: ReviewConfig, engine: Engine, scorer: Engine, judge: Judge | None = None
    ) -> None:
        self._chat = tools.chat
        self._rollout = tools.rollout
        self._config = config
        self._engine = engine
        self._scorer = scorer
        self._judge = judge

    async def __call__(self, turn: OpenTurn) -> WrittenTurn:
        """Return the turn, of at most `max_turn_tokens` tokens behind what it began with."""
        prefix, is_ended = turn.prefix, False
        limit = len(prefix.token_ids) + self._rollout.max_turn_tokens
        reviews: list[ReviewRecord] = []
        correction: Correction | None = None
        while not is_ended and len(prefix.token_ids) < limit:
            prefix, completion = await self._go_on(turn, prefix, correction, reviews, limit)
            if completion is None:  # the correction ended the turn, or filled it
                is_ended = correction is not None and correction.is_ended
                break
            written = extend(
                prefix,
                completion.token_ids,
                TokenSource.POLICY,
                behavior_logprobs=completion.logprobs,
                policy_version=completion.policy_version,
            )
            is_ended, correction = completion.finish_reason == "stop", None
            passage = self._passage(turn, prefix, completion, reviews)
            if passage is not None:
                record, correction = await self._review(passage, end=len(written.token_ids), limit=limit)
                reviews.append(record)
            if correction is not None and reviews[-1].cut is not None:
                prefix, is_ended = cut(written, reviews[-1].cut), False
            else:
                prefix = written
        return WrittenTurn(prefix=prefix, is_ended=is_ended, reviews=tuple(reviews))

    async def _go_on(
        self,
        turn: OpenTurn,
        prefix: Prefix,
        correction: Correction | None,
        reviews: Sequence[ReviewRecord],
        limit: int,
    ) -> tuple[Prefix, Completion | None]:
        """Return the prefix with the correction behind it, and the policy's next chunk; None: there is no place for it.

        The correction is scored while the policy writes on, so that nobody waits for the score alone. An engine that
        keeps what it computed, and scores first, computes the correction once.
        """
        correction_ids = () if correction is None else tuple(correction.token_ids)
        prompt_ids = (*prefix.token_ids, *correction_ids)
        room = min(self._config.chunk_tokens, limit - len(prompt_ids))
        num_revisions = sum(review.outcome is ReviewOutcome.REVISED for review in reviews)
        sampling = None
        if room > 0 and not (correction is not None and correction.is_ended):
            sampling = SamplingParams(
                max_tokens=room,
                temperature=self._rollout.temperature,
                top_p=self._rollout.top_p,
                top_k=self._rollout.top_k,
                stop_ids=tuple(self._chat.stop_ids),
                seed=turn.key.turn_seed(turn.turn_index, f"policy:{num_revisions}" if num_revisions else "policy"),
                first_draw=len(prompt_ids) - len(turn.prefix.token_ids),
            )
        if not correction_ids:
            assert sampling is not None
            return prefix, await sample_checked(self._engine, prompt_ids, sampling)
        scoring = self._scorer.score(prefix.token_ids, correction_ids, temperature=self._rollout.temperature)
        if sampling is None:
            scores, completion = await scoring, None
        else:
            scores, completion = await asyncio.gather(scoring, sample_checked(self._engine, prompt_ids, sampling))
        if not all(math.isfinite(logprob) for logprob in scores.logprobs):
            raise EngineError("a correction's log-probabilities must be finite")
        scored = extend(
            prefix,
            correction_ids,
            TokenSource.INTERVENTION,
            behavior_logprobs=scores.logprobs,
            policy_version=scores.policy_version,
        )
        return scored, completion

    def _passage(
        self, turn: OpenTurn, prefix: Prefix, completion: Completion, reviews: Sequence[ReviewRecord]
    ) -> Passage | None:
        """Return what the judge is to see; None where it is not asked."""
        review_index = sum(len(earlier.reviews) for earlier in prefix.turns) + len(reviews)
        if self._judge is None or review_index >= self._config.max_reviews:
            return None
        is_ended = completion.finish_reason == "stop"
        chunk_ids = completion.token_ids[:-1] if is_ended else completion.token_ids
        if not chunk_ids:
            return None
        turn_ids = prefix.token_ids[turn.start :]
        return Passage(
            task=turn.task,
            prefix=prefix,
            turn_start=turn.start,
            chunk_ids=tuple(chunk_ids),
            is_ended=is_ended,
            text=chunk_text(self._chat.decode, turn_ids, chunk_ids),
            key=turn.key,
            turn_index=turn.turn_index,
            review_index=review_index,
        )

    async def _review(self, passage: Passage, *, end: int, limit: int) -> tuple[ReviewRecord, Correction | None]:
        """Return what became of the chunk, and what is to stand from the cut on; None where all of it stays."""
        assert self._judge is not None
        start = len(passage.prefix.token_ids)
        kept = ReviewRecord(outcome=ReviewOutcome.KEPT, start=start, end=end)
        try:
            verdict = await self._judge.review(passage)
            if verdict is None:
                return replace(kept, outcome=ReviewOutcome.UNREADABLE), None
            kept = replace(kept, reason=verdict.reason, quote=verdict.quotes[0] if verdict.quotes else "")
            if verdict.is_kept:
                return kept, None
            num_kept = self._locate(passage, verdict)
            if num_kept is None:
                return replace(kept, outcome=ReviewOutcome.NOT_FOUND), None
            room = min(self._config.max_intervention_tokens, limit - start - num_kept)
            correction = await self._judge.correct(passage, num_kept=num_kept, max_tokens=room)
        except JudgeFailed as error:
            return replace(kept, outcome=ReviewOutcome.JUDGE_FAILED, reason=str(error)), None
        if correction is None or not correction.token_ids:
            return replace(kept, outcome=ReviewOutcome.NO_CORRECTION), None
        text = self._chat.decode(correction.token_ids)
        revised = replace(
            kept,
            outcome=ReviewOutcome.REVISED,
            cut=start + num_kept,
            rejected_ids=tuple(passage.chunk_ids[num_kept:]),
            correction_tokens=len(correction.token_ids),
            ends_turn=correction.is_ended,
            holds_answer=any(value in text for value in passage.task.evidence.private_values),
            judge_logprob=correction.mean_logprob,
        )
        return revised, correction

    def _locate(self, passage: Passage, verdict: Verdict) -> int | None:
        """Return how many tokens of the chunk stand before the place that the verdict names; None where it has none."""
        decode, turn_ids, chunk_ids = self._chat.decode, passage.turn_ids, passage.chunk_ids
        if verdict.character is not None:
            return locate_character(decode, turn_ids, chunk_ids, verdict.character)
        found = (locate_quote(decode, turn_ids, chunk_ids, quote) for quote in verdict.quotes)
        return next((place for place in found if place is not None), None)
