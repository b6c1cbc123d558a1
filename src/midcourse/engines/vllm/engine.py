"""The engine `vllm`: a server draws tokens, the trainer's own model stands in for what a server cannot tell.

Where a number comes from (`SamplingParams` and settings decide, never chance):

- log-probabilities of drawn tokens: the server's, where what it tells is what is asked for: at the temperature of the
  draw and without top-p and top-k (`logprobs = "processed"`), or at temperature 1 (`"raw"`). Else from a scoring pass.
- scoring passes: the server's at temperature 1, where it has no adapter; else the trainer's model.
- entropies: the trainer's model, or a lower bound from the server's 20 likeliest tokens.
- hidden states: the trainer's model.

Every answer says which weights drew it; one of other weights than those that were brought last is an EngineError.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from midcourse.engines.base import Completion, EngineUsage, Feature, SamplingParams, TokenScores
from midcourse.engines.transformers import TransformersEngine
from midcourse.engines.vllm.answers import Answer
from midcourse.engines.vllm.client import TOP_LOGPROBS, VllmClient
from midcourse.engines.vllm.config import VllmEngineConfig
from midcourse.engines.vllm.features import check_server
from midcourse.engines.vllm.own_server import LORA_RANKS, OwnServer, OwnServerConfig
from midcourse.engines.vllm.server import SERVED_MODEL, GivenServer, Server
from midcourse.engines.vllm.weight_folder import num_bytes
from midcourse.engines.vllm.weights import WeightSync
from midcourse.errors import ConfigError, EngineError, PromptTooLongError

logger = logging.getLogger(__name__)


class VllmEngine:
    """Engine over a server that has the weights of `model`, a model in this process.

    Args:
        model: of transformers, or PEFT's around one; its weights go to the server.
        config: settings.
        tokenizer: of transformers; None for a built-in policy, whose server then knows token ids alone.
        server: in place of the one that the settings ask for.

    Raises:
        ConfigError: the settings name no server that can be had.
    """

    def __init__(
        self, model: Any, *, config: VllmEngineConfig, tokenizer: Any = None, server: Server | None = None
    ) -> None:
        self.config = config
        self.features = config.features
        if tokenizer is None:  # a grammar is over text
            self.features -= {Feature.STRUCTURED_OUTPUT}
        self._model = model
        self._server = server or _server(model, config, tokenizer)
        self._sync = WeightSync(
            self._server,
            how=config.weight_sync,
            num_probe_sequences=config.probe_sequences,
            max_difference=config.probe_max_difference,
            mean_difference=config.probe_mean_difference,
        )
        vocabulary_size = model.config.get_text_config().vocab_size
        self._client = VllmClient(config, server=self._server, vocabulary_size=vocabulary_size)
        self._stand_in: TransformersEngine | None = None
        self._context_length = _context_length(model, config)
        self._version = 0
        self._syncs, self._sync_seconds = 0, 0.0
        self._is_closed = False

    @property
    def version(self) -> int:
        """Counts weight updates."""
        return self._version

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together; the server's own limit once it is open."""
        return self._context_length

    @property
    def server(self) -> Server:
        """Who is asked."""
        return self._server

    async def open(self) -> None:
        """Start the server with the model's weights, or bring them to the running one, and see what it can do.

        Raises:
            EngineError: it does not start, lacks something, or does not compute with the model's weights.
        """
        if isinstance(self._server, GivenServer):
            given = self._server.config
            logger.info("waiting for the vLLM server at %s (at most %g s)", given.url, given.wait_seconds)
            await self._server.ready()
            await self._check_server()
            await self._push(0)
        else:
            await self._push(0)
            await self._check_server()

    def participant(self) -> AbstractContextManager[None]:
        """Do nothing: a server takes requests as they come."""
        return nullcontext()

    def step_aside(self) -> None:
        """Do nothing: nobody is waited for."""

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Draw one continuation; see Engine.

        The same request gives the same tokens as long as rounding does not change a draw: who shares a batch on the
        server depends on time. With a JSON schema log-probabilities are those of the masked distribution.

        Raises:
            PromptTooLongError: prompt + max_tokens is over the context length.
            EngineError: an empty prompt, a closed engine, no answer, or one that cannot be used.
        """
        self._check(prompt_ids, sampling.max_tokens)
        wants_top = self.config.entropies == "top_logprobs" and sampling.json_schema is None
        answer = await self._client.generate(prompt_ids, sampling, top_logprobs=TOP_LOGPROBS if wants_top else 0)
        version = self._checked_version(answer.versions)
        logprobs, entropies = answer.logprobs, _entropy_bounds(answer)
        if sampling.json_schema is None:
            asked_at = sampling.report_temperature or sampling.temperature or 1.0
            if self.config.entropies == "trainer":
                found = await self._trainer_score(prompt_ids, answer.token_ids, temperature=asked_at)
                entropies = found.entropies
                if not self._server_tells(sampling):
                    logprobs = found.logprobs
            elif not self._server_tells(sampling):
                found = await self.score(prompt_ids, answer.token_ids, temperature=asked_at)
                # A bound at another temperature than the one that is asked for would be none.
                logprobs, entropies = found.logprobs, found.entropies if wants_top else ()
        return Completion(
            token_ids=answer.token_ids,
            logprobs=logprobs,
            entropies=entropies,
            finish_reason=answer.finish_reason,
            policy_version=version,
        )

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuation_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        want_hidden: bool = False,
    ) -> TokenScores:
        """Return log-probabilities of `continuation_ids` after `prompt_ids`; see Engine.

        Raises:
            PromptTooLongError: prompt + continuation is over the context length.
            EngineError: an empty prompt or continuation, hidden states that are switched off, a closed engine, no
                answer, or one that cannot be used.
        """
        if not continuation_ids:
            raise EngineError("a continuation needs at least one token")
        if want_hidden and Feature.HIDDEN_STATES not in self.features:
            raise EngineError(f"no hidden states: expected {self.config.remedy(Feature.HIDDEN_STATES)}")
        # A request for scores draws one token, too, which needs its place.
        fits = len(prompt_ids) + len(continuation_ids) < self._context_length
        self._check(prompt_ids, len(continuation_ids))
        has_adapter = self._client.model_name != SERVED_MODEL
        if want_hidden or temperature not in (0.0, 1.0) or self.config.scoring == "trainer" or has_adapter or not fits:
            return await self._trainer_score(
                prompt_ids, continuation_ids, temperature=temperature, want_hidden=want_hidden
            )
        logprobs, versions = await self._client.score(prompt_ids, continuation_ids)
        return TokenScores(logprobs=logprobs, entropies=(), policy_version=self._checked_version(versions))

    async def update_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """Bring the model's weights to the server where `version` is another one than the server has.

        A state dict is loaded into the model first, and brought whatever its version.

        Raises:
            EngineError: they do not fit, cannot be brought, or the server does not compute with them afterwards.
        """
        if weights is not None:
            try:
                self._model.load_state_dict(weights)
            except RuntimeError as error:
                raise EngineError(f"weights do not fit the model: {error}") from error
        if weights is not None or version != self._sync.version:
            await self._push(version)
        if self._stand_in is not None:
            await self._stand_in.update_weights(None, version)
        self._version = version

    def usage(self) -> EngineUsage:
        """Return the counters since the engine was built, of the server and of the model that stands in."""
        asked = self._client.counters
        here = self._stand_in.usage() if self._stand_in is not None else EngineUsage()
        computed = asked.prompt_tokens - asked.cached_tokens + asked.generated_tokens + asked.scored_tokens
        return EngineUsage(
            prompt_tokens=asked.prompt_tokens + here.prompt_tokens,
            prompt_tokens_reused=asked.cached_tokens + here.prompt_tokens_reused,
            computed_tokens=computed + here.computed_tokens,
            generated_tokens=asked.generated_tokens,
            scored_tokens=asked.scored_tokens + here.scored_tokens,
            seconds=asked.busy_seconds + here.seconds,
            sync_seconds=self._sync_seconds,
            syncs=self._syncs,
        )

    async def close(self) -> None:
        """Stop the server if it is ours and remove what was written. The model stays the caller's."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._client.close()
            if self._stand_in is not None:
                await self._stand_in.close()
            await self._sync.close()
        finally:
            await self._server.stop()

    async def _push(self, version: int) -> None:
        report = await self._sync.push(self._model, version=version)
        self._client.model_name = self._sync.model_name
        self._syncs += 1
        self._sync_seconds += report.seconds

    async def _check_server(self) -> None:
        limit = await check_server(self._client, logprobs=self.config.logprobs)
        self._context_length = min(self._context_length, limit)

    async def _trainer_score(
        self,
        prompt_ids: Sequence[int],
        continuation_ids: Sequence[int],
        *,
        temperature: float,
        want_hidden: bool = False,
    ) -> TokenScores:
        stand_in = self._stand_in
        if stand_in is None:
            try:
                stand_in = self.config.trainer_pass.build(self._model)
            except ConfigError as error:
                raise EngineError(f"the trainer's model cannot stand in for the server: {error}") from error
            self._stand_in = stand_in
            await stand_in.update_weights(None, self._version)
        return await stand_in.score(prompt_ids, continuation_ids, temperature=temperature, want_hidden=want_hidden)

    def _server_tells(self, sampling: SamplingParams) -> bool:
        """Return whether the server's log-probabilities of this draw are those that the engine has to report."""
        drawn_at = sampling.temperature or 1.0  # the most likely token is told at temperature 1
        asked_at = sampling.report_temperature or drawn_at
        if self.config.logprobs == "raw":
            return asked_at == 1.0
        truncates = sampling.temperature > 0 and (sampling.top_p < 1.0 or sampling.top_k > 0)
        return asked_at == drawn_at and not truncates

    def _checked_version(self, versions: frozenset[str]) -> int:
        expected = str(self._sync.version)
        if versions != {expected}:
            raise EngineError(
                f"the vLLM server answered with weights {', '.join(sorted(versions))}, expected version {expected}: "
                "does somebody else bring it weights?"
            )
        return int(expected)

    def _check(self, prompt_ids: Sequence[int], more: int) -> None:
        if self._is_closed:
            raise EngineError("the engine is closed")
        if not prompt_ids:
            raise EngineError("a prompt needs at least one token")
        if len(prompt_ids) + more > self._context_length:
            raise PromptTooLongError(
                f"{len(prompt_ids)} prompt tokens and {more} more are over the context of {self._context_length}"
            )


def _server(model: Any, config: VllmEngineConfig, tokenizer: Any) -> Server:
    if config.running is not None:
        return GivenServer(config.running)

    def write_tokenizer(folder: Path) -> None:
        tokenizer.save_pretrained(folder)
        model.config.save_pretrained(folder)  # vLLM looks for one beside a tokenizer

    return OwnServer(
        _started_as(model, config, knows_text=tokenizer is not None),
        model=model.name_or_path if hasattr(model, "peft_config") else None,
        write_tokenizer=None if tokenizer is None else write_tokenizer,
        model_bytes=num_bytes(model),
    )


def _started_as(model: Any, config: VllmEngineConfig, *, knows_text: bool) -> OwnServerConfig:
    """Return how to start a server that does what the engine's settings and its model ask for."""
    chosen = config.server or OwnServerConfig()
    arguments = ["--logprobs-mode", f"{config.logprobs}_logprobs"]
    arguments += ["--enable-prompt-tokens-details"]  # tells what the prefix cache saved
    if knows_text and config.structured_output:
        # Between the parts of an object white space may go on for ever, and with weak models it does.
        compact = {"backend": "xgrammar", "disable_any_whitespace": True}
        arguments += ["--structured-outputs-config", json.dumps(compact)]
    changes: dict[str, Any] = {
        "arguments": (*arguments, *chosen.arguments),
        "nccl": chosen.nccl or config.weight_sync == "nccl",
    }
    if chosen.context_length is not None:  # it may be the policy's, and this a judge whose own is shorter
        changes["context_length"] = _context_length(model, config)
    if hasattr(model, "peft_config"):
        rank = max(max([adapter.r, *adapter.rank_pattern.values()]) for adapter in model.peft_config.values())
        if rank > LORA_RANKS[-1]:
            raise ConfigError(
                f"the adapter's rank = {rank}: expected at most {LORA_RANKS[-1]}, the most that vLLM loads"
            )
        changes["max_lora_rank"] = max(chosen.max_lora_rank, rank)
    return chosen.model_copy(update=changes)


def _context_length(model: Any, config: VllmEngineConfig) -> int:
    settings = model.config.get_text_config().to_dict()
    own = settings.get("max_position_embeddings") or settings.get("n_positions")
    asked = config.server.context_length if config.server is not None else None
    found = [length for length in (own, asked) if length]
    if not found:
        raise ConfigError("the model's config names no longest context: set engine.server.context_length")
    return min(found)


def _entropy_bounds(answer: Answer) -> Sequence[float]:
    """Return [N] lower bounds of the entropies, nats; () where the likeliest tokens were not asked for.

    The tokens that are known add -p log p each. None of the others is likelier than the least of the likeliest, so
    that the probability that is left over adds at least itself times minus the logarithm of that one's.
    """
    return [_entropy_bound(top) for top in answer.top_logprobs]


def _entropy_bound(top: Mapping[int, float]) -> float:
    known = [math.exp(logprob) for logprob in top.values()]
    rest = max(0.0, 1.0 - math.fsum(known))
    least = sorted(top.values(), reverse=True)[: TOP_LOGPROBS - 1][-1]  # the drawn token may stand outside them
    return math.fsum(-p * logprob for p, logprob in zip(known, top.values(), strict=True)) - rest * least
