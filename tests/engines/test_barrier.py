import asyncio
import random
import time

from midcourse.engines.base import SamplingParams

SAMPLING = SamplingParams(max_tokens=4, temperature=0.9)


def record_batches(engine) -> list[int]:
    """Note the size of each sampled batch, on the way to the real runner."""
    sizes: list[int] = []
    run = engine._runner.sample

    def noting(works, *, version):
        sizes.append(len(works))
        return run(works, version=version)

    engine._runner.sample = noting
    return sizes


async def episode(engine, number: int, delays: random.Random, turns: int):
    history, logprobs = [number, 1, 2], []
    with engine.participant():
        for turn in range(turns):
            completion = await engine.sample(history, SamplingParams(max_tokens=4, seed=100 * number + turn))
            await asyncio.to_thread(time.sleep, delays.random() * 0.01)
            history = [*history, *completion.token_ids, 9]
            logprobs += completion.logprobs
    return history, logprobs


def test_a_run_is_the_same_bit_for_bit_however_long_environments_take(make_engine):
    def run(seed: int):
        engine, delays = make_engine(), random.Random(seed)
        sizes = record_batches(engine)

        async def all_episodes():
            return await asyncio.gather(*(episode(engine, n, delays, turns=2 + n % 3) for n in range(6)))

        return asyncio.run(all_episodes()), sizes

    first, second = run(1), run(2)
    assert first == second
    assert first[1] == [6, 6, 4, 2]


def test_requests_of_one_pass_share_a_batch_without_participants(make_engine):
    engine = make_engine()
    sizes = record_batches(engine)

    async def ask():
        await asyncio.gather(*(engine.sample([number], SAMPLING) for number in range(5)))

    asyncio.run(ask())
    assert sizes == [5]


def test_a_participant_that_leaves_lets_the_batch_start(make_engine):
    engine = make_engine()
    sizes = record_batches(engine)

    async def leaver():
        with engine.participant():
            await asyncio.sleep(0.05)

    async def asker():
        with engine.participant():
            started = time.monotonic()
            await engine.sample([1], SAMPLING)
            return time.monotonic() - started

    async def both():
        return (await asyncio.gather(leaver(), asker()))[1]

    assert 0.04 < asyncio.run(both()) < 5
    assert sizes == [1]


def test_a_participant_that_hangs_is_waited_for_once(make_engine):
    engine = make_engine(barrier_timeout_seconds=0.2)

    async def hang(until: asyncio.Event):
        with engine.participant():
            await until.wait()

    async def ask_thrice():
        until = asyncio.Event()
        hanging = asyncio.create_task(hang(until))
        with engine.participant():
            started = time.monotonic()
            for seed in range(3):
                await engine.sample([seed], SAMPLING)
            elapsed = time.monotonic() - started
        until.set()
        await hanging
        return elapsed

    assert 0.2 <= asyncio.run(ask_thrice()) < 0.4


def test_a_participant_that_holds_others_is_not_waited_for(make_engine):
    engine = make_engine(barrier_timeout_seconds=30)

    async def outer():
        with engine.participant():
            await asyncio.gather(*(episode(engine, n, random.Random(n), turns=2) for n in range(2)))
            return await engine.sample([1], SAMPLING)

    started = time.monotonic()
    assert len(asyncio.run(outer()).token_ids) == 4
    assert time.monotonic() - started < 10


def test_a_cancelled_request_is_dropped_and_the_others_are_answered(make_engine):
    engine = make_engine()
    sizes = record_batches(engine)

    async def cancel_one():
        tasks = [asyncio.create_task(engine.sample([number], SAMPLING)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(cancel_one())
    assert isinstance(results[1], asyncio.CancelledError)
    assert [len(results[index].token_ids) for index in (0, 2)] == [4, 4]
    assert sizes == [2]
