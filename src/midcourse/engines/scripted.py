"""An engine that says what it was told to: for tests of everything that asks an engine."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from midcourse.engines.base import Completion, EngineUsage, Feature, SamplingParams, TokenScores
from midcourse.errors import EngineError, PromptTooLongError

CompletionScript = Callable[[Sequence[int], SamplingParams], Sequence[int]]
LogprobScript = Callable[[Sequence[int], Sequence[int]], Sequence[float]]


class Hang:
    """In place of a completion: never answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """One call as it came in. `sampling` is None where it asked for scores."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams | None = None
    continuation_ids: tuple[int, ...] = ()
    temperature: float = 1.0


class ScriptedEngine:
    """Engine whose completions are a list, taken in order of asking, or a function of the request.

    Example: ScriptedEngine([[7, 2], Hang(), EngineError("down")]) answers 7 2, then never, then raises.

    Args:
        completions: token lists in the order of asking, or a function (prompt_ids, sampling) -> token list. In place
            of a list of tokens an exception is raised and a `Hang` never answers. Longer than max_tokens is cut.
        logprobs: function (prompt_ids, continuation_ids) -> [N] nats, or one number for every token. Serves both
            sampled and scored tokens.
        entropy: of every token, nats; None: it gives none.
        context_length: most tokens of prompt and completion together.
        features: what it says that it can give.
    """

    def __init__(
        self,
        completions: Sequence[Sequence[int] | Exception | Hang] | CompletionScript = (),
        *,
        logprobs: LogprobScript | float = -1.0,
        entropy: float | None = 0.5,
        context_length: int = 1_000_000,
        features: Collection[Feature] = (Feature.ENTROPIES, Feature.PROMPT_SCORES, Feature.WEIGHT_SYNC),
    ) -> None:
        self._script = completions if callable(completions) else None
        self._remaining = [] if callable(completions) else list(completions)
        self._logprobs = logprobs
        self._entropy = entropy
        self._context_length = context_length
        self.features = frozenset(features)
        self._version = 0
        self._usage = {"prompt_tokens": 0, "generated_tokens": 0, "scored_tokens": 0}
        self.requests: list[ScriptedRequest] = []
        self.num_participants = 0
        self.closed = False

    @property
    def version(self) -> int:
        """The number given with the last weights."""
        return self._version

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._context_length

    async def open(self) -> None:
        """Do nothing: a script is ready."""

    @contextmanager
    def participant(self) -> Iterator[None]:
        """Count the running coroutine in `num_participants`; nobody is waited for."""
        self.num_participants += 1
        try:
            yield
        finally:
            self.num_participants -= 1

    def step_aside(self) -> None:
        """Do nothing: nobody is waited for."""

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Return the next scripted completion.

        Raises:
            PromptTooLongError: prompt + max_tokens is over the context length.
            EngineError: the script has run out, or the engine is closed. Or whatever the script holds.
        """
        self._admit(len(prompt_ids) + sampling.max_tokens)
        self.requests.append(ScriptedRequest(prompt_ids=tuple(prompt_ids), sampling=sampling))
        answer = self._next(prompt_ids, sampling)
        await asyncio.sleep(0)  # let others run, as a real engine does
        while isinstance(answer, Hang):
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        token_ids = list(answer)[: sampling.max_tokens]
        self._usage["prompt_tokens"] += len(prompt_ids)
        self._usage["generated_tokens"] += len(token_ids)
        stopped = bool(token_ids) and token_ids[-1] in sampling.stop_ids
        return Completion(
            token_ids=token_ids,
            logprobs=self._logprobs_of(prompt_ids, token_ids),
            entropies=self._entropies(len(token_ids)),
            finish_reason="stop" if stopped else "length",
            policy_version=self._version,
        )

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuation_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        want_hidden: bool = False,
    ) -> TokenScores:
        """Return the scripted log-probabilities. There are no hidden states: asking for them is an EngineError."""
        self._admit(len(prompt_ids) + len(continuation_ids))
        if want_hidden:
            raise EngineError("a scripted engine has no hidden states")
        self.requests.append(
            ScriptedRequest(
                prompt_ids=tuple(prompt_ids), continuation_ids=tuple(continuation_ids), temperature=temperature
            )
        )
        await asyncio.sleep(0)
        self._usage["prompt_tokens"] += len(prompt_ids)
        self._usage["scored_tokens"] += len(continuation_ids)
        return TokenScores(
            logprobs=self._logprobs_of(prompt_ids, continuation_ids),
            entropies=self._entropies(len(continuation_ids)),
            policy_version=self._version,
        )

    async def update_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """Take the version; there are no weights."""
        self._version = version

    def drop_cache(self) -> None:
        """Nothing is cached."""

    def usage(self) -> EngineUsage:
        """Return the counters."""
        return EngineUsage(**self._usage)

    async def close(self) -> None:
        """Answer nothing from now on."""
        self.closed = True

    def _admit(self, num_tokens: int) -> None:
        if self.closed:
            raise EngineError("the engine is closed")
        if num_tokens > self._context_length:
            raise PromptTooLongError(f"{num_tokens} tokens: over the context of {self._context_length}")

    def _next(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Sequence[int] | Exception | Hang:
        if self._script is not None:
            return self._script(prompt_ids, sampling)
        if not self._remaining:
            raise EngineError(f"the script has run out at request {len(self.requests)}")
        return self._remaining.pop(0)

    def _entropies(self, count: int) -> list[float]:
        return [] if self._entropy is None else [self._entropy] * count

    def _logprobs_of(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        if callable(self._logprobs):
            return list(self._logprobs(prompt_ids, token_ids))
        return [self._logprobs] * len(token_ids)
