"""Reads what a vLLM server answers.

Nothing that it says is trusted: an answer that does not fit its request is an EngineError that shows it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from midcourse.engines.base import SamplingParams
from midcourse.errors import EngineError, PromptTooLongError

EXCERPT_CHARACTERS = 300
NO_LOGPROB = -9999.0
"""What vLLM writes in place of minus infinity and of a number that it does not have."""
_BREAKS = ("abort", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One completion as the server gave it."""

    token_ids: Sequence[int]  # [N]
    logprobs: Sequence[float]  # [N] nats, by the server's --logprobs-mode
    top_logprobs: Sequence[Mapping[int, float]]  # [N] token -> nats, of the likeliest; empty where not asked for
    finish_reason: Literal["stop", "length"]
    versions: frozenset[str]  # of the weights that any of its tokens were drawn with
    cached_tokens: int  # of the prompt, that the server did not compute again


def excerpt(body: Any) -> str:
    """Return the beginning of an answer, for an error."""
    return json.dumps(body)[:EXCERPT_CHARACTERS]


def one_choice(body: Any) -> Mapping[str, Any]:
    """Return the only choice of an answer. Raises EngineError where it has none or several."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError(f"the vLLM server must answer with one choice: got {excerpt(body)}")
    return choices[0]


def is_broken_off(body: Any) -> bool:
    """Return whether the server did not finish what it was asked for."""
    return one_choice(body).get("finish_reason") in _BREAKS


def read_answer(body: Any, *, sampling: SamplingParams, top_logprobs: int, vocabulary_size: int) -> Answer:
    """Return a completion that was asked for by `sampling` with so many of the likeliest tokens.

    Raises:
        PromptTooLongError: the server's context cut it.
        EngineError: it does not fit what was asked for.
    """
    choice = one_choice(body)
    token_ids = choice.get("token_ids")
    if not _are_ids(token_ids) or not 1 <= len(token_ids) <= sampling.max_tokens:
        raise EngineError(
            f"the vLLM server must answer with 1 to {sampling.max_tokens} token ids: got {excerpt(token_ids)}"
        )
    if (largest := max(token_ids)) >= vocabulary_size:
        raise EngineError(
            f"the vLLM server must answer with tokens of the model's {vocabulary_size}: got token id {largest}"
        )
    finish_reason = choice.get("finish_reason")
    if finish_reason not in ("stop", "length"):
        raise EngineError(f"the vLLM server must end for a stop token or the length: got {excerpt(finish_reason)}")
    if finish_reason == "stop" and sampling.json_schema is None and token_ids[-1] not in sampling.stop_ids:
        raise EngineError(
            f"the vLLM server stopped at token {token_ids[-1]}, expected one of {list(sampling.stop_ids)}"
        )
    if finish_reason == "length" and len(token_ids) < sampling.max_tokens:
        # The server cuts what does not fit its context, and says no more than this.
        raise PromptTooLongError(
            f"the vLLM server's context ended after {len(token_ids)} of {sampling.max_tokens} tokens"
        )
    said = choice.get("logprobs")
    content = said.get("content") if isinstance(said, dict) else None
    if not isinstance(content, list) or len(content) != len(token_ids):
        count = len(content) if isinstance(content, list) else content
        raise EngineError(f"the vLLM server must tell {len(token_ids)} log-probabilities: got {count}")
    logprobs = []
    for token_id, entry in zip(token_ids, content, strict=True):
        said = entry.get("logprob") if isinstance(entry, dict) else None
        if not _is_logprob(said) or said <= NO_LOGPROB or entry.get("token_id") != token_id:
            raise EngineError(
                f"the vLLM server must tell a log-probability of token {token_id}, finite and at most 0: got "
                f"{excerpt(entry)}"
            )
        logprobs.append(min(float(said), 0.0))
    return Answer(
        token_ids=token_ids,
        logprobs=logprobs,
        top_logprobs=[likeliest(entry) for entry in content] if top_logprobs else [],
        finish_reason=finish_reason,
        versions=versions_of(body),
        cached_tokens=_cached_tokens(body),
    )


def read_scores(body: Any, token_ids: Sequence[int], *, first: int) -> list[float]:
    """Return the log-probabilities of the tokens from `first` on, nats. Raises EngineError where one is missing."""
    entries = body.get("prompt_logprobs")
    if not isinstance(entries, list) or len(entries) != len(token_ids):
        count = len(entries) if isinstance(entries, list) else entries
        raise EngineError(f"the vLLM server must score {len(token_ids)} prompt tokens: got {count}")
    logprobs = []
    for token_id, entry in zip(token_ids[first:], entries[first:], strict=True):
        found = entry.get(str(token_id)) if isinstance(entry, dict) else None
        said = found.get("logprob") if isinstance(found, dict) else None
        if not _is_logprob(said):
            raise EngineError(f"the vLLM server must score prompt token {token_id}: got {excerpt(entry)}")
        logprobs.append(-math.inf if said <= NO_LOGPROB else min(float(said), 0.0))
    return logprobs


def likeliest(entry: Any) -> Mapping[int, float]:
    """Return token -> nats, of the likeliest at one place of a completion. Raises EngineError where none is told."""
    found = entry.get("top_logprobs") if isinstance(entry, dict) else None
    if not isinstance(found, list) or not found:
        raise EngineError(f"the vLLM server must tell the likeliest tokens: got {excerpt(entry)}")
    top: dict[int, float] = {}
    for item in found:
        token_id, said = (item.get("token_id"), item.get("logprob")) if isinstance(item, dict) else (None, None)
        if type(token_id) is not int or token_id < 0 or not _is_logprob(said):
            raise EngineError(f"the vLLM server must tell the likeliest tokens: got {excerpt(entry)}")
        if said > NO_LOGPROB:
            top[token_id] = min(float(said), 0.0)
    if not top:
        raise EngineError(f"the vLLM server must tell the likeliest tokens: got {excerpt(entry)}")
    return top


def versions_of(body: Any) -> frozenset[str]:
    """Return the versions of the weights that the answer's tokens were drawn with. Raises EngineError without any."""
    spans = one_choice(body).get("weight_versions")
    if (
        not isinstance(spans, list)
        or not spans
        or not all(isinstance(span, dict) and isinstance(span.get("version"), str) for span in spans)
    ):
        raise EngineError(
            "the vLLM server must tell the version of its weights with every answer (vLLM 0.32 or later): got "
            f"{excerpt(spans if spans is not None else body)}"
        )
    return frozenset(span["version"] for span in spans)


def _cached_tokens(body: Any) -> int:
    """Return the prompt tokens that came from the cache; 0 where the server does not count them."""
    usage = body.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) and cached >= 0 else 0


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _is_logprob(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= 1e-3  # which NaN is not
