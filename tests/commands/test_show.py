import asyncio
from dataclasses import replace
from io import StringIO

from rich.console import Console
from tests.interventions.review_world import RIGHT, engine_of, make_tools, write
from tests.interventions.scripted_world import LetterChat
from tests.methods.rail_world import begun, collect, make_config

from midcourse.commands.show import (
    COLOURS,
    REJECTED,
    branch_tree,
    branches_text,
    coloured,
    group_json,
    group_lines,
    legend,
    printable,
    reviews_text,
    trajectory_json,
)
from midcourse.types import (
    AssistantTurn,
    FailureKind,
    Group,
    Member,
    Origin,
    ReviewOutcome,
    ReviewRecord,
    StopReason,
    TokenSource,
    ToolResult,
    Trajectory,
    Turn,
)


class Letters:
    """A chat format that is only asked to decode: token 65 is "A"."""

    def decode(self, token_ids):
        return "".join(map(chr, token_ids))


def written(text: str) -> Trajectory:
    token_ids = tuple(map(ord, "Q" + text))
    num_tokens = len(text)
    return Trajectory(
        task_id="t",
        token_ids=token_ids,
        sources=(TokenSource.PROMPT, *[TokenSource.POLICY] * num_tokens),
        behavior_logprobs=(None, *[-0.5] * num_tokens),
        policy_versions=(None, *[0] * num_tokens),
        weights=(1.0,) * (num_tokens + 1),
        calibration_logprobs=(None,) * (num_tokens + 1),
        reward=1.0,
    )


def reviewed(*plans, **lengths):
    """A rollout under review, in which the second of two plans follows on a correction."""
    return asyncio.run(write(make_tools(engine_of(*plans)), **lengths))


def spans_of(text):
    return [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]


def with_first_review(trajectory, **changes):
    (turn,) = trajectory.turns
    first, *rest = turn.reviews
    return replace(trajectory, turns=(replace(turn, reviews=(replace(first, **changes), *rest)),))


def review_lines(trajectory):
    group = Group(group_id="g", task_id="t1", members=(Member(trajectory=trajectory, origin=Origin.SEMI_ON_POLICY),))
    return [str(line).strip() for line in group_lines(group, "spell", LetterChat()) if "review of" in str(line)]


def test_rejected_text_is_struck_through_where_it_stood():
    shown = coloured(reviewed("abXd", f"{RIGHT};"), LetterChat())
    assert shown.plain == "[spell]ab[-Xd-]{+cd+}efgh;"
    assert spans_of(shown) == [
        ("[spell]", COLOURS[TokenSource.PROMPT]),
        ("ab", COLOURS[TokenSource.POLICY]),
        ("[-Xd-]", REJECTED),
        ("{+cd+}", COLOURS[TokenSource.INTERVENTION]),
        ("efgh;", COLOURS[TokenSource.POLICY]),
    ]
    assert "strike" in REJECTED


def test_two_corrections_side_by_side_keep_apart_what_each_replaced():
    # behind the correction `cd` the policy slips at once, so that a second correction follows on the first
    trajectory = reviewed("abXd", "abcdXf", f"{RIGHT};")
    assert coloured(trajectory, LetterChat()).plain == "[spell]ab[-Xd-]{+cd+}[-Xf-]{+ef+}gh;"
    spans = trajectory_json(trajectory, LetterChat())["spans"]
    assert [span["text"] for span in spans] == ["[spell]", "ab", "cd", "ef", "gh;"]


def test_a_rollout_that_was_kept_shows_its_tokens_alone():
    assert coloured(reviewed(f"{RIGHT};"), LetterChat()).plain == f"[spell]{RIGHT};"


def test_rejected_words_are_not_read_as_markup_and_cannot_steer_the_terminal():
    trajectory = with_first_review(reviewed("abXd", f"{RIGHT};"), rejected_ids=tuple(map(ord, "[red]\x1b[2J")))
    shown = coloured(trajectory, LetterChat())
    assert "[-[red]\\x1b[2J-]" in shown.plain
    terminal = Console(file=StringIO(), force_terminal=True, color_system="truecolor")
    terminal.print(shown)
    assert "\x1b[2J" not in terminal.file.getvalue()
    assert "\x1b[9;31m" in terminal.file.getvalue()  # struck through, red


def test_a_verdict_that_is_no_token_has_a_line():
    trajectory = reviewed(f"{RIGHT};")
    (turn,) = trajectory.turns
    judged = replace(turn, results=(ToolResult(name="tests", content="failed: 3\x1b is not 4"),))

    def verdicts(trajectory):
        member = Member(trajectory=trajectory, origin=Origin.ROOT)
        group = Group(group_id="g", task_id="t1", members=(member,))
        return [str(line).strip() for line in group_lines(group, "spell", LetterChat()) if "tests:" in str(line)]

    assert verdicts(replace(trajectory, turns=(judged,))) == ["tests: failed: 3\\x1b is not 4"]
    assert verdicts(trajectory) == []


def test_every_review_has_a_line():
    lines = review_lines(reviewed("abXd", f"{RIGHT};"))
    assert lines == [
        "turn 0: review of tokens 7 to 10: revised, cut at 9, tokens rejected: 2, written: 2",
        "turn 0: review of tokens 11 to 14: kept",
    ]


def test_a_line_tells_what_else_is_known():
    (line,) = review_lines(reviewed("abcdefX;", f"{RIGHT};", chunk_tokens=8, max_intervention_tokens=8))
    assert line.endswith("the correction ends the turn, it holds a private value of the evidence")
    spoken = with_first_review(reviewed("abXd", f"{RIGHT};"), quote="X\x1bd", reason="c\nis next")
    assert review_lines(spoken)[0].endswith("written: 2, quote: X\\x1bd, reason: c\\nis next")


def test_every_outcome_is_named():
    trajectory = reviewed(f"{RIGHT};")
    for outcome in ReviewOutcome:
        assert f": {outcome.value}" in review_lines(with_first_review(trajectory, outcome=outcome))[0]


def test_the_legend_shows_how_rejected_text_looks():
    assert (("[-rejected in a review-]", REJECTED)) in spans_of(legend())


def test_json_holds_what_was_rejected():
    (first, second) = trajectory_json(reviewed("abXd", f"{RIGHT};"), LetterChat())["reviews"]
    assert (first["rejected"], first["outcome"], first["cut"]) == ("Xd", "revised", 9)
    assert (second["rejected"], second["cut"]) == ("", None)


def test_what_the_reviews_came_to_is_said_as_in_a_report():
    members = (
        Member(trajectory=reviewed("abXdefgh;", judge=None)),
        Member(trajectory=reviewed("abXd", f"{RIGHT};"), origin=Origin.SEMI_ON_POLICY),
    )
    text = reviews_text([Group(group_id="g", task_id="t1", members=members)])
    assert "The judge reviewed 2 chunks of 1 rollouts: kept 1 (50.0 %), revised 1 (50.0 %)." in text
    assert "It wrote 22.2 % of the tokens" in text
    assert "policy wrote alone: 0.0 %. Success of members under review: 100.0 %." in text
    assert reviews_text([Group(group_id="g", task_id="t1", members=members[:1])]) == ""


def branched_group(**settings):
    """Four rollouts, of which that at place 2 is branched thrice and that at 3 once; see test_rail.py."""
    return collect(begun(make_config(**settings)))[0]


def shown(group):
    terminal = Console(file=StringIO(), width=200, color_system=None)
    for line in group_lines(group, "find it", LetterChat()):
        terminal.print(line)
    return terminal.file.getvalue().splitlines()


def test_a_branched_task_is_shown_as_a_tree():
    group = branched_group()
    tree = Console(file=StringIO(), width=200, color_system=None)
    tree.print(branch_tree(group))
    lines = tree.file.getvalue().splitlines()
    assert lines[0] == "16 members, 16 others"
    assert [line for line in lines if line.startswith(("├── ", "└── "))] == [
        f"{'└' if index == 3 else '├'}── [{index}] reward {int(index == 3)}, 2 turns, 25 tokens, done"
        for index in range(4)
    ]
    first, second, third, fourth = [line.strip(" │├└─") for line in lines if "before turn" in line]
    assert first == (
        "before turn 1: 4 aggressive at temperature 1.04, by warm up, entropy 0.618, predicted +0.000, "
        "gained +0.108, kept"
    )
    assert "8 mild at temperature 0.8" in second
    assert third.endswith("gained -0.264, not kept")
    assert "not kept" in fourth
    below = lines.index(next(line for line in lines if first in line))
    assert [line.strip(" │├└─") for line in lines[below + 1 : below + 5]] == [
        f"[{index}] reward {int(index < 6)}, 2 turns, 25 tokens, done" for index in range(4, 8)
    ]
    assert sum("not a member, reward" in line for line in lines) == 16


def test_of_a_branch_only_its_own_turns_are_printed():
    lines = shown(branched_group(rollout_budget=8))
    at = next(index for index, line in enumerate(lines) if line.startswith("[4] branch"))
    assert lines[at + 1 : at + 3] == ["    as [2] before turn 1", "4,1+b;"]
    root = next(index for index, line in enumerate(lines) if line.startswith("[2] root"))
    assert lines[root + 1].startswith("[find it]2,0+l;<")
    assert lines[root + 1].endswith(">2,1+a;")


def test_a_branch_from_the_start_is_printed_whole_and_a_nested_one_below_its_parent():
    group = branched_group(rollout_budget=8)
    record = group.branches[0]
    fresh = replace(record, parent=None, turn=0, predicted=None, gained=None, entropy=None, rule="", regime="")
    nested = replace(record, parent=4, turn=1, rollouts=(5,), gained=None, is_kept=True)
    other = replace(group, branches=(replace(fresh, rollouts=(4, 6, 7)), nested))
    lines = shown(other)
    assert "├── at the start: 3 at temperature 1.04, kept" in [line.replace("└", "├") for line in lines]
    assert any(line.strip(" │├└─").startswith("before turn 1: 1 aggressive") for line in lines)
    assert any("predicted +0.000, no reward came, kept" in line for line in lines)
    at = next(index for index, line in enumerate(lines) if line.startswith("[4] branch"))
    assert lines[at + 1].startswith("[find it]2,0+l;")


def test_what_was_rejected_and_is_trained_on_all_the_same_is_shown_among_the_members():
    group = branched_group(train_on_rejected=True)
    lines = shown(group)
    assert lines[2] == "32 members, 0 others"
    assert not any("not a member" in line for line in lines)
    assert sum(line.startswith("    as [") for line in lines) == 28


def test_words_in_a_branch_cannot_steer_the_terminal():
    group = branched_group(rollout_budget=8)
    record = replace(group.branches[0], regime="[red]\x1b[2J", rule="a\nb")
    text = "\n".join(shown(replace(group, branches=(record,))))
    assert "[red]\\x1b[2J" in text
    assert "\x1b" not in text
    assert "by a\\nb" in text


def test_the_name_of_a_task_cannot_steer_the_terminal():
    (line,) = shown(Group(group_id="g", task_id="[red]\x1b[2J\nb", members=()))[1:]
    assert line == "task [red]\\x1b[2J\\nb: find it"


def test_a_failed_rollout_says_why_in_words_that_cannot_steer_the_terminal():
    member = branched_group(rollout_budget=4).members[0]
    message = "led through the same turns again, press answered '\x1b[2J'" + 999 * " so"
    failed = replace(
        member.trajectory,
        reward=None,
        failure=FailureKind.REPLAY_MISMATCH,
        failure_message=message,
        stop_reason=StopReason.FAILED,
    )
    group = Group(group_id="g", task_id="t1", members=(replace(member, trajectory=failed),))
    said = next(line for line in shown(group) if "led through" in line)
    assert said.startswith("    led through the same turns again, press answered '\\x1b[2J' so so")
    assert sum(line.count(" so") for line in shown(group)) < 200
    assert group_json(group, "find it", LetterChat())["members"][0]["failure_message"] == message


def test_json_holds_the_branches():
    group = branched_group(rollout_budget=8)
    (branch,) = group_json(group, "find it", LetterChat())["branches"]
    assert (branch["parent"], branch["turn"], branch["rollouts"], branch["regime"]) == (
        2,
        1,
        [4, 5, 6, 7],
        "aggressive",
    )
    assert branch["hidden"] == []


def test_what_the_branches_came_to_is_said_as_in_a_report():
    text = branches_text([branched_group()])
    assert text.startswith("Rollouts were branched 4 times into 28 more; 2 of the branches were kept.")
    assert "Chosen by: warm up 4 (100.0 %)." in text
    assert branches_text([replace(branched_group(rollout_budget=4))]) == ""


def test_a_models_words_are_shown_and_never_read_as_markup():
    shown = coloured(written("[red]x[/] \x1b[2J"), Letters())
    assert shown.plain == "Q[red]x[/] \\x1b[2J"
    assert [str(span.style) for span in shown.spans] == ["dim", "cyan"]


def test_line_breaks_stay_and_other_control_characters_are_spelled_out():
    assert printable("a\nb\tc\rd\x00") == "a\nb\tc\\rd\\x00"


def test_a_trajectory_in_json_has_one_span_per_writer():
    assert trajectory_json(written("AB"), Letters())["spans"] == [
        {"source": "prompt", "text": "Q"},
        {"source": "policy", "text": "AB"},
    ]


def test_reviews_are_shown_with_where_they_cut():
    review = ReviewRecord(
        outcome=ReviewOutcome.REVISED,
        start=1,
        end=4,
        cut=2,
        rejected_ids=(66, 67),
        correction_tokens=1,
        quote="B",
        reason="[red]wrong",
    )
    turn = Turn(start=1, end=3, message=AssistantTurn(content="AB"), reviews=(review,))
    under_review = replace(written("AB"), turns=(turn,))
    assert trajectory_json(under_review, Letters())["reviews"] == [
        {
            "turn": 0,
            "outcome": "revised",
            "start": 1,
            "end": 4,
            "cut": 2,
            "rejected": "BC",
            "correction_tokens": 1,
            "ends_turn": False,
            "holds_answer": False,
            "quote": "B",
            "reason": "[red]wrong",
        }
    ]
    group = Group(group_id="g", task_id="t", members=(Member(trajectory=under_review),))
    lines = [str(line) for line in group_lines(group, "Q", Letters())]
    assert lines[-1] == (
        "    turn 0: review of tokens 1 to 3: revised, cut at 2, tokens rejected: 2, written: 1, quote: B, "
        "reason: [red]wrong"
    )
