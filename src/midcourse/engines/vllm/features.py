"""Whether a running server can do what the engine needs, found out before anything depends on it."""

from typing import Literal

from midcourse.engines.base import SamplingParams
from midcourse.engines.vllm.client import VllmClient
from midcourse.errors import EngineError

PROBE_TOKENS = 4


async def check_server(client: VllmClient, *, logprobs: Literal["processed", "raw"]) -> int:
    """Return the most tokens of prompt and completion that the server takes.

    Raises:
        EngineError: it is too old, was started without what is needed, or tells other log-probabilities than the
            settings say; the message says what to change.
    """
    where = client.server.url
    models = await client.get("/v1/models")
    try:
        limit = min(model["max_model_len"] for model in models["data"] if model["max_model_len"] is not None)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{where}/v1/models: expected vLLM's list of models with max_model_len") from error
    if type(limit) is not int or limit < 2:
        raise EngineError(f"{where}/v1/models: max_model_len = {limit!r}, expected a number of tokens")
    # Of the single token that top-k 1 leaves, a server that tells processed log-probabilities says exactly 0.
    sampling = SamplingParams(max_tokens=min(PROBE_TOKENS, limit - 1), temperature=1.0, top_k=1)
    answer = await client.generate([0], sampling)
    said = "processed" if all(logprob == 0.0 for logprob in answer.logprobs) else "raw"
    if said != logprobs:
        raise EngineError(
            f"{where}: the server tells {said} log-probabilities, engine.logprobs = {logprobs!r}: expected "
            f'engine.logprobs = "{said}", or a server started with --logprobs-mode {logprobs}_logprobs'
        )
    return limit
