from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.rollout.edits import Prefix, add_turn, as_prefix, cut, extend, fork, splice
from midcourse.types import (
    TRAINED_SOURCES,
    AssistantTurn,
    FailureKind,
    StopReason,
    TokenSource,
    ToolResult,
    Trajectory,
    Turn,
)

IDS = st.lists(st.integers(0, 50), min_size=1, max_size=4)
LOGPROBS = st.floats(-9, 0)


@st.composite
def trained_arguments(draw, length):
    """Arguments of `extend` for tokens that carry loss."""
    some = st.lists(LOGPROBS, min_size=length, max_size=length)
    return {
        "behavior_logprobs": draw(some),
        "policy_version": draw(st.integers(0, 3)),
        "weights": draw(st.one_of(st.none(), st.lists(st.floats(0, 2), min_size=length, max_size=length))),
        "calibration_logprobs": draw(st.one_of(st.none(), some)),
    }


@st.composite
def trajectories(draw, min_turns=0):
    """Trajectories of whole turns, each answered, the last one perhaps not."""
    prefix = extend(Prefix(task_id="t"), draw(IDS), TokenSource.PROMPT)
    num_turns = draw(st.integers(min_turns, 3))
    for index in range(num_turns):
        start = len(prefix.token_ids)
        for source in draw(st.lists(st.sampled_from(sorted(TRAINED_SOURCES)), min_size=1, max_size=2)):
            ids = draw(IDS)
            prefix = extend(prefix, ids, source, **draw(trained_arguments(len(ids))))
        results = (ToolResult(name="tool", content=str(index)),)
        turn = Turn(start=start, end=len(prefix.token_ids), message=AssistantTurn(content=str(index)), results=results)
        prefix = add_turn(prefix, turn)
        if index < num_turns - 1 or draw(st.booleans()):
            prefix = extend(prefix, draw(IDS), TokenSource.ENVIRONMENT)
    return prefix.finish(reward=draw(st.sampled_from([0.0, 1.0])))


def extend_by_rest_of(prefix: Prefix, trajectory: Trajectory) -> Prefix:
    """Add, token by token, what `trajectory` has more, then its other turns."""
    for position in range(len(prefix.token_ids), len(trajectory.token_ids)):
        source = trajectory.sources[position]
        trained = source in TRAINED_SOURCES
        prefix = extend(
            prefix,
            [trajectory.token_ids[position]],
            source,
            behavior_logprobs=[trajectory.behavior_logprobs[position]] if trained else None,
            policy_version=trajectory.policy_versions[position],
            weights=[trajectory.weights[position]],
            calibration_logprobs=[trajectory.calibration_logprobs[position]],
        )
    for turn in trajectory.turns[len(prefix.turns) :]:
        prefix = add_turn(prefix, turn)
    return prefix


@given(trajectory=trajectories(), data=st.data())
def test_to_cut_and_to_add_what_was_cut_is_to_do_nothing(trajectory, data):
    at = data.draw(st.integers(0, len(trajectory.token_ids)))
    assert extend_by_rest_of(cut(trajectory, at), trajectory).finish(reward=trajectory.reward) == trajectory


@given(trajectory=trajectories(), data=st.data())
def test_a_cut_keeps_the_turns_that_end_in_it_and_no_other(trajectory, data):
    at = data.draw(st.integers(0, len(trajectory.token_ids)))
    prefix = cut(trajectory, at)
    assert len(prefix.token_ids) == at
    assert list(prefix.turns) == [turn for turn in trajectory.turns if turn.end <= at]
    assert cut(prefix, at) == prefix


@given(trajectory=trajectories(), data=st.data(), ids=IDS)
def test_a_splice_keeps_what_stands_before_it_bit_for_bit(trajectory, data, ids):
    at = data.draw(st.integers(0, len(trajectory.token_ids)))
    arguments = data.draw(trained_arguments(len(ids)))
    spliced = splice(trajectory, at, ids, TokenSource.INTERVENTION, **arguments)
    assert len(spliced.token_ids) == at + len(ids)
    assert cut(spliced, at) == cut(trajectory, at)
    assert list(spliced.token_ids[at:]) == ids
    assert set(spliced.sources[at:]) == {TokenSource.INTERVENTION}
    assert list(spliced.behavior_logprobs[at:]) == arguments["behavior_logprobs"]
    assert set(spliced.policy_versions[at:]) == {arguments["policy_version"]}
    assert list(spliced.weights[at:]) == (arguments["weights"] or [1.0] * len(ids))
    assert list(spliced.calibration_logprobs[at:]) == (arguments["calibration_logprobs"] or [None] * len(ids))


@given(trajectory=trajectories(), data=st.data(), ids=IDS)
def test_the_writers_of_a_splice_add_up(trajectory, data, ids):
    at = data.draw(st.integers(0, len(trajectory.token_ids)))
    spliced = splice(trajectory, at, ids, TokenSource.INTERVENTION, **data.draw(trained_arguments(len(ids)))).finish(
        reward=0.0
    )
    kept = cut(trajectory, at).finish(reward=0.0)
    for source in TokenSource:
        added = len(ids) if source is TokenSource.INTERVENTION else 0
        assert spliced.count(source) == kept.count(source) + added
    assert sum(spliced.count(source) for source in TokenSource) == len(spliced.token_ids)


@given(trajectory=trajectories(min_turns=1), data=st.data())
def test_a_fork_has_the_earlier_turns_and_a_fork_of_it_is_a_fork_of_the_whole(trajectory, data):
    later = data.draw(st.integers(0, len(trajectory.turns) - 1))
    branch = fork(trajectory, later)
    assert list(branch.turns) == list(trajectory.turns[:later])
    assert len(branch.token_ids) == trajectory.turns[later].start == branch.open_start
    for earlier in range(later):
        assert fork(branch, earlier) == fork(trajectory, earlier)


@given(trajectory=trajectories(min_turns=1), data=st.data())
def test_a_cut_within_a_turn_leaves_its_beginning_open(trajectory, data):
    turn = data.draw(st.sampled_from(trajectory.turns))
    at = data.draw(st.integers(turn.start, turn.end - 1))
    assert cut(trajectory, at).open_start == turn.start


def small() -> Prefix:
    prefix = extend(Prefix(task_id="t"), [5, 6], TokenSource.PROMPT)
    return extend(prefix, [7, 2], TokenSource.POLICY, behavior_logprobs=[-0.1, -0.3], policy_version=4)


def test_an_extended_prefix_holds_what_was_given_and_nothing_guessed():
    assert small() == Prefix(
        task_id="t",
        token_ids=(5, 6, 7, 2),
        sources=(TokenSource.PROMPT, TokenSource.PROMPT, TokenSource.POLICY, TokenSource.POLICY),
        behavior_logprobs=(None, None, -0.1, -0.3),
        policy_versions=(None, None, 4, 4),
        weights=(1.0, 1.0, 1.0, 1.0),
        calibration_logprobs=(None, None, None, None),
    )


def test_an_edit_drops_the_outcome():
    trajectory = small().finish(failure=FailureKind.ENGINE_ERROR, failure_message="down")
    assert trajectory.stop_reason is StopReason.FAILED
    assert as_prefix(trajectory) == small()


def test_edits_leave_their_argument_as_it_is():
    trajectory = small().finish(reward=1.0)
    copy = replace(trajectory)
    splice(trajectory, 3, [9], TokenSource.ENVIRONMENT)
    assert trajectory == copy


@pytest.mark.parametrize("at", [-1, 5])
def test_a_cut_outside_the_tokens_is_refused(at):
    with pytest.raises(ValueError, match=f"within the 4 tokens: got {at}"):
        cut(small(), at)


@pytest.mark.parametrize("turn_index", [-1, 0])
def test_a_fork_before_a_turn_that_is_not_there_is_refused(turn_index):
    with pytest.raises(ValueError, match=f"before turn {turn_index} of 0 turns"):
        fork(small(), turn_index)


@pytest.mark.parametrize("name", ["behavior_logprobs", "weights", "calibration_logprobs"])
def test_added_tokens_and_their_values_must_be_of_one_length(name):
    arguments = {"behavior_logprobs": [-0.1], "policy_version": 0, name: [-0.1, -0.2]}
    with pytest.raises(ValueError, match=f"{name} must have one entry per added token: got 2, expected 1"):
        extend(small(), [3], TokenSource.POLICY, **arguments)


def test_tokens_that_carry_loss_need_a_log_probability_and_others_must_not_have_one():
    with pytest.raises(ValueError, match="tokens of policy or intervention have both"):
        splice(small(), 3, [9], TokenSource.INTERVENTION)
    with pytest.raises(ValueError, match="tokens of policy or intervention have both"):
        splice(small(), 3, [9], TokenSource.ENVIRONMENT, behavior_logprobs=[-0.1], policy_version=0)


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([(1, 4)], "token 1 was written by prompt"),
        ([(2, 4), (3, 4)], "starts at 3, before the end 4"),
        ([(2, 5)], "outside the 4 tokens"),
    ],
)
def test_a_turn_that_its_tokens_cannot_hold_is_refused(spans, reason):
    turns = [Turn(start=start, end=end, message=AssistantTurn()) for start, end in spans]
    with pytest.raises(ValueError, match=reason):
        replace(small(), turns=turns)
