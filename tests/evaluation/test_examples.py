import asyncio
from dataclasses import replace

from tests.evaluation.reviewed_run import letters, write_reviewed_run
from tests.evaluation.synthetic_run import write_run
from tests.interventions.review_world import RIGHT, engine_of, make_tools, write

from midcourse.evaluation.examples import LONGEST_TEXT, RecordedRun, example_texts
from midcourse.methods.mintrl import MInTRLConfig
from midcourse.recording.metrics import group_metrics
from midcourse.recording.reader import RunReader
from midcourse.recording.writer import RecordingConfig, RunWriter
from midcourse.types import FailureKind, Group, Member, Origin, ReviewOutcome


def recorded(folder, title="mintrl"):
    reader = RunReader(folder)
    return RecordedRun(title=title, reader=reader, lines=reader.metrics())


def one_example(folder, trajectory, decode=letters):
    """Write a run of one rollout and return its example."""
    group = Group(group_id="g", task_id="t1", members=(Member(trajectory=trajectory, origin=Origin.SEMI_ON_POLICY),))
    method = MInTRLConfig().build()
    with RunWriter(folder, RecordingConfig(tensorboard=False), resolved_config="") as writer:
        writer.write_groups(1, [group])
        writer.write_metrics(1, {**group_metrics([group]), **method.statistics([group])})
    (example,) = example_texts([recorded(folder)], decode)
    return example


def with_review(trajectory, **changes):
    (turn,) = trajectory.turns
    first, *rest = turn.reviews
    return replace(trajectory, turns=(replace(turn, reviews=(replace(first, **changes), *rest)),))


def reviewed(*plans, **lengths):
    return asyncio.run(write(make_tools(engine_of(*plans)), **lengths))


def test_a_revised_chunk_is_shown_with_what_stands_around_it(tmp_path):
    examples = example_texts([recorded(write_reviewed_run(tmp_path))], letters)
    assert examples[0] == "\n".join(
        [
            "Update 1, task a, reward 1, cut at token 2 of the response; tokens rejected: 2, written: 2.",
            "",
            "<pre>before      ab",
            "rejected    <del>Xd</del>",
            "correction  <ins>cd</ins>",
            "after       efgh;",
            "quote       Xd",
            "reason      &lt;b&gt;the letter&lt;/b&gt; after &#96;ab&#96; is c</pre>",
        ]
    )
    assert len(examples) == 2  # one a task


def test_without_a_decoder_tokens_are_shown(tmp_path):
    text = example_texts([recorded(write_reviewed_run(tmp_path))], None)[0]
    assert "rejected    <del>token ids 88 100</del>" in text
    assert "correction  <ins>token ids 99 100</ins>" in text


def test_everything_that_a_model_wrote_is_escaped(tmp_path):
    trajectory = reviewed("a</pre>XX;")
    shown = with_review(trajectory, quote="</pre><img>", reason="\x1b[2J")
    text = one_example(tmp_path, shown, decode=lambda ids: f"<i>{letters(ids)}</i>")
    assert text.count("</pre>") == text.count("<pre>") == text.count("<del>") == text.count("</ins>") == 1
    assert "<i>" not in text
    assert "<img>" not in text
    assert "\x1b" not in text


def test_long_texts_are_cut_and_say_so(tmp_path):
    shown = with_review(reviewed("X" * 200, f"{RIGHT};"), reason="r" * (LONGEST_TEXT + 7), rejected_ids=(88,) * 900)
    text = one_example(tmp_path, shown)
    assert "r" * LONGEST_TEXT + "... (7 more characters)" in text
    assert "X" * LONGEST_TEXT + "... (500 more characters)" in text


def test_only_the_nearest_of_what_stood_before_is_shown(tmp_path):
    right = reviewed(f"{RIGHT};", chunk_tokens=4)
    (turn,) = right.turns
    review = replace(
        turn.reviews[0], outcome=ReviewOutcome.REVISED, cut=turn.start + 6, correction_tokens=1, rejected_ids=(88,)
    )
    shown = replace(right, turns=(replace(turn, reviews=(review,)),))
    text = one_example(tmp_path, shown, decode=lambda ids: "".join(f"{chr(token)}{'.' * 9}" for token in ids))
    assert "before      ..." + "".join(f"{letter}{'.' * 9}" for letter in "cdef") + "\n" in text
    assert "correction  <ins>g.........</ins>" in text
    assert "after       h.........;........." in text


def test_a_value_of_the_evidence_in_a_correction_is_told(tmp_path):
    trajectory = reviewed("abcdefX;", f"{RIGHT};", chunk_tokens=8)
    assert trajectory.reviews[0].holds_answer
    assert "written: 2, a private value of the evidence among them." in one_example(tmp_path, trajectory)


def test_several_runs_take_turns_and_are_named(tmp_path):
    runs = [recorded(write_reviewed_run(tmp_path / title), title) for title in ("first_", "second")]
    examples = example_texts(runs, letters)
    assert examples[0].startswith("Update 1 of first&#95;, task a, ")
    assert examples[1].startswith("Update 1 of second, task b, ")
    assert len(examples) == 2  # both runs have the same two tasks


def test_a_failed_rollout_is_no_reward_of_zero(tmp_path):
    trajectory = reviewed("abXXX", f"{RIGHT};")
    failed = replace(trajectory, reward=None, failure=FailureKind.ENGINE_ERROR)
    assert "task t1, failed, cut at token 2" in one_example(tmp_path, failed)


def test_rollouts_of_updates_without_corrections_are_not_read(tmp_path):
    folder = write_run(tmp_path / "grpo", method="grpo", updates=2)
    for path in (folder / "trajectories").iterdir():
        path.write_bytes(b"unreadable")
    assert example_texts([recorded(folder)], None) == []
