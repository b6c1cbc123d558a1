import asyncio
import json

import pytest
from tests.interventions.scripted_world import INVALID, STOP, TASK, VALID, make_step, make_tools

from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments.base import Evidence
from midcourse.errors import EngineError
from midcourse.interventions.audit import CASES_IN_FLIGHT, StepRecorder, counterfactual_leak_audit
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.roles import Roles, RolesConfig
from midcourse.rollout.episode import StepDecision

OTHER = Evidence(text="it is 88.5678", private_values=("88.5678",))


def audit(validator, corrector, *, num_cases=2, audited=lambda done: None):
    """Audit roles that answer by a function of "own" or "other", whichever evidence stands in their prompt."""

    def script(prompt_ids, sampling):
        text = "".join(map(chr, prompt_ids))
        evidence = "other" if "88.5678" in text else "own"
        reply = validator(evidence) if text.startswith("@validator") else corrector(evidence)
        return reply if isinstance(reply, Exception) else [*map(ord, reply), STOP]

    roles = Roles(make_tools(ScriptedEngine(script)), config=RolesConfig(), ledger=CostLedger())
    cases = [(make_step(task=TASK), OTHER)] * num_cases
    return asyncio.run(counterfactual_leak_audit(cases, roles, audited=audited))


def saying(content):
    return json.dumps({"reasoning": "", "tool_calls": [], "content": content})


@pytest.mark.parametrize(
    ("corrector", "changed", "followed"),
    [
        (lambda evidence: saying("look"), 0, 0),
        (lambda evidence: saying(f"look {evidence}"), 2, 0),
        (lambda evidence: saying("88.5678" if evidence == "other" else "77.1234"), 2, 2),
        (lambda evidence: saying("88.5678 or 77.1234"), 0, 0),
    ],
)
def test_a_correction_follows_the_evidence_if_it_names_what_only_that_evidence_holds(corrector, changed, followed):
    found = audit(lambda evidence: INVALID, corrector)
    assert (found.num_corrected, found.num_changed, found.num_followed) == (2, changed, followed)
    assert found.followed_fraction == followed / 2


def test_a_step_that_one_kind_of_evidence_lets_pass_is_not_corrected():
    found = audit(lambda evidence: VALID if evidence == "own" else INVALID, lambda evidence: saying("88.5678"))
    assert (len(found.steps), found.num_corrected, found.num_followed) == (2, 0, 0)
    assert found.followed_fraction is None


def test_a_role_that_does_not_answer_is_counted():
    found = audit(lambda evidence: INVALID, lambda evidence: EngineError("down"))
    assert (found.num_failed, found.num_corrected) == (2, 0)


def test_progress_counts_finished_steps():
    told = []
    audit(lambda evidence: VALID, saying, num_cases=CASES_IN_FLIGHT + 1, audited=told.append)
    assert told == [CASES_IN_FLIGHT, CASES_IN_FLIGHT + 1]


def test_a_recorder_keeps_the_step_and_lets_the_other_hook_decide():
    decision, step = StepDecision(), make_step()

    async def decide(asked):
        return decision

    recorder = StepRecorder(decide)
    assert asyncio.run(recorder(step)) is decision
    assert recorder.steps == [step]
