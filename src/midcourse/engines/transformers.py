"""The embedded engine: shares the model with the trainer and runs batches inside the event loop.

A batch is a snapshot of everything pending, taken when every participant has asked and the loop is quiet (see
barrier.py). It runs to its end before another one starts, and blocks the loop meanwhile: requests that arrive from
then on wait for the next snapshot. Rows that end make room for the rest of the same snapshot, never for later
arrivals, because when those come depends on threads. Within a snapshot requests are sorted by their content, so the
order in which they came does not matter either. A whole run is then bit for bit the same on one machine, whatever the
environments' timing; requests of non-participants that arrive from threads are the exception. Scores come before draws:
who goes on behind a text that is being scored finds it computed.

One request's tokens do not depend on its batch: draws are keyed by (seed, position), and who shares the batch moves
the probabilities by float rounding only.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from midcourse.engines.barrier import Barrier, Participant
from midcourse.engines.base import ENGINES, Completion, EngineUsage, Feature, SamplingParams, TokenScores
from midcourse.errors import ConfigError, EngineError, PromptTooLongError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FEATURES = frozenset(Feature) - {Feature.STRUCTURED_OUTPUT}
"""Everything that the model itself gives; it follows no schema."""


@ENGINES.register("transformers")
class TransformersEngineConfig(BaseModel):
    """The embedded engine on a Hugging Face causal language model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_batch_rows: int = Field(default=64, ge=1)
    """Most sequences decoded or scored together."""
    prefix_cache_tokens: int = Field(default=65_536, ge=0, le=1 << 32)
    """Tokens whose keys and values are kept for prompts that share a prefix; 0 keeps none."""
    context_length: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and completion together; none takes the model's own limit."""
    barrier_timeout_seconds: float = Field(default=60.0, gt=0)
    """Longest wait for a participant that has not asked; then the batch starts without it."""

    @property
    def features(self) -> frozenset[Feature]:
        """What the engine can give."""
        return FEATURES

    def remedy(self, feature: Feature) -> str:
        """Return "": no setting adds a feature."""
        return ""

    def for_judge(self) -> "TransformersEngineConfig":
        """Return the same settings: a second model lives in this process too."""
        return self

    def build(self, model: "PreTrainedModel", *, tokenizer: Any = None) -> "TransformersEngine":
        """Return an engine that shares `model`; it needs no tokenizer."""
        return TransformersEngine(model, config=self)


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    key: tuple[Any, ...]  # sorts a snapshot; its first item tells scoring (0) from sampling (1)
    work: Any
    participant: Participant | None
    future: "asyncio.Future[Any]" = field(repr=False)


class TransformersEngine:
    """Engine on a model in this process. See the module's text for what is batched with what.

    Raises:
        ConfigError: a layer of the model neither attends to everything before it nor to a window of it, or the
            context asked for is longer than the model's.
    """

    def __init__(self, model: "PreTrainedModel", *, config: TransformersEngineConfig, pad_token_id: int = 0) -> None:
        from midcourse.engines.decode import BatchRunner

        self.config = config
        self._model = model
        self._version = 0
        self._seconds = 0.0
        self._closed = False
        self._context_length = _context_length(model, config)
        self._runner = BatchRunner(
            model,
            max_rows=config.max_batch_rows,
            cache_tokens=config.prefix_cache_tokens,
            context_length=self._context_length,
            pad_token_id=pad_token_id,
        )
        self._barrier = Barrier(timeout_seconds=config.barrier_timeout_seconds)
        self._pending: list[_Request] = []
        self._pump: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Counts weight updates."""
        return self._version

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._context_length

    @property
    def features(self) -> frozenset[Feature]:
        """What this engine can give."""
        return FEATURES

    async def open(self) -> None:
        """Do nothing: the model is loaded."""

    def participant(self) -> AbstractContextManager[None]:
        """Mark the running coroutine, and tasks it starts, as one that will ask again; see Engine.

        A participant that holds others is not waited for until they have ended.
        """
        return self._barrier.participant()

    def step_aside(self) -> None:
        """Let batches go on without the running coroutine until it asks again; see Engine."""
        self._barrier.step_aside()

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Draw one continuation.

        Log-probabilities and entropies are those at the sampling temperature, or at the one that is to be reported,
        before top-p and top-k; at temperature 0 the most likely token is taken and they are those at temperature 1.
        A JSON schema is not followed.

        Raises:
            PromptTooLongError: prompt + max_tokens is over the context length.
            EngineError: an empty prompt, an id outside the vocabulary, a failed batch, or a closed engine.
        """
        from midcourse.engines.decode import SampleWork

        self._check("prompt", prompt_ids)
        self._check_ids("stop id", sampling.stop_ids)
        self._check_length(len(prompt_ids), sampling.max_tokens, "max_tokens")
        draws = (sampling.seed, sampling.first_draw, sampling.max_tokens)
        settings = (sampling.temperature, sampling.report_temperature or 0.0, sampling.top_p, sampling.top_k)
        key = (1, tuple(prompt_ids), *draws, *settings, tuple(sampling.stop_ids))
        return await self._ask(key, SampleWork(prompt_ids=tuple(prompt_ids), sampling=sampling))

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuation_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        want_hidden: bool = False,
    ) -> TokenScores:
        """Return log-probabilities of `continuation_ids` after `prompt_ids`.

        Args:
            prompt_ids: [P] at least one token.
            continuation_ids: [N] at least one token.
            temperature: 0 scores at temperature 1, as `sample` does.
            want_hidden: also return the [N, H] float32 states that predict each token, without gradient.

        Raises:
            PromptTooLongError: prompt + continuation is over the context length.
            EngineError: an empty prompt or continuation, an id outside the vocabulary, a negative temperature,
                a failed batch, or a closed engine.
        """
        from midcourse.engines.decode import ScoreWork

        self._check("prompt", prompt_ids)
        self._check("continuation", continuation_ids)
        if temperature < 0:
            raise EngineError(f"temperature must be >= 0: got {temperature}")
        self._check_length(len(prompt_ids), len(continuation_ids), "continuation")
        prompt, continuation = tuple(prompt_ids), tuple(continuation_ids)
        work = ScoreWork(
            prompt_ids=prompt, continuation_ids=continuation, temperature=temperature, want_hidden=want_hidden
        )
        return await self._ask((0, prompt, continuation, temperature, want_hidden), work)

    async def update_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """Take a state dict in place (None: the shared weights have changed already); drop every cached prefix.

        Raises:
            EngineError: the state dict does not fit the model.
        """
        if weights is not None:
            try:
                self._model.load_state_dict(weights)
            except RuntimeError as error:
                raise EngineError(f"weights do not fit the model: {error}") from error
        self._version = version
        self.drop_cache()

    def drop_cache(self) -> None:
        """Forget every cached prefix: what follows is computed as in a fresh engine."""
        self._runner.drop_cache()

    def usage(self) -> EngineUsage:
        """Return the counters since the engine was built. Seconds are those spent in batches."""
        counters = self._runner.counters
        return EngineUsage(
            prompt_tokens=counters.prompt_tokens,
            prompt_tokens_reused=counters.prompt_tokens_reused,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            scored_tokens=counters.scored_tokens,
            seconds=self._seconds,
        )

    async def close(self) -> None:
        """Fail what is pending with EngineError and free buffer and cache. The model stays the caller's."""
        self._closed = True
        for request in self._pending:
            if not request.future.done():
                request.future.set_exception(EngineError("the engine was closed while the request was pending"))
        self._pending.clear()
        if self._pump is not None:
            self._pump.cancel()
        self._runner.release()

    def _check(self, name: str, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise EngineError(f"the {name} must have at least one token: got none")
        self._check_ids(f"{name} token", token_ids)

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        size = self._runner.vocabulary_size
        for token in token_ids:
            if not 0 <= token < size:
                raise EngineError(f"{name} {token} is outside the vocabulary of {size} tokens")

    def _check_length(self, num_prompt: int, num_more: int, name: str) -> None:
        if num_prompt + num_more > self._context_length:
            raise PromptTooLongError(
                f"prompt of {num_prompt} tokens + {name} of {num_more} = {num_prompt + num_more}: "
                f"over the context of {self._context_length}"
            )

    async def _ask(self, key: tuple[Any, ...], work: Any) -> Any:
        if self._closed:
            raise EngineError("the engine is closed")
        loop = asyncio.get_running_loop()
        request = _Request(key=key, work=work, participant=self._barrier.current(), future=loop.create_future())
        self._pending.append(request)
        self._barrier.notify()
        # A pump of an event loop that has ended is done as well: its tasks were cancelled with it.
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return await request.future

    async def _run(self) -> None:
        """Run snapshots until nothing is pending."""
        while self._drop_abandoned():
            await self._barrier.wait(self._pending)
            self._drop_abandoned()
            snapshot = sorted(self._pending, key=lambda request: request.key)
            self._pending.clear()
            for kind in (0, 1):
                requests = [request for request in snapshot if request.key[0] == kind]
                if requests:
                    self._run_batch(requests, is_sampling=kind == 1)

    def _drop_abandoned(self) -> bool:
        self._pending[:] = [request for request in self._pending if not request.future.done()]
        return bool(self._pending)

    def _run_batch(self, requests: Sequence[_Request], *, is_sampling: bool) -> None:
        started = time.perf_counter()
        run = self._runner.sample if is_sampling else self._runner.score
        try:
            results = run([request.work for request in requests], version=self._version)
        except Exception as error:  # whatever a model may raise belongs to who asked, not to the pump
            # Keys of a batch that failed half way may be anything.
            self._runner.release()
            failure = error if isinstance(error, EngineError) else EngineError(f"batch failed: {error!r}")
            failure.__cause__ = error if failure is not error else None
            for request in requests:
                if not request.future.done():
                    request.future.set_exception(failure)
        else:
            for request, result in zip(requests, results, strict=True):
                if not request.future.done():
                    request.future.set_result(result)
        finally:
            self._seconds += time.perf_counter() - started


def _context_length(model: "PreTrainedModel", config: TransformersEngineConfig) -> int:
    model_config = model.config.get_text_config().to_dict()
    limit = model_config.get("max_position_embeddings") or model_config.get("n_positions")
    length = config.context_length or limit
    if length is None:
        raise ConfigError("the model's config names no longest context: set context_length")
    if limit is not None and length > limit:
        raise ConfigError(f"context_length {length} is over the model's {limit}")
    return length
