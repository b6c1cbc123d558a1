"""Who writes tokens. Stateless by token prompt: fork, cut and splice are list operations, prefix reuse is inside."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from midcourse.registry import Registry


class Feature(StrEnum):
    """What an engine can give besides drawn tokens with their log-probabilities, which every engine gives."""

    ENTROPIES = "entropies"  # of the distributions that tokens were drawn from
    HIDDEN_STATES = "hidden states"
    PROMPT_SCORES = "prompt scores"  # log-probabilities of tokens that somebody else wrote
    STRUCTURED_OUTPUT = "structured output"  # a completion that follows a JSON schema
    WEIGHT_SYNC = "weight sync"  # the policy's new weights, without a new start


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to draw a completion.

    Raises:
        ValueError: a value outside its range, named.
    """

    max_tokens: int
    temperature: float = 1.0  # > 0, or 0 for the most likely token
    top_p: float = 1.0  # in (0, 1]
    top_k: int = 0  # 0: off
    stop_ids: Sequence[int] = ()  # the stop token is the completion's last token
    seed: int = 0  # draws of token i depend on (seed, first_draw + i) alone
    first_draw: int = 0  # tokens of the same text that were drawn by earlier requests: chunks then draw as one request
    report_temperature: float | None = None  # > 0, of the log-probabilities and entropies; None: as drawn
    json_schema: Mapping[str, Any] | None = None  # that the text follows; log-probabilities are then of the masked form

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1: got {self.max_tokens}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0: got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1]: got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 is off): got {self.top_k}")
        if self.first_draw < 0:
            raise ValueError(f"first_draw must be >= 0: got {self.first_draw}")
        if self.report_temperature is not None and self.report_temperature <= 0:
            raise ValueError(f"report_temperature must be positive: got {self.report_temperature}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A sampled continuation; the stop token, where one came, is its last token."""

    token_ids: Sequence[int]  # [N]
    logprobs: Sequence[float]  # [N] nats at the reported temperature, before top-p and top-k
    entropies: Sequence[float]  # [N] nats, of the same distribution; () where the engine gives none
    finish_reason: Literal["stop", "length"]
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Log-probabilities of given tokens."""

    logprobs: Sequence[float]  # [N] nats at the asked temperature
    entropies: Sequence[float]  # [N] nats; () where the engine gives none
    policy_version: int
    hidden: Any = None  # [N, H] float32 tensor, last layer before the head, at the position that predicts each token


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUsage:
    """Counters since the engine started."""

    prompt_tokens: int = 0
    prompt_tokens_reused: int = 0  # of them, those that were not computed again
    computed_tokens: int = 0  # run through the model: prompts, continuations, drawn tokens, each as often as it was
    generated_tokens: int = 0
    scored_tokens: int = 0
    seconds: float = 0.0
    sync_seconds: float = 0.0  # spent on bringing weights to where they are used
    syncs: int = 0


class Engine(Protocol):
    """Token ids in, token ids out, many requests in flight."""

    @property
    def features(self) -> frozenset[Feature]:
        """What this engine can give."""
        ...

    @property
    def version(self) -> int:
        """Counts weight updates."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    async def open(self) -> None:
        """Make ready to answer: start or look up what must run. Called once, before anything is asked.

        Raises:
            EngineError: what must run does not, or cannot do what is needed.
        """
        ...

    def participant(self) -> AbstractContextManager[None]:
        """Mark the running coroutine as one that will ask again.

        An engine that shares the process waits until every participant has asked before it runs a batch, so that
        who shares a batch, and with it every last bit, does not depend on how long environments took. A coroutine
        that awaits others which are participants must not be one itself.
        """
        ...

    def step_aside(self) -> None:
        """Let batches go on without the running coroutine until it asks again: it waits for another machine now.

        Who shares a batch then depends on when that machine answers.
        """
        ...

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Draw one continuation.

        Raises:
            PromptTooLongError: prompt + max_tokens is over the context length.
            EngineError: no answer, or one that cannot be used.
        """
        ...

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuation_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        want_hidden: bool = False,
    ) -> TokenScores:
        """Return log-probabilities of `continuation_ids` after `prompt_ids`. Raises as `sample`."""
        ...

    async def update_weights(self, weights: Any, version: int) -> None:
        """Take new weights (None: those of the shared model, which have changed if `version` has).

        No prefix that was computed with other weights is used again.
        """
        ...

    def usage(self) -> EngineUsage:
        """Return the counters."""
        ...

    async def close(self) -> None:
        """Free what the engine holds."""
        ...


class TextEngine(Protocol):
    """A model that is only asked for text: roles and simulators on a server."""

    async def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        json_schema: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the reply's text. Raises EngineError when it does not come."""
        ...

    async def close(self) -> None:
        """Free what the engine holds."""
        ...


class EngineConfig(Protocol):
    """What a pydantic class of an engine that can be the policy's offers besides its settings."""

    @property
    def features(self) -> frozenset[Feature]:
        """What the engine can give with these settings, as far as settings tell."""
        ...

    def remedy(self, feature: Feature) -> str:
        """Return the setting that would give a feature that is missing; "" where there is none."""
        ...

    def for_judge(self) -> "EngineConfig":
        """Return the settings of the engine that serves a second model, beside the policy's. Raises ConfigError."""
        ...

    def build(self, model: Any, *, tokenizer: Any = None) -> Engine:
        """Return an engine that shares `model`. `tokenizer`: of transformers, None for a built-in policy."""
        ...


ENGINES: Registry[Any] = Registry("engine")
