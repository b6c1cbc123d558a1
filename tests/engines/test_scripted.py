import asyncio

import pytest

from midcourse.engines.base import SamplingParams
from midcourse.engines.scripted import Hang, ScriptedEngine
from midcourse.errors import EngineError, PromptTooLongError

SAMPLING = SamplingParams(max_tokens=3, stop_ids=(2,))


def test_a_list_is_answered_in_order_and_requests_are_kept():
    engine = ScriptedEngine([[7, 2], [8, 8, 8, 8]], logprobs=lambda prompt, tokens: [-float(len(prompt))] * len(tokens))
    first, second = (asyncio.run(engine.sample(prompt, SAMPLING)) for prompt in ([1], [1, 5]))
    assert (first.token_ids, first.finish_reason, first.logprobs) == ([7, 2], "stop", [-1.0, -1.0])
    assert (second.token_ids, second.finish_reason) == ([8, 8, 8], "length")
    assert [request.prompt_ids for request in engine.requests] == [(1,), (1, 5)]
    with pytest.raises(EngineError, match="run out at request 3"):
        asyncio.run(engine.sample([1], SAMPLING))


def test_a_function_decides_by_prompt_and_scores_follow_the_script():
    engine = ScriptedEngine(lambda prompt, sampling: [prompt[-1] + 1], logprobs=-0.25)
    assert asyncio.run(engine.sample([4], SAMPLING)).token_ids == [5]
    assert asyncio.run(engine.score([4], [5, 6])).logprobs == [-0.25, -0.25]
    assert engine.usage().scored_tokens == 2


def test_a_script_may_raise_and_may_hang():
    engine = ScriptedEngine([EngineError("down"), Hang()])
    with pytest.raises(EngineError, match="down"):
        asyncio.run(engine.sample([1], SAMPLING))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(engine.sample([1], SAMPLING), 0.05))


def test_version_context_participants_and_closing_behave_as_an_engines():
    engine = ScriptedEngine([[1]], context_length=5)
    asyncio.run(engine.update_weights(None, 3))
    with engine.participant():
        assert engine.num_participants == 1
    assert engine.num_participants == 0
    with pytest.raises(PromptTooLongError):
        asyncio.run(engine.sample([1, 2, 3], SAMPLING))
    assert asyncio.run(engine.sample([1], SAMPLING)).policy_version == 3
    asyncio.run(engine.close())
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(engine.score([1], [2]))
