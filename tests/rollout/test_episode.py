import asyncio
import math
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.rollout.counting_world import (
    ANSWER,
    CALL,
    CONFIG,
    KEY,
    TASK,
    CountingEpisode,
    CountingWorld,
    fail,
    script,
    spans,
)

from midcourse.engines.scripted import Hang, ScriptedEngine
from midcourse.environments.base import Observation
from midcourse.errors import EngineError
from midcourse.rollout.chat import ChatMLFormat
from midcourse.rollout.edits import cut, fork
from midcourse.rollout.episode import Step, StepDecision, run_episode
from midcourse.types import (
    AssistantTurn,
    FailureKind,
    InterventionOutcome,
    InterventionRecord,
    StopReason,
    TokenSource,
    ToolResult,
    Trajectory,
)

# The straight path


def test_a_rollout_is_prompt_turn_answer_turn_and_its_reward(roll, chat):
    world = CountingWorld()
    trajectory = roll([CALL, CALL, ANSWER], world=world)
    first_answer = chat.observe([ToolResult(name="count", content="count is 1")])
    second_answer = chat.observe([ToolResult(name="count", content="count is 2")])
    prompt = chat.open(system_prompt=world.system_prompt, tools=world.tools, query=TASK.query)
    turn, last = chat.render(CALL), chat.render(ANSWER)
    assert list(trajectory.token_ids) == [*prompt, *turn, *first_answer, *turn, *second_answer, *last]
    assert spans(trajectory) == [
        (TokenSource.PROMPT, len(prompt)),
        (TokenSource.POLICY, len(turn)),
        (TokenSource.ENVIRONMENT, len(first_answer)),
        (TokenSource.POLICY, len(turn)),
        (TokenSource.ENVIRONMENT, len(second_answer)),
        (TokenSource.POLICY, len(last)),
    ]
    assert (trajectory.reward, trajectory.failure, trajectory.stop_reason) == (1.0, None, StopReason.DONE)
    assert [turn.message for turn in trajectory.turns] == [CALL, CALL, ANSWER]
    assert [[result.content for result in turn.results] for turn in trajectory.turns] == [
        ["count is 1"],
        ["count is 2"],
        [],
    ]
    for turn in trajectory.turns:
        assert chat.parse(trajectory.token_ids[turn.start : turn.end]) == turn.message
    assert trajectory.temperature == CONFIG.temperature
    assert [episode.num_closed for episode in world.episodes] == [1]


def test_the_evidence_is_in_no_prompt(roll, chat):
    engine = ScriptedEngine(script(chat, [CALL, ANSWER]))
    roll([], engine=engine)
    assert all("secret" not in chat.decode(request.prompt_ids) for request in engine.requests)


def test_every_turn_is_sampled_with_the_seed_of_its_own_and_the_settings_of_the_run(roll, chat):
    engine = ScriptedEngine(script(chat, [CALL, ANSWER]))
    roll([], engine=engine, config=CONFIG.model_copy(update={"top_p": 0.9, "top_k": 5}))
    samplings = [request.sampling for request in engine.requests]
    assert [sampling.seed for sampling in samplings] == [KEY.turn_seed(0), KEY.turn_seed(1)]
    assert {(s.temperature, s.top_p, s.top_k, s.max_tokens) for s in samplings} == {(0.8, 0.9, 5, 200)}
    assert all(sampling.stop_ids == chat.stop_ids for sampling in samplings)


def test_the_world_starts_with_the_seed_of_the_rollout(roll):
    world = CountingWorld()
    roll([ANSWER], world=world)
    roll([ANSWER], world=world)
    roll([ANSWER], world=world, key=replace(KEY, attempt=2))
    assert world.seeds[0] == world.seeds[1] != world.seeds[2]


def test_the_rollout_is_a_participant_of_its_engine_throughout(roll, chat):
    engine = ScriptedEngine(script(chat, [CALL, ANSWER]))
    seen = []
    world = CountingWorld(
        on_start=lambda: seen.append(engine.num_participants),
        on_act=lambda: seen.append(engine.num_participants),
        on_score=lambda: seen.append(engine.num_participants),
    )
    roll([], engine=engine, world=world)
    assert seen == [1, 1, 1, 1]


def test_a_turn_that_is_no_answer_to_the_world_goes_on_without_results(roll, chat):
    class Patient(CountingWorld):
        def start(self, task, *, seed):
            episode = super().start(task, seed=seed)
            episode.act = lambda turn: Observation(done=turn == ANSWER)
            return episode

    trajectory = roll([AssistantTurn(content="Hm."), ANSWER], world=Patient())
    end = trajectory.turns[0].end
    assert list(trajectory.token_ids[end : trajectory.turns[1].start]) == chat.observe([])


# Malformed calls


def test_a_malformed_call_goes_back_to_the_policy_without_reaching_the_world(roll, chat):
    world = CountingWorld()
    trajectory = roll(["<tool_call>{'name'}</tool_call><|im_end|>", CALL, CALL, ANSWER], world=world)
    (result,) = trajectory.turns[0].results
    assert result.is_error
    assert result.name == ""
    assert result.content.startswith("tool call 1 cannot be read: invalid JSON")
    assert result.content in chat.decode(trajectory.token_ids)
    assert len(world.episodes[0].turns) == 3
    assert trajectory.reward == 1.0


def test_the_readable_calls_of_a_malformed_turn_run(roll):
    text = '<tool_call>{"name": "count", "arguments": {}}</tool_call><tool_call>{"name": "count"<|im_end|>'
    world = CountingWorld()
    trajectory = roll([text, CALL, ANSWER], world=world)
    assert [(result.name, result.is_error) for result in trajectory.turns[0].results] == [("count", False), ("", True)]
    assert world.episodes[0].count == 2
    assert trajectory.reward == 1.0


# Limits


def test_the_smaller_turn_limit_ends_the_rollout_and_what_was_done_is_scored(roll):
    by_world = roll([CALL] * 6, world=CountingWorld(max_turns=2))
    by_config = roll([CALL] * 6, config=CONFIG.model_copy(update={"max_turns": 2}))
    neither = roll([CALL] * 6, world=CountingWorld(max_turns=3), config=CONFIG.model_copy(update={"max_turns": 5}))
    assert [len(trajectory.turns) for trajectory in (by_world, by_config, neither)] == [2, 2, 3]
    assert {trajectory.stop_reason for trajectory in (by_world, by_config, neither)} == {StopReason.TURN_LIMIT}
    assert [trajectory.reward for trajectory in (by_world, by_config, neither)] == [1.0, 1.0, 0.0]


def test_a_turn_that_was_cut_short_ends_the_rollout_unseen_by_the_world_and_scored(roll):
    world = CountingWorld()
    trajectory = roll([CALL, "Two"], world=world)
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.TOKEN_LIMIT, 0.0)
    assert trajectory.turns[1].message == AssistantTurn(content="Two")
    assert len(world.episodes[0].turns) == 1


def test_a_prompt_that_does_not_fit_is_a_failure_and_starts_no_world(roll, chat):
    world = CountingWorld()
    trajectory = roll([], engine=ScriptedEngine(context_length=210), world=world)
    assert (trajectory.failure, trajectory.reward) == (FailureKind.PROMPT_TOO_LONG, None)
    assert trajectory.count(TokenSource.PROMPT) == len(trajectory.token_ids) > 10
    assert world.episodes == []


def test_a_context_that_is_full_after_a_turn_ends_the_rollout_scored(roll, chat):
    world = CountingWorld()
    prompt = chat.open(system_prompt=world.system_prompt, tools=world.tools, query=TASK.query)
    engine = ScriptedEngine(script(chat, [CALL, CALL]), context_length=len(prompt) + CONFIG.max_turn_tokens + 5)
    trajectory = roll([], engine=engine, world=world)
    assert (trajectory.stop_reason, trajectory.reward, len(trajectory.turns)) == (StopReason.TOKEN_LIMIT, 0.0, 1)


# Failures


@pytest.mark.parametrize(
    ("hooks", "turns", "failure", "num_turns"),
    [
        ({"on_start": fail}, [CALL], FailureKind.ENVIRONMENT_ERROR, 0),
        ({"on_act": fail}, [CALL], FailureKind.ENVIRONMENT_ERROR, 1),
        ({"on_score": fail}, [CALL, ANSWER], FailureKind.REWARD_ERROR, 2),
        ({"on_score": lambda: math.nan}, [ANSWER], FailureKind.REWARD_ERROR, 1),
        ({"on_score": lambda: math.inf}, [ANSWER], FailureKind.REWARD_ERROR, 1),
        ({"on_score": lambda: "1.0"}, [ANSWER], FailureKind.REWARD_ERROR, 1),
        ({}, [CALL, EngineError("down")], FailureKind.ENGINE_ERROR, 1),
    ],
)
def test_each_failure_has_its_kind_and_keeps_the_tokens_so_far(roll, hooks, turns, failure, num_turns):
    world = CountingWorld(**hooks)
    trajectory = roll(turns, world=world)
    assert (trajectory.failure, trajectory.reward) == (failure, None)
    assert trajectory.stop_reason is StopReason.FAILED
    assert trajectory.failure_message
    assert len(trajectory.turns) == num_turns
    assert (trajectory.count(TokenSource.POLICY) > 0) == (num_turns > 0)
    assert [episode.num_closed for episode in world.episodes] == [1] * len(world.episodes)


def test_an_answer_that_is_no_observation_is_the_worlds_error(roll):
    class Broken(CountingWorld):
        def start(self, task, *, seed):
            episode = super().start(task, seed=seed)
            episode.act = lambda turn: None
            return episode

    trajectory = roll([CALL], world=Broken())
    assert trajectory.failure is FailureKind.ENVIRONMENT_ERROR
    assert "must return an Observation" in trajectory.failure_message


def test_a_timeout_error_of_the_worlds_own_is_its_error_and_not_ours(roll):
    def time_out() -> None:
        raise TimeoutError("upstream")

    assert roll([CALL], world=CountingWorld(on_act=time_out)).failure is FailureKind.ENVIRONMENT_ERROR


@pytest.mark.parametrize(("place", "turns"), [("on_start", []), ("on_act", [CALL]), ("on_score", [ANSWER])])
def test_a_hung_world_costs_its_timeout_and_is_closed(roll, place, turns):
    release, closed = threading.Event(), threading.Event()
    world = CountingWorld(**{place: lambda: release.wait(10)}, on_close=closed.set)
    config = CONFIG.model_copy(update={"environment_timeout_seconds": 0.1})
    turns = turns or [CALL]
    trajectory = roll(turns, world=world, config=config)
    assert trajectory.failure is FailureKind.ENVIRONMENT_TIMEOUT
    assert closed.is_set() == (place != "on_start")
    release.set()


def test_an_episode_that_starts_after_its_timeout_is_closed(chat):
    release, closed = threading.Event(), threading.Event()
    world = CountingWorld(on_start=lambda: release.wait(10), on_close=closed.set)
    config = CONFIG.model_copy(update={"environment_timeout_seconds": 0.1})

    async def main() -> Trajectory:
        trajectory = await run_episode(
            TASK, engine=ScriptedEngine(), chat=chat, environment=world, config=config, key=KEY
        )
        release.set()
        for _ in range(400):
            if closed.is_set():
                break
            await asyncio.sleep(0.01)
        return trajectory

    assert asyncio.run(main()).failure is FailureKind.ENVIRONMENT_TIMEOUT
    assert closed.is_set()


def test_a_rollout_over_its_wall_clock_is_a_failure_and_closes_its_world(roll):
    world = CountingWorld()
    trajectory = roll([CALL, Hang()], world=world, config=CONFIG.model_copy(update={"rollout_timeout_seconds": 0.3}))
    assert trajectory.failure is FailureKind.ROLLOUT_TIMEOUT
    assert len(trajectory.turns) == 1
    assert world.episodes[0].num_closed == 1


def test_an_episode_that_cannot_be_closed_keeps_its_reward_and_is_logged(roll, caplog):
    trajectory = roll([CALL, CALL, ANSWER], world=CountingWorld(on_close=fail))
    assert trajectory.reward == 1.0
    assert "did not close: RuntimeError: the world broke" in caplog.text


@pytest.mark.parametrize("logprob", [math.nan, -math.inf])
def test_a_completion_that_cannot_be_used_is_the_engines_error(roll, chat, logprob):
    engine = ScriptedEngine(script(chat, [ANSWER]), logprobs=logprob)
    assert roll([], engine=engine).failure is FailureKind.ENGINE_ERROR


def test_an_empty_completion_is_the_engines_error(roll):
    assert roll([], engine=ScriptedEngine([[]])).failure is FailureKind.ENGINE_ERROR


def test_a_bug_of_ours_is_no_failed_rollout(roll):
    async def hook(step: Step) -> StepDecision:
        raise KeyError("bug")

    world = CountingWorld()
    with pytest.raises(KeyError, match="bug"):
        roll([CALL], world=world, step_hook=hook)
    assert world.episodes[0].num_closed == 1


def test_a_timeout_error_that_is_not_the_rollouts_own_passes_through(roll):
    with pytest.raises(TimeoutError, match="not ours"):
        roll([TimeoutError("not ours")])


def test_a_cancelled_rollout_is_cancelled_and_closes_its_world(chat):
    closed = threading.Event()
    world = CountingWorld(on_close=closed.set)

    async def main() -> None:
        engine = ScriptedEngine(script(chat, [CALL, Hang()]))
        rollout = asyncio.create_task(
            run_episode(TASK, engine=engine, chat=chat, environment=world, config=CONFIG, key=KEY)
        )
        while len(engine.requests) < 2:
            await asyncio.sleep(0.005)
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        assert engine.num_participants == 0

    asyncio.run(main())
    assert closed.wait(5)


# Interventions


def replacement(chat: ChatMLFormat, turn: AssistantTurn, **options: Any) -> StepDecision:
    ids = chat.render(turn)
    return StepDecision(
        token_ids=ids,
        behavior_logprobs=[-0.2] * len(ids),
        record=InterventionRecord(outcome=InterventionOutcome.ACCEPTED),
        **options,
    )


def test_a_hook_that_keeps_every_draft_changes_nothing(roll):
    async def keep(step: Step) -> StepDecision:
        return StepDecision()

    turns = [CALL, "<tool_call>{<|im_end|>", CALL, ANSWER]
    assert roll(turns, step_hook=keep) == roll(turns)


def test_a_hook_sees_the_draft_before_the_world_does(roll, chat):
    world, steps = CountingWorld(), []

    async def look(step: Step) -> StepDecision:
        acted = len(world.episodes[0].turns) if world.episodes else 0
        steps.append((step, acted))
        return StepDecision()

    trajectory = roll([CALL, ANSWER], world=world, step_hook=look)
    assert [acted for _, acted in steps] == [0, 1]
    last = steps[1][0]
    assert (last.task, last.turn_index, last.key, last.draft) == (TASK, 1, KEY, ANSWER)
    assert list(last.draft_ids) == chat.render(ANSWER)
    assert last.history_ids == trajectory.token_ids[: trajectory.turns[1].start]
    assert last.turns == trajectory.turns[:1]
    assert last.draft_completion.finish_reason == "stop"


def test_a_replacement_goes_to_the_world_and_into_the_tokens_in_place_of_the_draft(roll, chat):
    ids = chat.render(CALL)

    async def correct(step: Step) -> StepDecision:
        if step.turn_index != 0:
            return StepDecision()
        weights, calibration = [1.1] * len(ids), [-0.1] * len(ids)
        return replacement(chat, CALL, weights=weights, calibration_logprobs=calibration, policy_version=4)

    world = CountingWorld()
    trajectory = roll([ANSWER, CALL, ANSWER], world=world, step_hook=correct)
    turn = trajectory.turns[0]
    span = slice(turn.start, turn.end)
    assert list(trajectory.token_ids[span]) == ids
    assert set(trajectory.sources[span]) == {TokenSource.INTERVENTION}
    assert set(trajectory.behavior_logprobs[span]) == {-0.2}
    assert set(trajectory.calibration_logprobs[span]) == {-0.1}
    assert set(trajectory.weights[span]) == {1.1}
    assert set(trajectory.policy_versions[span]) == {4}
    assert turn.message == CALL
    assert world.episodes[0].turns[0] == CALL
    assert trajectory.accepted_interventions == 1
    assert trajectory.reward == 1.0
    assert trajectory.count(TokenSource.INTERVENTION) == len(ids)


def test_a_replacement_may_rescue_a_draft_that_was_cut_short(roll, chat):
    async def correct(step: Step) -> StepDecision:
        if step.draft_completion.finish_reason == "length":
            return replacement(chat, CALL)
        return StepDecision()

    trajectory = roll(["endless", CALL, ANSWER], step_hook=correct)
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.DONE, 1.0)
    assert set(trajectory.policy_versions[trajectory.turns[0].start : trajectory.turns[0].end]) == {0}


def test_a_kept_draft_may_be_weighted_and_keeps_its_record(roll):
    record = InterventionRecord(outcome=InterventionOutcome.GATE_REJECTED)

    async def silence(step: Step) -> StepDecision:
        return StepDecision(weights=[0.0] * len(step.draft_ids), record=record)

    trajectory = roll([ANSWER], step_hook=silence)
    turn = trajectory.turns[0]
    assert set(trajectory.weights[turn.start : turn.end]) == {0.0}
    assert set(trajectory.sources[turn.start : turn.end]) == {TokenSource.POLICY}
    assert turn.intervention == record


def test_a_replacement_without_stop_token_is_a_bug_of_the_hook(roll, chat):
    async def cut_off(step: Step) -> StepDecision:
        return StepDecision(token_ids=chat.encode("Two"), behavior_logprobs=[-0.1] * len(chat.encode("Two")))

    with pytest.raises(ValueError, match="must end in a stop token"):
        roll([ANSWER], step_hook=cut_off)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"behavior_logprobs": [-0.1]}, "keeps the draft must not bring log-probabilities"),
        ({"token_ids": []}, "at least one token"),
        ({"token_ids": [1]}, "needs its log-probabilities"),
        ({"token_ids": [1], "behavior_logprobs": [-0.1, -0.2]}, "got 2, expected 1"),
        ({"token_ids": [1], "behavior_logprobs": [-0.1], "weights": []}, "weights must have one entry per token"),
    ],
)
def test_a_decision_that_does_not_fit_together_is_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        StepDecision(**arguments)


# Going on from a prefix


def test_a_rollout_that_goes_on_from_its_own_fork_is_the_same_rollout(roll, chat):
    whole = roll([CALL, CALL, ANSWER])
    world = CountingWorld()
    episode = CountingEpisode(world, count=1)
    engine = ScriptedEngine(script(chat, [CALL, ANSWER]))
    resumed = roll([], engine=engine, world=world, resume_from=(fork(whole, 1), episode))
    assert resumed == whole
    assert engine.requests[0].sampling.seed == KEY.turn_seed(1)
    assert episode.num_closed == 1
    assert world.episodes == []


def test_a_trajectory_with_its_outcome_can_be_gone_on_from(roll, chat):
    stopped = roll([CALL], world=CountingWorld(max_turns=1))
    world = CountingWorld()
    resumed = roll([CALL, ANSWER], world=world, resume_from=(stopped, CountingEpisode(world, count=1)))
    assert resumed == roll([CALL, CALL, ANSWER])


def test_a_turn_that_was_cut_is_written_on_and_parsed_as_a_whole(roll, chat):
    whole = roll([CALL, CALL, ANSWER])
    at = whole.turns[1].start + 3
    rest = whole.token_ids[at : whole.turns[1].end]
    world = CountingWorld()
    engine = ScriptedEngine([rest, chat.render(ANSWER)])
    resumed = roll([], engine=engine, world=world, resume_from=(cut(whole, at), CountingEpisode(world, count=1)))
    # How uncertain the whole turn was is not known of a part of it.
    first, written_on, last = whole.turns
    assert resumed == replace(whole, turns=(first, replace(written_on, entropies=()), last))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda whole: cut(whole, whole.turns[0].end), "finished turn without its answer"),
        (lambda whole: replace(fork(whole, 1), temperature=0.5), "temperature 0.5 cannot go on at 0.8"),
        (lambda whole: replace(fork(whole, 1), task_id="other"), "tokens of task 'other'"),
    ],
)
def test_a_prefix_that_cannot_be_gone_on_from_is_refused(roll, change, reason):
    whole = roll([CALL, CALL, ANSWER])
    world = CountingWorld()
    with pytest.raises(ValueError, match=reason):
        roll([ANSWER], world=world, resume_from=(change(whole), CountingEpisode(world)))


# Keys


def test_a_seed_depends_on_every_part_of_its_key_and_on_nothing_else():
    keys = [KEY, *(replace(KEY, **{name: value}) for name, value in _other_values())]
    seeds = [key.turn_seed(turn, role) for key in keys for turn in (0, 1) for role in ("policy", "validator")]
    assert len(set(seeds)) == len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert KEY.turn_seed(0) == replace(KEY).turn_seed(0, "policy")


def _other_values() -> list[tuple[str, Any]]:
    return [("seed", 8), ("update", 4), ("task_id", "other"), ("attempt", 2)]


def test_a_seed_is_the_same_in_another_process():
    program = (
        "from midcourse.rollout.episode import RolloutKey; "
        "print(RolloutKey(seed=7, update=3, task_id='count', attempt=1).turn_seed(5, 'verifier'))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(finished.stdout) == KEY.turn_seed(5, "verifier")
