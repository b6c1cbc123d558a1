"""Who asked the engine for how much: one ledger a group, one view of the engine a purpose."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from midcourse.engines.base import Completion, Engine, EngineUsage, Feature, SamplingParams, TextEngine, TokenScores
from midcourse.types import RolloutCost


class CostLedger:
    """Counts of one group, by purpose ("policy", "validator", "gate", ...)."""

    def __init__(self) -> None:
        self.generated_tokens: Counter[str] = Counter()
        self.scored_tokens: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, purpose: str) -> Iterator[None]:
        """Add the time that is spent inside, also where it ends in an error."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.monotonic() - started

    def cost(self) -> RolloutCost:
        """Return the counts so far."""
        return RolloutCost(
            generated_tokens=dict(self.generated_tokens),
            scored_tokens=dict(self.scored_tokens),
            prompt_tokens=dict(self.prompt_tokens),
            seconds=dict(self.seconds),
        )


class MeteredEngine:
    """An engine seen for one purpose: the same answers, counted."""

    def __init__(self, engine: Engine, *, purpose: str, ledger: CostLedger) -> None:
        self._engine = engine
        self._purpose = purpose
        self._ledger = ledger

    @property
    def version(self) -> int:
        """Counts weight updates."""
        return self._engine.version

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._engine.context_length

    @property
    def features(self) -> frozenset[Feature]:
        """What the engine behind this view can give."""
        return self._engine.features

    async def open(self) -> None:
        """Do nothing: the engine belongs to whoever opened it."""

    def participant(self) -> AbstractContextManager[None]:
        """See `Engine.participant`."""
        return self._engine.participant()

    def step_aside(self) -> None:
        """See `Engine.step_aside`."""
        self._engine.step_aside()

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """See `Engine.sample`."""
        with self._ledger.timed(self._purpose):
            completion = await self._engine.sample(prompt_ids, sampling)
        self._ledger.prompt_tokens[self._purpose] += len(prompt_ids)
        self._ledger.generated_tokens[self._purpose] += len(completion.token_ids)
        return completion

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuation_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        want_hidden: bool = False,
    ) -> TokenScores:
        """See `Engine.score`."""
        with self._ledger.timed(self._purpose):
            scores = await self._engine.score(
                prompt_ids, continuation_ids, temperature=temperature, want_hidden=want_hidden
            )
        self._ledger.prompt_tokens[self._purpose] += len(prompt_ids)
        self._ledger.scored_tokens[self._purpose] += len(continuation_ids)
        return scores

    async def update_weights(self, weights: Any, version: int) -> None:
        """See `Engine.update_weights`."""
        await self._engine.update_weights(weights, version)

    def usage(self) -> EngineUsage:
        """Return the counters of the engine behind this view, all purposes together."""
        return self._engine.usage()

    async def close(self) -> None:
        """Do nothing: the engine belongs to whoever opened it."""


class MeteredTextEngine:
    """A text engine seen for one purpose. It tells no tokens, so seconds alone are counted."""

    def __init__(self, engine: TextEngine, *, purpose: str, ledger: CostLedger) -> None:
        self._engine = engine
        self._purpose = purpose
        self._ledger = ledger

    async def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        json_schema: Mapping[str, Any] | None = None,
    ) -> str:
        """See `TextEngine.complete`."""
        with self._ledger.timed(self._purpose):
            return await self._engine.complete(
                messages, max_tokens=max_tokens, temperature=temperature, seed=seed, json_schema=json_schema
            )

    async def close(self) -> None:
        """Do nothing: the engine belongs to whoever opened it."""
