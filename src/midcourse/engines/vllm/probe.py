"""Does the server compute with the weights that the trainer has? Letters: S sequences, V vocabulary.

A few fixed token sequences; for each, the log-probabilities of the next token that the server finds likeliest are
compared with the trainer's. One generated token a sequence: scoring prompts would say no more, and kills vLLM on a CPU
where adapters are on.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from midcourse.engines.vllm.answers import excerpt, likeliest, one_choice, versions_of
from midcourse.engines.vllm.client import GENERATE, TOP_LOGPROBS
from midcourse.engines.vllm.routes import Routes
from midcourse.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

FIRST_LENGTHS = (3, 5)
MAX_LENGTH = 60
FLOAT32_BOUNDS = (1e-3, 1e-4)
"""Worst and mean difference in nats, both sides in float32. Measured: 5e-5 and 4e-6 on Gemma 3 270M."""
HALF_BOUNDS = (1.5, 0.15)
"""One side in 16 bits. Measured on Gemma 3 270M in bfloat16: 1.1 and 0.07."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Largest differences that count as agreement, nats."""

    worst: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two models' log-probabilities lie apart, nats."""

    worst: float
    mean: float

    def within(self, bounds: Bounds) -> bool:
        """Whether both numbers are in bounds; one that is no number is not."""
        return self.worst <= bounds.worst and self.mean <= bounds.mean


def default_bounds(*dtypes: str) -> Bounds:
    """Return the bounds for the types of trainer and server, as "float32"."""
    worst, mean = FLOAT32_BOUNDS if all(dtype == "float32" for dtype in dtypes) else HALF_BOUNDS
    return Bounds(worst=worst, mean=mean)


def probe_sequences(vocabulary_size: int, number: int) -> list[list[int]]:
    """Return [S] lists of token ids, the same for a vocabulary every time; lengths as of Fibonacci."""
    draw = random.Random(0)
    length, next_length = FIRST_LENGTHS
    sequences = []
    for _ in range(number):
        sequences.append([draw.randrange(vocabulary_size) for _ in range(min(length, MAX_LENGTH))])
        length, next_length = next_length, length + next_length
    return sequences


def trainer_logprobs(model: Any, sequences: Sequence[Sequence[int]]) -> "Tensor":
    """Return [S, V] float32, nats: what `model` says of the token after each sequence. No gradient, no dropout."""
    import torch

    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            rows = [model(torch.tensor([ids], device=model.device)).logits[0, -1] for ids in sequences]
        return torch.stack(rows).float().log_softmax(dim=-1).cpu()
    finally:
        model.train(was_training)


async def compare(
    routes: Routes, sequences: Sequence[Sequence[int]], reference_SV: "Tensor", *, model_name: str, version: int
) -> Agreement:
    """Ask the server about every sequence and return how far it lies from `reference_SV` (nats).

    Raises:
        EngineError: an answer of another version, or none that can be read.
    """
    vocabulary_size = reference_SV.shape[1]
    top_tokens = min(TOP_LOGPROBS, vocabulary_size)
    asked = (_next_token(routes, ids, top_tokens, model_name=model_name, version=version) for ids in sequences)
    answers = await asyncio.gather(*asked)
    if any(token >= vocabulary_size for answer in answers for token in answer):
        raise EngineError(f"the vLLM server knows tokens that the trainer's {vocabulary_size} are not: another model?")
    differences = [
        abs(found - float(reference_SV[row, token]))
        for row, answer in enumerate(answers)
        for token, found in answer.items()
    ]
    return Agreement(worst=max(differences), mean=sum(differences) / len(differences))


async def _next_token(
    routes: Routes, ids: Sequence[int], top_tokens: int, *, model_name: str, version: int
) -> Mapping[int, float]:
    sampling = {"max_tokens": 1, "temperature": 1.0, "seed": 0, "logprobs": top_tokens, "detokenize": False}
    body = {"model": model_name, "token_ids": list(ids), "sampling_params": sampling}
    answer = await routes.post(GENERATE, body)
    try:
        content = one_choice(answer)["logprobs"]["content"][0]
    except (KeyError, IndexError, TypeError) as error:
        raise EngineError(f"the vLLM server's answer to a probe cannot be read: {excerpt(answer)}") from error
    versions = versions_of(answer)
    if versions != {str(version)}:
        raise EngineError(f"the vLLM server answered a probe with weights {sorted(versions)}, expected {version}")
    return likeliest(content)
