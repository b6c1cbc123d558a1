import asyncio
import json
import math
from dataclasses import replace

import pytest
from tests.interventions.scripted_world import (
    BETTER,
    INVALID,
    REFUSED,
    VALID,
    LetterChat,
    ScriptedPressWorld,
    make_engine,
    make_pipeline,
    make_step,
    make_tools,
)

from midcourse.engines.scripted import Hang, ScriptedEngine
from midcourse.errors import ConfigError, EngineError
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.roles import Roles, RolesConfig
from midcourse.types import InterventionOutcome, ToolResult, Turn

QUICK = RolesConfig(timeout_seconds=0.05)


def decide(replies, *, step=None, engine_settings=None, temperature=0.8, **settings):
    engine = make_engine(replies, **(engine_settings or {}))
    pipeline, ledger = make_pipeline(make_tools(engine, temperature=temperature), **settings)
    return asyncio.run(pipeline(step or make_step())), engine, ledger


def saying(content):
    return f'{{"reasoning": "", "tool_calls": [], "content": "{content}"}}'


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ({"validator": VALID}, InterventionOutcome.VALID),
        ({"validator": "I think it is fine"}, InterventionOutcome.VALIDATOR_UNREADABLE),
        ({"corrector": "{{{"}, InterventionOutcome.CORRECTOR_UNREADABLE),
        ({"corrector": '{"reasoning": "only thought"}'}, InterventionOutcome.CORRECTOR_UNREADABLE),
        ({"corrector": BETTER.replace('"content": ""', '"content": "both"')}, InterventionOutcome.CORRECTOR_UNREADABLE),
        ({"corrector": saying("hidden +x call")}, InterventionOutcome.CORRECTOR_UNREADABLE),
        ({"corrector": BETTER.replace('"b"', '"a"')}, InterventionOutcome.UNCHANGED),
        ({"corrector": saying("it is 77.12340")}, InterventionOutcome.LEAK),
        ({"corrector": saying("the Answer Key says")}, InterventionOutcome.LEAK),
        ({"verifier": REFUSED}, InterventionOutcome.VERIFIER_REJECTED),
        ({"verifier": '{"ok": "yes"}'}, InterventionOutcome.VERIFIER_UNREADABLE),
        ({"validator": EngineError("down")}, InterventionOutcome.ROLE_FAILED),
        ({"corrector": EngineError("down")}, InterventionOutcome.ROLE_FAILED),
        ({"verifier": Hang()}, InterventionOutcome.ROLE_FAILED),
        ({}, InterventionOutcome.ACCEPTED),
    ],
)
def test_every_reply_has_one_outcome_and_all_but_one_keep_the_draft(replies, outcome):
    decision, _, _ = decide(replies, roles=QUICK)
    assert decision.record.outcome is outcome
    assert (decision.token_ids is None) == (outcome is not InterventionOutcome.ACCEPTED)


def test_a_correction_that_no_turn_of_the_policy_can_hold_keeps_the_draft():
    class NarrowChat(LetterChat):
        def render(self, turn):
            raise ValueError("this form cannot hold the turn")

    tools = replace(make_tools(make_engine({})), chat=NarrowChat())
    pipeline, _ = make_pipeline(tools)
    decision = asyncio.run(pipeline(make_step()))
    assert decision.token_ids is None
    assert decision.record.outcome is InterventionOutcome.CORRECTOR_UNREADABLE


@pytest.mark.parametrize("character", ["+", "?"])
def test_a_correction_that_the_vocabulary_does_not_hold_keeps_the_draft(character):
    class ClosedChat(LetterChat):
        unknown_id = ord(character)

    pipeline, _ = make_pipeline(replace(make_tools(make_engine({})), chat=ClosedChat()))
    decision = asyncio.run(pipeline(make_step()))
    is_held = character == "?"  # BETTER writes a call, with +
    expected = InterventionOutcome.ACCEPTED if is_held else InterventionOutcome.CORRECTOR_UNREADABLE
    assert decision.record.outcome is expected


def test_an_accepted_correction_is_scored_at_one_for_the_gate_and_at_the_base_temperature_for_the_ratio():
    # The rollout prompt gives -1.0 a token, the longer one with the feedback -0.9: weights exp(0.1).
    def logprobs(prompt_ids, continuation_ids):
        return [-0.9 if len(prompt_ids) > 9 else -1.0] * len(continuation_ids)

    decision, engine, ledger = decide({}, engine_settings={"logprobs": logprobs})
    assert LetterChat().decode(decision.token_ids) == "+b;"
    assert decision.behavior_logprobs == (-1.0, -1.0, -1.0)
    assert decision.calibration_logprobs == (-0.9, -0.9, -0.9)
    assert decision.weights == pytest.approx([math.exp(0.1)] * 3)
    assert decision.record.perplexity == pytest.approx(math.e)
    assert decision.record.min_token_logprob == -1.0
    assert (decision.record.draft_tool_calls, decision.record.corrected_tool_calls) == (1, 1)
    scored = [request for request in engine.requests if request.sampling is None]
    assert [request.temperature for request in scored] == [1.0, 0.8, 0.8]
    assert ledger.cost().scored_tokens == {"gate": 6, "calibration": 3}
    assert set(ledger.cost().generated_tokens) == {"validator", "corrector", "verifier"}


def test_the_correction_prompt_holds_the_feedback_and_neither_evidence_nor_draft():
    _, engine, _ = decide({})
    calibration = LetterChat().decode(engine.requests[-1].prompt_ids)
    assert calibration.startswith("[find it]")
    assert "too far" in calibration
    assert "look again" in calibration
    assert "77.1234" not in calibration
    assert "+a" not in calibration


def test_at_temperature_one_the_gate_scores_serve_twice():
    _, engine, _ = decide({}, temperature=1.0)
    assert len([request for request in engine.requests if request.sampling is None]) == 2


@pytest.mark.parametrize(("delta", "accepted"), [(0.0, False), (2.7, False), (2.8, True), (math.inf, True)])
def test_the_gate_compares_perplexity_with_delta(delta, accepted):
    decision, _, _ = decide({}, delta=delta)
    assert (decision.record.outcome is InterventionOutcome.ACCEPTED) == accepted
    assert decision.record.perplexity == pytest.approx(math.e)


def test_an_impossible_token_is_not_even_taken_without_a_gate():
    decision, _, _ = decide({}, delta=math.inf, engine_settings={"logprobs": -math.inf})
    assert decision.record.outcome is InterventionOutcome.GATE_REJECTED


def test_without_reweighting_nothing_is_scored_under_the_correction_prompt():
    decision, _, ledger = decide({}, reweight=False)
    assert decision.weights is None
    assert decision.calibration_logprobs is None
    assert "calibration" not in ledger.cost().scored_tokens


def test_without_verifier_a_leak_passes_too():
    decision, _, ledger = decide({"corrector": saying("77.1234")}, use_verifier=False)
    assert decision.record.outcome is InterventionOutcome.ACCEPTED
    assert "verifier" not in ledger.cost().generated_tokens


def test_a_value_that_only_the_draft_shows_leaks():
    decision, _, _ = decide({"corrector": saying("so 77.1234")}, step=make_step("77.1234;"))
    assert decision.record.outcome is InterventionOutcome.LEAK
    assert decision.record.leaked_values == ("77.1234",)


def past_turn(message, result):
    chat = LetterChat()
    results = (ToolResult(name="press", content=result),)
    return Turn(start=0, end=3, message=chat.parse(tuple(map(ord, message))), results=results)


def test_a_value_of_an_earlier_result_may_be_said():
    step = make_step(turns=[past_turn("+l;", "seen 77.1234")])
    decision, _, _ = decide({"corrector": saying("so 77.1234")}, step=step)
    assert decision.record.outcome is InterventionOutcome.ACCEPTED


def test_a_value_that_the_policy_itself_wrote_earlier_is_not_visible():
    step = make_step(turns=[past_turn("77.1234+l;", "nothing")])
    decision, _, _ = decide({"corrector": saying("so 77.1234")}, step=step)
    assert decision.record.outcome is InterventionOutcome.LEAK


def test_a_result_that_a_call_of_the_same_turn_would_bring_is_not_visible():
    calls = [{"name": "press", "arguments": {"key": key}} for key in ("l", "77.1234")]
    both = json.dumps({"tool_calls": calls})
    decision, _, _ = decide({"corrector": both})
    assert decision.record.outcome is InterventionOutcome.LEAK


def test_a_correction_that_does_not_fit_the_context_keeps_the_draft():
    def logprobs(prompt_ids, continuation_ids):
        return [-1.0] * len(continuation_ids)

    engine = make_engine({}, logprobs=logprobs, context_length=40)
    pipeline, _ = make_pipeline(make_tools(engine, environment=ScriptedPressWorld()), roles={"played_by": "scripted"})
    decision = asyncio.run(pipeline(make_step()))
    assert decision.token_ids is None
    assert decision.record.outcome is InterventionOutcome.ROLE_FAILED


def test_scripted_roles_need_no_engine_for_words():
    engine = ScriptedEngine([])
    tools = make_tools(engine, environment=ScriptedPressWorld())
    pipeline, _ = make_pipeline(tools, roles={"played_by": "scripted"})
    decision = asyncio.run(pipeline(make_step()))
    assert decision.record.outcome is InterventionOutcome.ACCEPTED


class TextRole:
    def __init__(self, reply):
        self.reply = reply
        self.asked = []

    async def complete(self, messages, *, max_tokens, temperature, seed, json_schema=None):
        self.asked.append((list(messages), seed, json_schema))
        return self.reply

    async def close(self):
        pass


def test_a_role_on_another_engine_is_asked_with_its_schema_and_the_turns_seed():
    validator = TextRole(VALID)
    tools = make_tools(make_engine({}), role_engines={"validator": validator})
    pipeline, _ = make_pipeline(tools, roles={"validator": "engine"})
    assert asyncio.run(pipeline(make_step())).record.outcome is InterventionOutcome.VALID
    messages, seed, schema = validator.asked[0]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert seed == make_step().key.turn_seed(0, "validator")
    assert "is_valid" in schema["properties"]


def test_half_a_surrogate_pair_in_a_diagnosis_reaches_no_other_server():
    validator, corrector = TextRole(INVALID.replace("too far", r"\ud800")), TextRole("{}")
    tools = make_tools(make_engine({}), role_engines={"validator": validator, "corrector": corrector})
    pipeline, _ = make_pipeline(tools, roles={"validator": "engine", "corrector": "engine"})
    asyncio.run(pipeline(make_step()))
    for message in corrector.asked[0][0]:
        message["content"].encode()


@pytest.mark.parametrize("roles", [{"corrector": "engine"}, {"played_by": "scripted"}])
def test_a_role_that_nobody_can_play_is_a_setting_error(roles):
    with pytest.raises(ConfigError, match=r"corrector|scripted"):
        make_pipeline(make_tools(make_engine({})), roles=roles)


def test_the_concealment_clause_is_left_out_on_request():
    def corrector_prompt(conceal):
        _, engine, _ = decide({}, conceal=conceal)
        prompts = [LetterChat().decode(request.prompt_ids) for request in engine.requests]
        return next(prompt for prompt in prompts if prompt.startswith("@corrector"))

    assert "Concealment" in corrector_prompt(True)
    assert "Concealment" not in corrector_prompt(False)


def test_only_roles_are_shown_the_evidence():
    _, engine, _ = decide({})
    for request in engine.requests:
        text = LetterChat().decode(request.prompt_ids)
        assert ("77.1234" in text) == text.startswith("@")


def test_roles_are_asked_in_the_style_of_the_chat_format_unless_one_is_named():
    class OtherChat(LetterChat):
        prompt_style = "nano"

    def style_of(chat, **settings):
        tools = replace(make_tools(ScriptedEngine([])), chat=chat)
        return Roles(tools, config=RolesConfig(**settings), ledger=CostLedger()).style

    assert style_of(LetterChat()) == "standard"
    assert style_of(OtherChat()) == "nano"
    assert style_of(OtherChat(), style="standard") == "standard"
