from dataclasses import dataclass
from typing import Any

from midcourse.environments.navigation.environment import NavigationConfig
from midcourse.environments.navigation.oracle import PastTurn, next_turn
from midcourse.environments.navigation.roles import OracleRoles
from midcourse.interventions.leak import leaked_values, turn_text, visible_text
from midcourse.types import AssistantTurn


@dataclass(frozen=True)
class Moment:
    """What the oracle reads of a step."""

    task: Any
    turns: Any
    draft: AssistantTurn


def test_the_oracle_flags_corrects_and_stands_by_its_correction_without_a_leak():
    environment = NavigationConfig(train_tasks=20, test_tasks=1).build()
    num_corrected = 0
    for task in environment.tasks("train"):
        episode = environment.start(task, seed=0)
        first = next_turn(task, [])
        past = (PastTurn(message=first, results=episode.act(first).results),)
        episode.close()
        moment = Moment(task, past, next_turn(task, past, skill="plain"))
        verdict = OracleRoles().validate(moment)
        if verdict.is_valid:
            continue
        num_corrected += 1
        corrected = OracleRoles().correct(moment, verdict)
        assert corrected != moment.draft
        assert OracleRoles().verify(moment, corrected).ok
        assert not OracleRoles().verify(moment, moment.draft).ok
        visible = visible_text(task, environment, past)
        assert leaked_values(turn_text(corrected), evidence=task.evidence, visible=visible) == []
        assert leaked_values(task.evidence.text, evidence=task.evidence, visible=task.query) != []
    assert num_corrected >= 5
