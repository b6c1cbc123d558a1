import asyncio
from dataclasses import replace

import pytest
from tests.interventions.review_world import (
    KEY,
    OPENED,
    RIGHT,
    TASK,
    SpellWorld,
    authors,
    engine_of,
    make_tools,
    text_of,
    write,
)
from tests.interventions.scripted_world import STOP

from midcourse.engines.scripted import Hang, ScriptedEngine
from midcourse.errors import EngineError
from midcourse.interventions import model_judges
from midcourse.interventions.judge import Correction, JudgeConfig, Verdict
from midcourse.rollout.episode import run_episode
from midcourse.types import FailureKind, ReviewOutcome, ReviewRecord, StopReason, TokenSource

KEEP = '{"reason": "fine", "verdict": "keep", "quote": ""}'


def revise(quote):
    return f'{{"reason": "wrong", "verdict": "revise", "quote": "{quote}"}}'


def run(*plans, replies=(), corrections=(), judge="scripted", turns=1, max_turn_tokens=32, logprobs=-1.0, **lengths):
    engine = engine_of(*plans, replies=replies, corrections=corrections, logprobs=logprobs)
    tools = make_tools(engine, turns=turns, max_turn_tokens=max_turn_tokens)
    return asyncio.run(write(tools, judge=judge, **lengths)), engine


def outcomes(trajectory):
    return [review.outcome.value for review in trajectory.reviews]


def test_a_wrong_chunk_is_cut_corrected_and_written_on():
    trajectory, engine = run("abXXX", "abcdefgh;", logprobs=lambda prompt, ids: [-0.25 * (1 + len(ids))] * len(ids))
    assert text_of(trajectory) == "abcdefgh;"
    assert authors(trajectory) == "ppiippppp"
    assert trajectory.reward == 1.0
    start = len(OPENED)
    assert trajectory.reviews[0] == ReviewRecord(
        outcome=ReviewOutcome.REVISED,
        start=start,
        end=start + 4,
        cut=start + 2,
        rejected_ids=(ord("X"), ord("X")),
        correction_tokens=2,
        judge_logprob=0.0,  # a script is certain
    )
    # Chunks of four as sampled, the correction of two as the policy scores it behind the kept prefix.
    assert trajectory.behavior_logprobs[start:] == (-1.25, -1.25, -0.75, -0.75, *[-1.25] * 4, -0.5)
    scored = [request for request in engine.requests if request.continuation_ids]
    assert [("".join(map(chr, r.prompt_ids)), "".join(map(chr, r.continuation_ids))) for r in scored] == [
        (f"{OPENED}ab", "cd")
    ]


def test_no_request_but_the_first_chunks_holds_tokens_that_were_not_written_before():
    _, engine = run("abXXX", "abcdefgh;")
    sampled = ["".join(map(chr, r.prompt_ids)) for r in engine.requests if r.sampling is not None]
    assert sampled == [OPENED, f"{OPENED}abcd", f"{OPENED}abcdefgh"]


def test_a_rollout_whose_chunks_are_all_kept_is_the_plain_one():
    tools = make_tools(engine_of("abcdefgh;"))
    plain = asyncio.run(
        run_episode(
            TASK, engine=tools.engine, chat=tools.chat, environment=tools.environment, config=tools.rollout, key=KEY
        )
    )
    reviewed, engine = run("abcdefgh;")
    assert outcomes(reviewed) == ["kept"] * 2  # the third chunk is the stop token alone
    assert replace(reviewed, turns=()) == replace(plain, turns=())
    assert [request.sampling.first_draw for request in engine.requests] == [0, 4, 8]
    assert len({request.sampling.seed for request in engine.requests}) == 1


def test_without_a_judge_nothing_is_reviewed():
    trajectory, _ = run("abXXX;", judge=None)
    assert text_of(trajectory) == "abXXX;"
    assert trajectory.reviews == []


def test_after_a_revision_the_policy_draws_from_another_stream():
    _, engine = run("abXXX", "abcdefgh;")
    seeds = [request.sampling.seed for request in engine.requests if request.sampling is not None]
    assert seeds[0] == KEY.turn_seed(0)
    assert seeds[1] == seeds[2] != seeds[0]


def test_reviews_that_keep_count_and_what_follows_the_last_is_not_reviewed():
    trajectory, _ = run("abcdXXgh;", max_reviews=1)
    assert outcomes(trajectory) == ["kept"]
    assert text_of(trajectory) == "abcdXXgh;"
    assert run("abcdXXgh;", max_reviews=0)[0].reviews == []


def test_the_limit_on_reviews_is_of_the_rollout_not_of_the_turn():
    trajectory, _ = run("abcdefgh;", turns=2, max_reviews=3, judge=AlwaysKeep())
    assert [len(turn.reviews) for turn in trajectory.turns] == [2, 1]


class AlwaysKeep:
    async def review(self, passage):
        return Verdict(is_kept=True)


def test_a_correction_may_finish_the_answer():
    trajectory, engine = run("abXX", max_intervention_tokens=16)
    assert text_of(trajectory) == "abcdefgh;"
    assert authors(trajectory) == "ppiiiiiii"
    assert (trajectory.reward, trajectory.stop_reason) == (1.0, StopReason.DONE)
    assert trajectory.reviews[0].ends_turn
    assert trajectory.reviews[0].holds_answer
    assert sum(request.sampling is not None for request in engine.requests) == 1


def test_a_correction_whose_end_does_not_fit_is_cut_and_finishes_nothing():
    trajectory, _ = run("abXX", "abcdefgh;", max_intervention_tokens=6)
    assert text_of(trajectory) == "abcdefgh;"
    assert authors(trajectory) == "ppiiiiiip"  # the six letters, and the policy ends


def test_a_cut_may_reopen_a_finished_answer():
    trajectory, _ = run("abX;", "abcdefgh;")
    assert text_of(trajectory) == "abcdefgh;"
    first = trajectory.reviews[0]
    assert (first.end - first.start, first.rejected_ids) == (4, (ord("X"),))
    assert trajectory.reward == 1.0


def test_an_answer_that_ends_too_early_is_reopened():
    trajectory, _ = run("abc;", "abcdefgh;")
    assert text_of(trajectory) == "abcdefgh;"
    assert authors(trajectory) == "ppiippppp"


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 6, 8])
def test_no_turn_is_longer_than_its_limit(limit):
    trajectory, _ = run("abXXX", "abcdeXXX", "abcdefgh;", max_turn_tokens=limit, max_intervention_tokens=3)
    assert len(text_of(trajectory)) == limit
    assert trajectory.stop_reason is StopReason.TOKEN_LIMIT


def test_a_limit_that_the_whole_answer_just_fits_ends_it():
    trajectory, _ = run("abXXX", "abcdefgh;", max_turn_tokens=9)
    assert (text_of(trajectory), trajectory.stop_reason) == ("abcdefgh;", StopReason.DONE)


class Says:
    """A judge with one verdict."""

    def __init__(self, verdict, correction=Correction(token_ids=(ord("c"),))):  # noqa: B008
        self.verdict, self.correction = verdict, correction
        self.seen = []

    async def review(self, passage):
        self.seen.append(passage)
        return self.verdict

    async def correct(self, passage, *, num_kept, max_tokens):
        return self.correction


@pytest.mark.parametrize(
    ("verdict", "correction", "expected"),
    [
        (None, None, "unreadable"),
        (Verdict(is_kept=False, quotes=("no such text",)), None, "not_found"),
        (Verdict(is_kept=False, quotes=("",)), None, "not_found"),
        (Verdict(is_kept=False), None, "not_found"),
        (Verdict(is_kept=False, quotes=("X",)), None, "no_correction"),
        (Verdict(is_kept=False, quotes=("X",)), Correction(token_ids=()), "no_correction"),
    ],
)
def test_what_cannot_be_used_keeps_the_chunk_and_is_counted(verdict, correction, expected):
    trajectory, _ = run("abXX;", judge=Says(verdict, correction))
    assert outcomes(trajectory) == [expected]
    assert text_of(trajectory) == "abXX;"
    assert set(authors(trajectory)) == {"p"}


def test_the_second_reading_of_a_quote_is_tried_where_the_first_is_nowhere():
    trajectory, _ = run("abXX", "abc;", judge=Says(Verdict(is_kept=False, quotes=("Y", "XX"))), max_reviews=1)
    assert text_of(trajectory) == "abc;"


def test_the_judge_sees_what_stands_and_the_chunk_apart():
    judge = Says(Verdict(is_kept=True))
    run("abcdefgh;", judge=judge)
    assert [(passage.text.accepted, passage.text.shown, passage.is_ended) for passage in judge.seen] == [
        ("", "abcd", False),
        ("abcd", "efgh", False),
    ]


def test_a_model_plays_the_judge_and_writes_on_behind_the_kept_prefix():
    judge = JudgeConfig(played_by="self", is_privileged=False)
    replies = [revise("XX"), KEEP]
    trajectory, engine = run("abXXX", "abcdefgh;", replies=replies, corrections=["cd"], judge=judge)
    assert outcomes(trajectory) == ["revised", "kept"]
    assert text_of(trajectory) == "abcdefgh;"
    assert trajectory.reviews[0].quote == "XX"
    assert trajectory.reviews[0].reason == "wrong"
    assert trajectory.reviews[0].judge_logprob == -1.0
    prompts = ["".join(map(chr, request.prompt_ids)) for request in engine.requests]
    assert prompts[2] == f"{OPENED}ab"  # the correction: the rollout prompt itself, without the rejected text
    review = prompts[1]
    assert review.startswith("@judge")
    assert "[New passage]\nabXX\n" in review
    assert "in order" in review
    assert "it is abcdefgh" not in "".join(prompts)


def test_a_privileged_judge_sees_the_evidence_and_the_policy_never_does():
    judge, replies = JudgeConfig(played_by="self"), [revise("XX"), KEEP]
    trajectory, engine = run("abXXX", "abcdefgh;", replies=replies, corrections=["cd"], judge=judge)
    prompts = ["".join(map(chr, request.prompt_ids)) for request in engine.requests]
    assert "it is abcdefgh" in prompts[1]
    assert "it is abcdefgh" in prompts[2]
    assert prompts[2].endswith("]ab")
    assert "Reference" not in "".join(map(chr, trajectory.token_ids))
    assert [prompt for prompt in prompts if "it is" not in prompt] == [
        OPENED,  # the first chunk
        f"{OPENED}ab",  # the score of the correction
        f"{OPENED}abcd",
        f"{OPENED}abcdefgh",
    ]


@pytest.mark.parametrize(("failure", "cause"), [(EngineError("down"), "down"), (Hang(), "no answer in time")])
def test_a_judge_that_does_not_answer_keeps_the_chunk_and_is_counted_with_the_cause(failure, cause):
    judge = JudgeConfig(played_by="self", timeout_seconds=0.05)
    trajectory, _ = run("abXX;", replies=[failure], judge=judge)
    assert outcomes(trajectory) == ["judge_failed"]
    assert trajectory.reviews[0].reason == cause
    assert text_of(trajectory) == "abXX;"


def test_an_unreadable_verdict_keeps_the_chunk():
    trajectory, _ = run("abXX;", replies=["I think it is wrong"], judge="self")
    assert outcomes(trajectory) == ["unreadable"]


def test_a_policy_engine_that_fails_fails_the_rollout():
    tools = make_tools(ScriptedEngine([[ord("a")], EngineError("down")]))
    trajectory = asyncio.run(write(tools, judge=AlwaysKeep(), chunk_tokens=1))
    assert trajectory.failure is FailureKind.ENGINE_ERROR


class Server:
    """A text engine that answers from a list; None waits until it is let go."""

    def __init__(self, *replies):
        self.replies, self.requests = list(replies), []
        self.gate = asyncio.Event()

    async def complete(self, messages, **settings):
        self.requests.append((messages, settings))
        reply = self.replies.pop(0)
        if reply is None:
            await self.gate.wait()
            return KEEP
        return reply

    async def close(self):
        pass


def run_with_server(*plans, server, is_privileged=None, **lengths):
    tools = make_tools(engine_of(*plans), role_engines={"judge": server})
    judge = JudgeConfig(played_by="engine", is_privileged=is_privileged)
    return asyncio.run(write(tools, judge=judge, **lengths))


def test_a_servers_text_is_encoded_once_where_it_is_spliced_in():
    server = Server(revise("XX"), "cdef", KEEP)
    trajectory = run_with_server("abXXX", "abcdefgh;", server=server)
    assert text_of(trajectory) == "abcdefgh;"
    assert authors(trajectory) == "ppiippppp"  # cut to two tokens
    written = server.requests[1]
    assert written[1]["max_tokens"] == 2
    assert written[0][-1]["content"].endswith("\nab")
    assert "XX" not in str(written[0])
    assert "it is abcdefgh" not in str(server.requests)
    assert server.requests[0][1]["json_schema"]["properties"].keys() == {"verdict", "quote", "reason"}


def test_a_server_may_be_told_the_evidence():
    server = Server(revise("XX"), "cd", KEEP)
    run_with_server("abXXX", "abcdefgh;", server=server, is_privileged=True)
    assert all("it is abcdefgh" in str(messages) for messages, _ in server.requests[:2])


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ("mathematics", "a mathematical solution"),
        ("arithmetic", "a mathematical solution"),
        ("code", "a programming answer"),
        ("spell", "a response"),
    ],
)
def test_what_the_judge_looks_for_goes_by_the_environment(environment, words, monkeypatch):
    monkeypatch.setattr(SpellWorld, "name", environment)
    server = Server(*[KEEP] * 4)
    run_with_server("abcdefgh;", server=server)
    assert f"You check {words} while it is being written" in server.requests[0][0][0]["content"]


def test_a_servers_mark_ends_the_answer():
    server = Server(revise("XX"), "cdefgh[end of response] and more")
    trajectory = run_with_server("abXXX", server=server, max_intervention_tokens=16)
    assert text_of(trajectory) == "abcdefgh;"
    assert trajectory.reward == 1.0


def test_of_an_endless_text_only_the_beginning_is_encoded(monkeypatch):
    monkeypatch.setattr(model_judges, "LONGEST_REPLY", 4)
    server = Server(revise("XX"), "cdefgh" + model_judges.END_MARK, KEEP)
    trajectory = run_with_server("abXXX", "abcdefgh;", server=server, max_intervention_tokens=16)
    assert authors(trajectory) == "ppiiiippp"


def test_white_space_that_a_server_drops_is_kept_from_the_rejected_text():
    server = Server(revise(" X"), "c", KEEP)
    assert text_of(run_with_server("ab XX", "ab cd;", server=server)) == "ab cd;"
    server = Server(revise(" X"), " c", KEEP)
    assert text_of(run_with_server("ab XX", "ab cd;", server=server)) == "ab cd;"


def test_a_chunk_that_waits_for_its_judge_holds_up_nobody():
    async def both():
        server = Server(None, KEEP, KEEP)
        tools = make_tools(engine_of("abcdefgh;"), role_engines={"judge": server})
        judge = JudgeConfig(played_by="engine")
        waiting = asyncio.ensure_future(write(tools, judge=judge, chunk_tokens=8))
        await asyncio.sleep(0.05)
        other = await asyncio.wait_for(write(tools, judge=judge, key=replace(KEY, attempt=1)), timeout=5)
        assert not waiting.done()
        server.gate.set()
        return other, await waiting

    other, waited = asyncio.run(both())
    assert text_of(other) == text_of(waited) == RIGHT + ";"


def test_the_sources_are_the_two_that_train():
    trajectory, _ = run("abXXX", "abcdefgh;")
    assert set(trajectory.sources) == {TokenSource.PROMPT, TokenSource.POLICY, TokenSource.INTERVENTION}
    assert trajectory.token_ids[-1] == STOP
