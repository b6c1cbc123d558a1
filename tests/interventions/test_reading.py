import time

import json_repair
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.interventions.reading import (
    LONGEST_REPLY,
    CorrectorReply,
    ValidatorReply,
    VerifierReply,
    read_reply,
    read_review,
)

REPLY = '{"is_valid": false, "error_types": ["wrong_region"], "diagnosis": "too far", "suggest_next": "search"}'


@pytest.mark.parametrize(
    "text",
    [
        REPLY,
        f"```json\n{REPLY}\n```",
        f"Let me see {{this}} first.\n{REPLY}\nThat is all.",
        f'<think>maybe {{"is_valid": true}}</think>{REPLY}',
        REPLY.replace('"search"}', '"search",}'),
        '{"suggest_next": "search", "diagnosis": "too far", "error_types": ["wrong_region"], "is_valid": false}',
        REPLY.replace("false", "False"),
        REPLY[:-1],
        f"{REPLY}}}",
    ],
)
def test_a_reply_is_read_through_fences_prose_and_slips(text):
    reply = read_reply(text, ValidatorReply)
    assert reply is not None
    assert (reply.is_valid, reply.error_types, reply.diagnosis, reply.suggest_next) == (
        False,
        ["wrong_region"],
        "too far",
        "search",
    )


@pytest.mark.parametrize(
    "text",
    ["", "no", "[]", "{}", "null", '{"is_valid": "maybe"}', '{"is_valid": 1}', '{"error_types": []}', "{" * 5000],
)
def test_what_is_no_verdict_reads_as_none(text):
    assert read_reply(text, ValidatorReply) is None


def test_an_object_inside_a_broken_one_is_not_taken_for_the_answer():
    text = '{"tool_calls": [{"name": "say", "arguments": {"content": "inner"}}], "reasoning": "outer"'
    reply = read_reply(text, CorrectorReply)
    assert reply is not None
    assert (reply.reasoning, reply.content, reply.tool_calls[0].name) == ("outer", "", "say")


def test_arguments_written_as_text_are_read():
    reply = read_reply('{"tool_calls": [{"name": "go", "arguments": "{\\"to\\": 1}"}]}', CorrectorReply)
    assert reply is not None
    assert reply.tool_calls[0].arguments == {"to": 1}


def test_nulls_read_as_empty():
    reply = read_reply('{"ok": true, "reasons": null, "diagnosis": null}', VerifierReply)
    assert reply == VerifierReply(ok=True, reasons=[], diagnosis="")


def test_the_last_of_several_answers_counts():
    reply = read_reply('{"ok": true} no, wait: {"ok": false}', VerifierReply)
    assert reply is not None
    assert not reply.ok


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='{}[]":,\\ truefalsenok_id1', max_size=60))
def test_no_text_raises(text):
    for reply_type in (ValidatorReply, CorrectorReply, VerifierReply):
        read_reply(text, reply_type)


@pytest.mark.parametrize(
    ("text", "verdict", "quotes"),
    [
        ('{"reason": "r", "verdict": "revise", "quote": "x = 3"}', "revise", ("x = 3",)),
        ('Let me see.\n```json\n{"verdict": "Keep", "quote": null}\n```', "keep", ()),
        ("{'verdict': 'REVISE ', 'quote': 'a \"b\"',}", "revise", ('a "b"',)),
        ('<think>{"verdict": "keep"}</think>{"verdict": "revise", "quote": "y"}', "revise", ("y",)),
        ('{"quote": "cut of', None, None),
        ('{"verdict": "maybe", "quote": "y"}', None, None),
        ("keep", None, None),
        ("", None, None),
    ],
)
def test_a_verdict_is_read_as_far_as_it_goes(text, verdict, quotes):
    found = read_review(text)
    assert (None if found is None else found[0].verdict) == verdict
    assert (None if found is None else found[1]) == quotes


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\frac{1}{2}", r"\frac{1}{2}"),  # not doubled: JSON has a form feed here
        (r"\\frac{1}{2}", r"\frac{1}{2}"),  # doubled, as JSON wants it
        (r"a \times b", r"a \times b"),
        (r"print(\"x\\n\")", 'print("x\\n")'),
        (r"two\nlines", "two\nlines"),
        (r"\(x\)", r"\(x\)"),
    ],
)
def test_one_reading_of_a_quote_is_what_was_copied(written, meant):
    found = read_review(f'{{"verdict": "revise", "quote": "{written}"}}')
    assert found is not None
    assert meant in found[1]


def test_a_verdict_is_looked_for_in_the_beginning_of_a_reply_alone():
    assert read_review("x" * LONGEST_REPLY + '{"verdict": "keep"}') is None
    started = time.process_time()
    assert read_review("\\" * 20 * LONGEST_REPLY) is None
    assert time.process_time() - started < 1.0  # doubling every backslash of it takes several seconds


def test_thousands_of_brackets_are_not_repaired_since_that_would_hold_up_everything_else(monkeypatch):
    monkeypatch.setattr(json_repair, "loads", pytest.fail)
    assert read_review("{" * 20_000) is None
    assert read_review('{"verdict": "keep" ' + "{" * 20_000 + "}" * 20_001) is None
    whole = '{"verdict": "keep", "reason": "", "quote": "' + "[" * 300 + '"}'
    found = read_review(whole)
    assert found is not None
    assert found[0].verdict == "keep"
