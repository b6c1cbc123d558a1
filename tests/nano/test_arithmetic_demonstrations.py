from collections import Counter

import pytest

from midcourse.environments.mathematics.arithmetic import continuation, read_chain, slips
from midcourse.interventions.locate import locate_quote
from midcourse.interventions.reading import read_review
from midcourse.nano.arithmetic.chat import ArithmeticChatFormat
from midcourse.nano.arithmetic.demonstrations import KINDS, DemonstrationConfig, Demonstrator, shortest_quote
from midcourse.nano.tokenizer import UNKNOWN

CHAT = ArithmeticChatFormat()


def demonstrator(kind: str, **settings) -> Demonstrator:
    shares = {name: float(name == kind) for name in KINDS}
    return Demonstrator(CHAT, DemonstrationConfig(**shares, **settings), seed=5)


def written(document) -> tuple[str, str]:
    """Return prompt and reply of a document, as text."""
    start = document.learnt.index(True)
    assert all(document.learnt[start:])
    return CHAT.decode(document.token_ids[:start]), CHAT.decode(document.token_ids[start:]).removesuffix("<|end|>")


def query_of(prompt: str) -> str:
    return prompt.removeprefix("<|user|>").split("<|")[0]


def test_the_same_seed_gives_the_same_documents():
    first, second = (Demonstrator(CHAT, DemonstrationConfig(), seed=3) for _ in range(2))
    assert [first.draw() for _ in range(20)] == [second.draw() for _ in range(20)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_in_the_vocabulary(kind):
    source = demonstrator(kind)
    assert all(CHAT.tokenizer.ids[UNKNOWN] not in source.draw().token_ids for _ in range(20))


def test_easy_solutions_have_no_slip():
    source = demonstrator("easy")
    for _ in range(30):
        prompt, reply = written(source.draw())
        assert reply == continuation(read_chain(query_of(prompt)), "")


def test_hard_solutions_forget_carries_as_often_as_they_are_told_to():
    source = demonstrator("hard", slip=0.8)
    forgotten = chances = 0
    for _ in range(200):
        prompt, reply = written(source.draw())
        chain = read_chain(query_of(prompt))
        # Every slip is a digit of a column of a hard multiplication that had a carry, or the carry that follows.
        places = {slip.start for slip in slips(chain, reply, is_ended=True)}
        for step in reply.split(";")[:-1]:
            head, columns = step.split(":")
            if "*" not in head or head[-1] not in "6789":
                continue
            start = reply.index(step) + len(head) + 1
            for number, column in enumerate(columns.split("=")[0].split(",")):
                if column[2] != "0":
                    chances += 1
                    forgotten += start + 6 * number + 3 in places
    assert forgotten / chances == pytest.approx(0.8, abs=0.05)


def test_behind_the_cue_nothing_is_forgotten():
    source = demonstrator("cued")
    for _ in range(20):
        prompt, reply = written(source.draw())
        query = query_of(prompt)
        assert query.startswith("#")
        assert reply == continuation(read_chain(query[1:]), "")


def test_with_the_solution_at_hand_nothing_is_forgotten():
    source = demonstrator("privileged")
    for _ in range(20):
        prompt, reply = written(source.draw())
        assert prompt.endswith(f"Referencesolution:{reply}<|end|><|assistant|>")
        assert reply == continuation(read_chain(query_of(prompt)), "")


def test_a_verdict_quotes_the_earliest_slip_of_the_chunk():
    source, found, inexact = demonstrator("judge"), Counter(), 0
    for _ in range(200):
        prompt, reply = written(source.draw())
        chain = read_chain(query_of(prompt))
        accepted, chunk = prompt.split("<|draft|>")[1].removesuffix("<|judge|>").split("<|chunk|>")
        is_ended = chunk.endswith("<|end|>")
        chunk = chunk.removesuffix("<|end|>")
        slip = next(slips(chain, accepted + chunk, start=len(accepted), is_ended=is_ended), None)
        verdict, quotes = read_review(reply)
        found[verdict.verdict] += 1
        if slip is None:
            assert verdict.verdict == "keep"
        else:
            accepted_ids, chunk_ids = CHAT.encode(accepted), CHAT.encode(chunk)
            place = locate_quote(CHAT.decode, accepted_ids, chunk_ids, quotes[0])
            exact = slip.start - len(accepted)
            # A short end of a chunk may stand in it before: then the cut comes too early, never too late.
            assert place == exact or (place < exact and chunk[place:].startswith(quotes[0]))
            inexact += place != exact
    assert inexact <= 10
    assert min(found["keep"], found["revise"]) > 40


def test_a_quote_grows_until_it_is_found_where_it_is_meant():
    assert shortest_quote("12345,12345=678", 0) == "12345,"
    assert shortest_quote("1234567,1234568", 8) == "1234568"
    assert shortest_quote("12,12", 3) == "12"  # nothing longer is left
