import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError
from tests.interventions.review_world import KEY, OPENED, RIGHT, TASK, authors, engine_of, make_tools, text_of
from tests.interventions.teaching_world import by_attempt, speaker

from midcourse.engines.scripted import Hang, ScriptedEngine
from midcourse.errors import ConfigError, EngineError
from midcourse.interventions.judge import Continuation
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.teacher import Demonstrator, DemonstratorConfig, ScorerConfig, ScoringTeacher
from midcourse.methods.grpo import roll_out
from midcourse.types import FailureKind, StopReason

START = len(OPENED)


def counting(prompt_ids, token_ids):
    """-0.25, -0.5, ... for the tokens of one request."""
    return [-0.25 * (index + 1) for index in range(len(token_ids))]


class Unwilling(ScriptedEngine):
    """Does not score what holds an X: raises, or never answers."""

    def __init__(self, failure):
        super().__init__(logprobs=counting)
        self.failure, self.refused = failure, 0

    async def score(self, prompt_ids, continuation_ids, **settings):
        if ord("X") not in continuation_ids:
            return await super().score(prompt_ids, continuation_ids, **settings)
        self.refused += 1
        if isinstance(self.failure, Exception):
            raise self.failure
        await asyncio.Event().wait()


def counting_speaker(**settings):
    return speaker(ScriptedEngine(logprobs=counting), **settings)


def score(*completions, turns=1, teacher=None, temperature=0.7, **settings):
    """Return the scored rollouts, one a completion, or one of all of them where it has turns; and what they cost."""
    in_order = [[*map(ord, text)] for text in completions]
    policy = ScriptedEngine(in_order if turns > 1 else by_attempt(completions, key=KEY), logprobs=-2.0)
    tools = make_tools(policy, turns=turns, judge=teacher or counting_speaker())
    tools = replace(tools, rollout=tools.rollout.model_copy(update={"temperature": temperature}))
    ledger = CostLedger()
    hook = ScoringTeacher(tools, config=ScorerConfig(**settings), ledger=ledger)
    attempts = range(1 if turns > 1 else len(completions))
    rollouts = asyncio.run(roll_out(TASK, tools, key=KEY, attempts=attempts, ledger=ledger, step_hook=hook))
    return hook.attach(rollouts), ledger.cost(), policy


def test_the_policys_tokens_get_the_teachers_log_probabilities_and_nothing_else_changes():
    (found,), cost, _ = score("abc;")
    assert found.teacher_logprobs == (*[None] * START, -0.25, -0.5, -0.75, -1.0)
    assert found.behavior_logprobs[START:] == (-2.0,) * 4
    assert (text_of(found), authors(found), found.reward) == ("abc;", "pppp", 0.0)
    assert cost.generated_tokens == {"policy": 4}
    assert cost.scored_tokens == {"teacher": 4}


def test_a_privileged_teacher_reads_the_evidence_at_the_rollouts_temperature_and_the_policy_does_not():
    teacher = counting_speaker()
    _, _, policy = score("abc;", teacher=teacher)
    (request,) = teacher.engine.requests
    prompt = "".join(map(chr, request.prompt_ids))
    assert prompt.startswith("[spell\n")
    assert f"it is {RIGHT}" in prompt
    assert prompt.endswith("]")
    assert request.continuation_ids == tuple(map(ord, "abc;"))
    assert request.temperature == 0.7
    assert ["".join(map(chr, asked.prompt_ids)) for asked in policy.requests] == [OPENED]


def test_a_teacher_that_is_told_nothing_reads_the_rollouts_own_tokens():
    teacher = counting_speaker()
    score("ab;", "cd;", turns=2, teacher=teacher, is_privileged=False)
    assert ["".join(map(chr, request.prompt_ids)) for request in teacher.engine.requests] == [OPENED, OPENED + "ab;<>"]


def test_each_turn_is_scored_behind_all_that_stands_and_the_environments_tokens_are_not():
    teacher = counting_speaker()
    (found,), cost, _ = score("ab;", "cd;", turns=2, teacher=teacher)
    assert text_of(found) == "ab;<>cd;"
    assert found.teacher_logprobs == (*[None] * START, -0.25, -0.5, -0.75, None, None, -0.25, -0.5, -0.75)
    second = "".join(map(chr, teacher.engine.requests[1].prompt_ids))
    assert second.endswith("]ab;<>")
    assert f"it is {RIGHT}" in second
    assert cost.scored_tokens == {"teacher": 6}


def test_a_draft_that_was_cut_short_is_scored_too():
    (found,), _, _ = score("a" * 40)
    assert found.stop_reason is StopReason.TOKEN_LIMIT
    assert sum(logprob is not None for logprob in found.teacher_logprobs) == 32


@pytest.mark.parametrize("failure", [EngineError("down"), Hang()])
def test_a_rollout_that_the_teacher_cannot_score_keeps_its_reward_and_has_no_scores(failure, caplog):
    teacher = speaker(Unwilling(failure))
    found, _, _ = score("abX;", RIGHT + ";", teacher=teacher, timeout_seconds=0.05)
    assert [trajectory.teacher_logprobs is None for trajectory in found] == [True, False]
    assert [trajectory.reward for trajectory in found] == [0.0, 1.0]
    assert [trajectory.failure for trajectory in found] == [None, None]
    assert "the teacher gave no scores" in caplog.text


def test_a_teacher_that_failed_is_not_asked_again_for_that_rollout():
    teacher = speaker(Unwilling(EngineError("down")))
    (found,), _, _ = score("X;", "X;", turns=2, teacher=teacher)
    assert len(found.turns) == 2
    assert (found.teacher_logprobs, teacher.engine.refused) == (None, 1)


@pytest.mark.parametrize("logprobs", [-float("inf"), float("nan"), lambda prompt, ids: [-1.0]])
def test_numbers_that_cannot_be_used_are_no_scores(logprobs):
    (found,), _, _ = score("ab;", teacher=speaker(ScriptedEngine(logprobs=logprobs)))
    assert (found.teacher_logprobs, found.reward) == (None, 0.0)


def test_an_evidence_that_does_not_fit_the_context_leaves_the_rollout_unscored():
    (found,), _, _ = score("ab;", teacher=speaker(ScriptedEngine(context_length=30)))
    assert found.teacher_logprobs is None


def test_the_policy_itself_may_teach_with_evidence_and_not_without():
    policy = engine_of("abc;")
    tools, ledger = make_tools(policy), CostLedger()
    hook = ScoringTeacher(tools, config=ScorerConfig(played_by="self"), ledger=ledger)
    rollouts = asyncio.run(roll_out(TASK, tools, key=KEY, attempts=[0], ledger=ledger, step_hook=hook))
    assert hook.attach(rollouts)[0].teacher_logprobs[START:] == (-1.0,) * 4
    with pytest.raises(ValidationError, match="no teacher"):
        ScorerConfig(played_by="self", is_privileged=False)


def test_a_teacher_that_the_run_does_not_have_or_of_another_vocabulary_is_an_error():
    with pytest.raises(ConfigError, match="has none"):
        ScoringTeacher(make_tools(engine_of("a;")), config=ScorerConfig(), ledger=CostLedger())
    with pytest.raises(ConfigError, match="same vocabulary"):
        score("a;", teacher=counting_speaker(shares_tokens=False), played_by="model", path="x")


def demonstrate(tools, *, num_rollouts=1, **settings):
    ledger = CostLedger()
    writer = Demonstrator(tools, config=DemonstratorConfig(**settings), ledger=ledger)
    attempts = range(num_rollouts)
    return asyncio.run(
        roll_out(TASK, tools, key=KEY, attempts=attempts, ledger=ledger, turn_writer=writer)
    ), ledger.cost()


def test_a_script_writes_the_whole_response_and_the_policy_scores_it_under_the_rollout_prompt():
    policy = ScriptedEngine(logprobs=counting)
    (found,), cost = demonstrate(make_tools(policy), played_by="scripted")
    assert (text_of(found), authors(found)) == (RIGHT + ";", "iiiiiiiii")
    assert (found.reward, found.stop_reason) == (1.0, StopReason.DONE)
    assert found.behavior_logprobs == (*[None] * START, *counting((), range(9)))
    assert ["".join(map(chr, request.prompt_ids)) for request in policy.requests] == [OPENED]
    assert policy.requests[0].temperature == 1.0
    assert cost.scored_tokens == {"intervention_score": 9}
    assert cost.generated_tokens == {}


def test_a_model_writes_with_evidence_and_each_rollout_draws_its_own():
    teacher = ScriptedEngine(lambda prompt_ids, sampling: [*map(ord, "abc;")])
    policy = ScriptedEngine()
    found, cost = demonstrate(make_tools(policy, judge=speaker(teacher)), num_rollouts=2)
    assert [text_of(trajectory) for trajectory in found] == ["abc;"] * 2
    assert all(f"it is {RIGHT}" in "".join(map(chr, request.prompt_ids)) for request in teacher.requests)
    assert len({request.sampling.seed for request in teacher.requests}) == 2
    assert {request.sampling.max_tokens for request in teacher.requests} == {32}
    assert all(f"it is {RIGHT}" not in "".join(map(chr, request.prompt_ids)) for request in policy.requests)
    assert cost.generated_tokens == {"intervention": 8}
    assert cost.scored_tokens == {"intervention_score": 8}


def test_a_model_writes_every_turn_of_an_episode_behind_what_the_environment_answered():
    teacher = ScriptedEngine([[*map(ord, "ab;")], [*map(ord, RIGHT + ";")]])
    (found,), _ = demonstrate(make_tools(ScriptedEngine(), turns=2, judge=speaker(teacher)))
    assert text_of(found) == f"ab;<>{RIGHT};"
    assert authors(found) == "iiieeiiiiiiiii"
    assert (found.reward, len(found.turns)) == (1.0, 2)
    assert "".join(map(chr, teacher.requests[1].prompt_ids)).endswith("]ab;<>")


def test_a_model_of_another_vocabulary_writes_in_the_policys_tokens():
    teacher = ScriptedEngine([[*map(ord, "abc;")]])
    (found,), _ = demonstrate(make_tools(ScriptedEngine(), judge=speaker(teacher, shares_tokens=False)))
    assert (text_of(found), authors(found)) == ("abc;", "iiii")


def test_a_response_that_does_not_end_in_time_is_scored_as_it_stands():
    tools = make_tools(ScriptedEngine(), max_turn_tokens=5)
    (found,), _ = demonstrate(tools, played_by="scripted")
    assert (text_of(found), found.stop_reason, found.reward) == ("abcde", StopReason.TOKEN_LIMIT, 0.0)


@pytest.mark.parametrize("answer", [EngineError("down"), Hang(), []])
def test_a_teacher_that_does_not_write_fails_the_rollout(answer):
    teacher = speaker(ScriptedEngine(lambda prompt_ids, sampling: answer))
    (found,), _ = demonstrate(make_tools(ScriptedEngine(), judge=teacher), timeout_seconds=0.05)
    assert (found.failure, found.reward) == (FailureKind.ENGINE_ERROR, None)
    assert "the teacher" in found.failure_message


class SpeechlessScript:
    def correct(self, task, *, accepted):
        return Continuation(text="")


def test_a_script_without_a_response_fails_the_rollout():
    tools = make_tools(ScriptedEngine())
    tools.environment.judge_script = SpeechlessScript
    (found,), _ = demonstrate(tools, played_by="scripted")
    assert "nothing to write" in found.failure_message


def test_a_response_that_the_policy_gives_no_probability_fails_the_rollout():
    (found,), _ = demonstrate(make_tools(ScriptedEngine(logprobs=-float("inf"))), played_by="scripted")
    assert found.failure is FailureKind.ENGINE_ERROR
