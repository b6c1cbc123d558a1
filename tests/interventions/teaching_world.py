"""Policies and teachers that write by plan, one text a rollout, in the letters of `scripted_world`."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.interventions.scripted_world import LetterChat

from midcourse.engines.base import SamplingParams
from midcourse.engines.scripted import ScriptedEngine
from midcourse.methods.base import Speaker
from midcourse.rollout.episode import RolloutKey


def by_attempt(
    texts: Sequence[Any], *, key: RolloutKey, role: str = "policy"
) -> Callable[[Sequence[int], SamplingParams], Any]:
    """Return a script: the rollout of attempt i says text i in its first turn, whoever asks first.

    In place of a text stands whatever else ScriptedEngine takes.
    """
    seeds = [
        RolloutKey(seed=key.seed, update=key.update, task_id=key.task_id, attempt=attempt).turn_seed(0, role)
        for attempt in range(len(texts))
    ]
    answers = {
        seed: [*map(ord, text)] if isinstance(text, str) else text for seed, text in zip(seeds, texts, strict=True)
    }
    return lambda prompt_ids, sampling: answers[sampling.seed]


def speaker(engine: Any = None, *, shares_tokens: bool = True) -> Speaker:
    """Return a teacher; one without an engine gives every token a log-probability of -1."""
    return Speaker(engine=engine or ScriptedEngine(), chat=LetterChat(), shares_tokens=shares_tokens)
