import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.errors import DataError
from midcourse.recording.serialization import (
    group_from_dict,
    group_to_dict,
    trajectory_from_dict,
    trajectory_to_dict,
)
from midcourse.types import (
    AssistantTurn,
    BranchRecord,
    FailureKind,
    Group,
    InterventionOutcome,
    InterventionRecord,
    Member,
    Origin,
    ReviewOutcome,
    ReviewRecord,
    RolloutCost,
    StopReason,
    TokenSource,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)


def make_trajectory(logprob: float = -0.1, **changes) -> Trajectory:
    record = InterventionRecord(
        outcome=InterventionOutcome.ACCEPTED,
        draft_ids=(7, 3),
        corrected_ids=(7, 2),
        error_types=("wrong_place",),
        diagnosis="the wrong <Azure>",
        perplexity=math.inf,
        min_token_logprob=-1 / 3,
        draft_tool_calls=1,
    )
    fields = {
        "task_id": "t1",
        "token_ids": (5, 6, 7, 2, 9),
        "sources": (TokenSource.PROMPT,) * 2 + (TokenSource.POLICY, TokenSource.INTERVENTION, TokenSource.ENVIRONMENT),
        "behavior_logprobs": (None, None, logprob, -0.3, None),
        "policy_versions": (None, None, 3, 3, None),
        "weights": (1.0, 1.0, 1.0, 0.8, 1.0),
        "calibration_logprobs": (None, None, None, -0.7, None),
        "turns": (
            Turn(
                start=2,
                end=4,
                message=AssistantTurn(
                    reasoning="r", tool_calls=(ToolCall("poi_search", {"query": "Azure", "n": 1.5}),)
                ),
                results=(ToolResult(name="poi_search", content="none", is_error=True),),
                intervention=record,
                reviews=(
                    ReviewRecord(
                        outcome=ReviewOutcome.REVISED,
                        start=2,
                        end=5,
                        cut=3,
                        rejected_ids=(8, 9),
                        correction_tokens=1,
                        ends_turn=True,
                        holds_answer=True,
                        judge_logprob=-1 / 3,
                        quote="\\frac",
                        reason="<wrong>",
                    ),
                    ReviewRecord(outcome=ReviewOutcome.NOT_FOUND, start=3, end=4),
                ),
                entropies=(0.25, 1.1053),
            ),
        ),
        "reward": 1.0,
        "temperature": 0.8,
    }
    return Trajectory(**{**fields, **changes})


def make_group() -> Group:
    failed = make_trajectory(
        reward=None, failure=FailureKind.ENVIRONMENT_TIMEOUT, failure_message="30 s", stop_reason=StopReason.FAILED
    )
    return Group(
        group_id="g1",
        task_id="t1",
        members=(
            Member(trajectory=make_trajectory(), origin=Origin.INTERVENED, replaced=make_trajectory(reward=0.0)),
            Member(trajectory=failed),
        ),
        extra=(make_trajectory(reward=0.0, teacher_logprobs=(None, None, -1 / 3, -0.5, None)),),
        cost=RolloutCost(generated_tokens={"policy": 20, "validator": 7}, seconds={"policy": 0.1}),
        phase="intervention",
        branches=(
            BranchRecord(
                parent=0,
                turn=1,
                rollouts=(1,),
                rule="controller",
                regime="mild",
                temperature=0.8,
                cell=4,
                entropy=1 / 3,
                scalars=(0.1, 0.2),
                predicted=1 / 7,
                gained=-1 / 9,
                chance=0.0,
            ),
            BranchRecord(parent=None, turn=0, rollouts=(0,), is_kept=False, is_first_trial=False),
        ),
        decisions=2,
    )


def test_a_group_comes_back_equal_through_json_text():
    text = json.dumps(group_to_dict(make_group()), allow_nan=False)
    assert group_from_dict(json.loads(text)) == make_group()


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=50, deadline=None)
def test_a_log_probability_keeps_every_bit(logprob):
    stored = json.loads(json.dumps(trajectory_to_dict(make_trajectory(logprob))))
    found = trajectory_from_dict(stored).behavior_logprobs[2]
    assert found is not None
    assert found.hex() == logprob.hex()


def test_sources_are_stored_as_runs():
    assert trajectory_to_dict(make_trajectory())["sources"] == [
        ["prompt", 2],
        ["policy", 1],
        ["intervention", 1],
        ["environment", 1],
    ]


def test_another_schema_version_is_named():
    stored = {**group_to_dict(make_group()), "schema_version": 99}
    with pytest.raises(DataError, match="schema version 1: got 99"):
        group_from_dict(stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown fields"),
        ({"reward": [1]}, "number must stand here"),
        ({"token_ids": [1.5]}, "int must stand here"),
        ({"weights": [1.0]}, "one entry per token"),
        ({"failure": "cosmic_ray"}, "cosmic_ray"),
        ({"teacher_logprobs": [-1.0]}, "one entry per token"),
        ({"teacher_logprobs": [None, None, -1.0, None, None]}, "token 3: source intervention with a teacher's"),
        ({"teacher_logprobs": [None, None, -1.0, -1.0, -1.0]}, "token 4: source environment with a teacher's"),
        ({"teacher_logprobs": [None, None, "-inf", -1.0, None]}, "not finite"),
    ],
)
def test_a_damaged_trajectory_is_a_data_error(change, message):
    with pytest.raises(DataError, match=message):
        trajectory_from_dict({**trajectory_to_dict(make_trajectory()), **change})


def test_a_missing_field_without_default_is_a_data_error():
    stored = trajectory_to_dict(make_trajectory())
    del stored["token_ids"]
    with pytest.raises(DataError, match="token_ids"):
        trajectory_from_dict(stored)


def test_a_trajectory_stored_before_teachers_scored_any_is_read():
    stored = trajectory_to_dict(make_trajectory())
    del stored["teacher_logprobs"]
    assert trajectory_from_dict(stored) == make_trajectory()


def test_every_field_of_the_data_classes_is_stored():
    stored = trajectory_to_dict(make_trajectory())
    assert set(stored) == {"schema_version"} | {field.name for field in dataclasses.fields(Trajectory)}
