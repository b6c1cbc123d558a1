"""Branches of rollouts in a world that is forked by replay, and the pool that they grow."""

import asyncio
import threading
from dataclasses import replace

import pytest
from tests.interventions.scripted_world import TASK, LetterChat
from tests.rollout.branch_world import KEY, SeededWorld, text_of, writing

from midcourse.engines.scripted import ScriptedEngine
from midcourse.errors import EngineError
from midcourse.rollout.branches import Continuing, Place, RolloutPool
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import FailureKind, Origin, TokenSource


def looks_twice(text, sampling):
    """Look, look, press: each draw names itself, so that no two turns are alike."""
    key = "l" if text.count(">") < 2 else "ab"[sampling.seed % 2]
    return f"{sampling.seed % 100:02d}+{key};"


def make_pool(world=None, *, draft=looks_twice, engine=None, **engine_settings):
    world = world or SeededWorld()
    engine = engine or ScriptedEngine(writing(draft), **engine_settings)
    config = RolloutConfig(temperature=0.8, max_turn_tokens=16)
    pool = RolloutPool(task=TASK, chat=LetterChat(), environment=world, config=config, key=KEY)
    return pool, Continuing(engine=engine), world


def episode_seed(attempt):
    return replace(KEY, attempt=attempt).turn_seed(0, "environment")


def grow(pool, continuing, *places, count=2):
    """Draw and keep `count` continuations at each place, one place after the other."""

    async def run():
        return [pool.keep(await pool.draw(place, count, continuing)) for place in places]

    return asyncio.run(run())


def test_a_branch_shares_its_parents_past_to_the_last_bit():
    logprobs = iter(range(1, 10_000))
    pool, continuing, _ = make_pool(logprobs=lambda prompt, ids: [-1.0 / next(logprobs) for _ in ids])
    grow(pool, continuing, Place(), Place(parent=1, turn=2))
    parent = pool.members[1].trajectory
    at = parent.turns[2].start
    for member in pool.members[2:]:
        branch = member.trajectory
        assert branch.turns[:2] == parent.turns[:2]
        for name in ("token_ids", "sources", "behavior_logprobs", "policy_versions", "weights"):
            assert getattr(branch, name)[:at] == getattr(parent, name)[:at]
        assert branch.behavior_logprobs[at:] != parent.behavior_logprobs[at:]
        assert branch.turns[2] != parent.turns[2]
        assert member.origin is Origin.BRANCH


def test_continuations_draw_numbers_and_play_worlds_of_their_own():
    pool, continuing, world = make_pool()
    grow(pool, continuing, Place(), Place(parent=0, turn=1), count=4)
    branches = [member.trajectory for member in pool.members[4:]]
    assert len({text_of(branch) for branch in branches}) == 4
    assert {branch.reward for branch in branches} == {0.0, 1.0}
    assert len(world.episodes) == 8
    assert all(episode.is_closed for episode in world.episodes)
    assert {episode.seed for episode in world.episodes[:4]} == {episode_seed(attempt) for attempt in range(4)}
    assert [episode.seed for episode in world.episodes[4:]] == [episode_seed(0)] * 4  # led through the parent's world


def test_a_branch_of_a_branch_is_led_through_the_roots_world():
    pool, continuing, world = make_pool()
    grow(pool, continuing, Place(), Place(parent=1, turn=1), Place(parent=3, turn=2), count=2)
    assert all(member.trajectory.failure is None for member in pool.members)
    assert [episode.seed for episode in world.episodes[2:]] == [episode_seed(1)] * 4
    grandchild, child = pool.members[5].trajectory, pool.members[3].trajectory
    at = child.turns[2].start
    assert grandchild.token_ids[:at] == child.token_ids[:at]
    assert grandchild.turns[0] == pool.members[1].trajectory.turns[0]
    assert grandchild.turns[1] != pool.members[1].trajectory.turns[1]


def test_a_branch_after_rejected_ones_is_led_through_its_own_roots_world():
    pool, continuing, world = make_pool()

    async def run():
        pool.keep(await pool.draw(Place(), 2, continuing), origin=Origin.ROOT)
        pool.reject(await pool.draw(Place(), 3, continuing))
        pool.keep(await pool.draw(Place(), 1, continuing))  # attempt 5, member 2
        return await pool.draw(Place(parent=2, turn=1), 1, continuing)

    (branch,) = asyncio.run(run()).trajectories
    assert branch.failure is None
    assert world.episodes[-1].seed == episode_seed(5)


def test_the_first_turn_can_be_branched_where_a_rollout_stands_and_at_the_tasks_start():
    pool, continuing, world = make_pool()
    grow(pool, continuing, Place(), Place(parent=0, turn=0), Place(), count=1)
    root, fork, fresh = (member.trajectory for member in pool.members)
    assert root.token_ids[: root.prompt_length] == fork.token_ids[: fork.prompt_length]
    assert len({text_of(one) for one in (root, fork, fresh)}) == 3
    first, second, third = (episode.seed for episode in world.episodes)
    assert first == second != third


def test_a_world_that_answers_otherwise_fails_its_continuations_alone_and_the_pool_goes_on():
    pool, continuing, world = make_pool()
    grow(pool, continuing, Place(), count=2)

    async def run():
        world.shift = 1
        broken = await pool.draw(Place(parent=0, turn=1), 3, continuing)
        world.shift = 0
        kept = pool.keep(broken)
        return kept, await pool.draw(Place(parent=1, turn=1), 2, continuing)

    kept, later = asyncio.run(run())
    assert kept == (2, 3, 4)
    for place in kept:
        failed = pool.members[place].trajectory
        assert (failed.failure, failed.reward) == (FailureKind.REPLAY_MISMATCH, None)
        assert "before it answered" in failed.failure_message
        # Its draft stands, the world's answer does not, and nobody branches from the parent's turns in its name.
        assert [place.turn for place in pool.places([place])] == []
    assert [branch.failure for branch in later.trajectories] == [None, None]
    assert pool.rewards[2:] == [None] * 3
    assert all(episode.is_closed for episode in world.episodes)


class Fickle(SeededWorld):
    """Every second episode that it starts answers otherwise, from the third on."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def start(self, task, *, seed):
        with self.lock:
            episode = super().start(task, seed=seed)
            episode.shift = int(len(self.episodes) > 2 and len(self.episodes) % 2)
            return episode


def test_of_the_continuations_of_one_branch_some_fail_and_the_others_go_on():
    pool, continuing, _ = make_pool(Fickle())
    grow(pool, continuing, Place(), count=1)
    drawn = asyncio.run(pool.draw(Place(parent=0, turn=1), 4, continuing))
    failures = [one.failure for one in drawn.trajectories]
    assert sorted(map(str, failures)) == ["None"] * 2 + ["replay_mismatch"] * 2


def test_kept_and_rejected_continuations_have_places_of_their_own():
    pool, continuing, _ = make_pool()

    async def run():
        first = pool.keep(await pool.draw(Place(), 2, continuing), origin=Origin.ROOT)
        rejected = [pool.reject(await pool.draw(Place(parent=0, turn=1), 2, continuing)) for _ in range(2)]
        later = pool.keep(await pool.draw(Place(parent=1, turn=2), 3, continuing))
        return first, rejected, later

    first, rejected, later = asyncio.run(run())
    assert (first, rejected, later) == ((0, 1), [(0, 1), (2, 3)], (2, 3, 4))
    assert (len(pool.members), len(pool.extra), pool.used) == (5, 4, 9)
    assert [member.origin for member in pool.members] == [Origin.ROOT] * 2 + [Origin.BRANCH] * 3
    # No two of the nine drew the same numbers, rejected ones included.
    trajectories = [*(member.trajectory for member in pool.members), *pool.extra]
    assert len({text_of(trajectory) for trajectory in trajectories}) == 9


def test_every_position_is_listed_once():
    pool, continuing, _ = make_pool()
    grow(pool, continuing, Place(), Place(parent=1, turn=1), Place(parent=2, turn=2), count=2)
    places = pool.places(range(6))
    # Three turns each: the start; turns 1 and 2 of the roots; what the branches at 1 wrote first is turn 1 of member 1.
    assert [(place.parent, place.turn) for place in places] == [
        *((None, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (3, 2)),
    ]
    before = {text_of(t)[: t.turns[turn].start] for t, turn in map(pool.turn_at, places)}
    assert len(before) == len(places)
    possible = {text_of(m.trajectory)[: turn.start] for m in pool.members for turn in m.trajectory.turns}
    assert before == possible
    assert [(place.parent, place.turn) for place in pool.places(range(2, 4))] == [(2, 2), (3, 2)]


def test_a_first_rollout_that_failed_without_any_turn_hides_no_place():
    failing = [EngineError("down")]

    def draft(text, sampling):
        return looks_twice(text, sampling)

    class Fragile(ScriptedEngine):
        async def sample(self, prompt_ids, sampling):
            if failing:
                raise failing.pop()
            return await super().sample(prompt_ids, sampling)

    pool, continuing, _ = make_pool(engine=Fragile(writing(draft)))
    grow(pool, continuing, Place(), count=2)
    assert pool.members[0].trajectory.failure is FailureKind.ENGINE_ERROR
    assert pool.members[0].trajectory.turns == ()
    assert [(place.parent, place.turn) for place in pool.places(range(2))] == [(None, 0), (1, 1), (1, 2)]
    assert pool.turn_at(Place()) == (pool.members[1].trajectory, 0)
    with pytest.raises(ValueError, match="cannot fork before turn 0 of 0"):
        asyncio.run(pool.draw(Place(parent=0), 1, continuing))


def test_where_nothing_was_begun_there_is_no_place():
    pool, continuing, _ = make_pool(engine=ScriptedEngine([EngineError("down")] * 2))
    grow(pool, continuing, Place(), count=2)
    assert pool.places(range(2)) == []
    with pytest.raises(ValueError, match="no rollout has a turn at"):
        pool.turn_at(Place())


def test_a_turn_that_is_not_there_is_an_error():
    pool, continuing, _ = make_pool()
    grow(pool, continuing, Place(), count=1)
    with pytest.raises(ValueError, match="cannot fork before turn 3 of 3"):
        asyncio.run(pool.draw(Place(parent=0, turn=3), 1, continuing))
    with pytest.raises(ValueError, match=r"no rollout has a turn at Place\(parent=0, turn=3\)"):
        pool.turn_at(Place(parent=0, turn=3))


def test_draws_follow_from_the_key_alone():
    def drawn(key=KEY, first=4):
        pool, continuing, _ = make_pool()
        pool.key = key
        grow(pool, continuing, Place(), count=first)
        grow(pool, continuing, Place(parent=0, turn=1), count=2)
        return [member.trajectory for member in pool.members]

    again = drawn()
    assert drawn() == again
    others = [replace(KEY, seed=6), replace(KEY, update=3), replace(KEY, task_id="other")]
    for key in others:
        assert {text_of(one) for one in drawn(key)} != {text_of(one) for one in again}
    # The attempt counts on, so a branch after three draws other numbers than one after four.
    assert drawn(first=3)[:3] == again[:3]
    assert drawn(first=3)[3:] != again[4:]


def test_the_order_of_tasks_does_not_matter():
    tasks = [replace(TASK, task_id=name) for name in ("a", "b", "c")]

    async def grown(task):
        pool, continuing, _ = make_pool()
        pool.task, pool.key = task, replace(KEY, task_id=task.task_id)
        pool.keep(await pool.draw(Place(), 2, continuing))
        pool.keep(await pool.draw(Place(parent=0, turn=1), 2, continuing))
        return [member.trajectory for member in pool.members]

    async def together(order):
        return dict(zip((task.task_id for task in order), await asyncio.gather(*map(grown, order)), strict=True))

    assert asyncio.run(together(tasks)) == asyncio.run(together(tasks[::-1]))


def test_the_temperature_of_a_branch_is_for_its_draws_alone():
    seen = []

    def draft(text, sampling):
        seen.append((sampling.temperature, sampling.report_temperature))
        return looks_twice(text, sampling)

    pool, continuing, _ = make_pool(draft=draft)
    grow(pool, continuing, Place(), count=1)
    grow(pool, replace(continuing, temperature_factor=1.25), Place(parent=0, turn=2), count=1)
    assert seen == [(0.8, None)] * 3 + [(1.0, 0.8)]
    branch = pool.members[1].trajectory
    assert branch.temperature == 0.8
    assert branch.sources[branch.turns[2].start] is TokenSource.POLICY
