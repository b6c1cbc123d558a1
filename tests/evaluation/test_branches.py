import json
import math
from dataclasses import replace

import pytest
from matplotlib.image import imread
from tests.evaluation.branched_run import UPDATES, write_branched_run
from tests.evaluation.synthetic_run import write_run
from tests.evaluation.test_plots import colours_in, read

from midcourse.branching.skill import pearson
from midcourse.evaluation.branches import branch_sentences, branch_table, summarize_branches
from midcourse.evaluation.compare import compare_runs, recorded_branches
from midcourse.evaluation.markdown import visible
from midcourse.evaluation.plots import COLOURS, plot_actions, plot_gains, plot_rollouts_used
from midcourse.evaluation.report import write_report
from midcourse.recording.reader import RunReader
from midcourse.types import BranchRecord


def branch(predicted, gained, *, rule="warm_up", **more):
    return BranchRecord(parent=0, turn=1, rollouts=(1,), rule=rule, predicted=predicted, gained=gained, **more)


RECORDS = [
    branch(0.2, 0.1, entropy=0.1, chance=0.05),
    branch(0.1, -0.1, entropy=0.2, chance=0.0),
    branch(-0.1, -0.2, entropy=0.3),
    branch(0.3, 0.4, rule="controller", entropy=0.2, chance=0.1),
    branch(0.1, None, rule="exploration"),
]
LINES = [
    {
        "update": 1,
        "group/count": 2,
        "intervention/branches": 3,
        "intervention/branches_kept": 1,
        "intervention/branch_rollouts": 12,
        "intervention/rejected_rollouts": 8,
        "intervention/rollouts_a_task": 10.0,
        "intervention/rule/warm_up": 3,
        "intervention/action/4_mild": 2,
        "intervention/action/8_mild": 1,
        "intervention/success_initial": 0.25,
        "intervention/success_branches": 0.5,
        "intervention/controller/is_live": 0.0,
    },
    {
        "update": 2,
        "group/count": 1,
        "intervention/branches": 2,
        "intervention/branches_kept": 2,
        "intervention/branch_rollouts": 8,
        "intervention/rejected_rollouts": 0,
        "intervention/rollouts_a_task": 4.0,
        "intervention/rule/controller": 1,
        "intervention/rule/exploration": 1,
        "intervention/action/4_mild": 2,
        "intervention/success_initial": 1.0,
        "intervention/success_branches": 0.8,
        "intervention/controller/is_live": 1.0,
    },
]


@pytest.fixture(scope="module")
def branched(tmp_path_factory):
    return write_branched_run(tmp_path_factory.mktemp("runs") / "rail")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "grpo", method="grpo", updates=2)


def test_numbers_are_pooled_over_what_each_is_a_mean_of():
    found = summarize_branches(LINES, lambda: RECORDS)
    assert (found.num_branches, found.num_kept, found.num_rollouts) == (5, 3, 20)
    assert found.used == pytest.approx((2 * 10 + 4) / 3)
    assert found.success_initial == pytest.approx((2 * 0.25 + 1) / 3)
    assert found.success_branches == pytest.approx((4 * 0.5 + 8 * 0.8) / 12)
    assert found.rules == {"warm up": 3, "controller": 1, "exploration": 1}
    assert found.actions == {"4 mild": 4, "8 mild": 1}
    assert found.first_live_update == 2


def test_gains_and_predictions_are_of_all_branches_that_have_them():
    gains = summarize_branches(LINES, lambda: RECORDS).gains
    assert gains.branches == 4
    assert gains.mean == pytest.approx(0.05)
    assert gains.positive_fraction == 0.5
    assert gains.over_chance == pytest.approx((0.05 - 0.1 + 0.3) / 3)
    assert gains.told.mean_absolute_error == pytest.approx((0.1 + 0.2 + 0.1 + 0.1) / 4)
    assert (gains.told.sign_agreement, gains.told.majority_agreement, gains.told.balanced_accuracy) == (0.75, 0.5, 0.75)
    # predicted .2 .1 -.1 .3 (mean .125), gained .1 -.1 -.2 .4 (mean .05)
    covariance = 0.075 * 0.05 + 0.025 * 0.15 + 0.225 * 0.25 + 0.175 * 0.35
    spreads = math.sqrt(0.075**2 + 0.025**2 + 0.225**2 + 0.175**2) * math.sqrt(0.05**2 + 0.15**2 + 0.25**2 + 0.35**2)
    assert gains.told.pearson == pytest.approx(covariance / spreads)
    assert gains.entropy_pearson == pytest.approx(pearson([0.1, 0.2, 0.3, 0.2], [0.1, -0.1, -0.2, 0.4]))
    live = summarize_branches(LINES, lambda: RECORDS).live_gains
    assert (live.branches, live.mean, live.told.pearson) == (1, 0.4, None)


def test_the_sentences_hold_the_numbers():
    text = " ".join(branch_sentences(summarize_branches(LINES, lambda: RECORDS)))
    assert text.startswith("Rollouts were branched 5 times into 20 more; 3 of the branches were kept.")
    assert "A task took 8.0 rollouts on average." in text
    assert "Chosen by: warm up 3 (60.0 %), controller 1 (20.0 %), exploration 1 (20.0 %)." in text
    assert "Actions: 4 mild 4 (80.0 %), 8 mild 1 (20.0 %)." in text
    assert "The controller decided from update 2 on." in text
    assert "Success: 50.0 % of rollouts from the start, 70.0 % of kept branches." in text
    assert "A branch gained +0.050 on average, +0.083 over what chance would bring; 50.0 % gained something." in text
    assert "the sign right in 75.0 % (always the same answer: 50.0 %; balanced: 75.0 %), r = 0.92" in text
    assert "A branch of the controller gained +0.400 on average" in text


def test_the_table_has_a_cell_for_each_number():
    (_, _, row) = branch_table([("rail", summarize_branches(LINES, lambda: RECORDS))]).splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:6] == ["rail", "8.0", "5", "60.0 %", "+0.050", "+0.083"]
    assert cells[6:12] == ["0.125", "75.0 %", "50.0 %", "75.0 %", "0.92", "-0.46"]
    assert cells[12:] == ["50.0 %", "70.0 %"]


def test_of_a_run_whose_rollouts_were_not_kept_the_counts_are_known(tmp_path):
    folder = write_branched_run(tmp_path / "rail", trajectories=False)
    found = compare_runs([folder]).runs[0].branches
    assert found.num_branches > 0
    assert (found.gains, found.live_gains) == (None, None)
    text = write_report(folder).read_text()
    assert "gained" not in text.split("## Branches")[0]
    assert not (folder / "gains_0.png").exists()
    assert (folder / "actions_0.png").exists()


def test_a_method_that_measures_no_gain_has_counts_alone():
    lines = [{"update": 1, "intervention/branches": 2, "intervention/branch_rollouts": 4, "group/count": 1}]
    records = [BranchRecord(parent=0, turn=1, rollouts=(1, 2), rule="entropy", entropy=0.3)] * 2
    found = summarize_branches(lines, lambda: records)
    assert (found.num_kept, found.gains, found.rules) == (None, None, {"entropy": 2})
    assert " ".join(branch_sentences(found)) == (
        "Rollouts were branched 2 times into 4 more. Chosen by: entropy 2 (100.0 %)."
    )
    assert branch_table([("arpo", found)]).splitlines()[-1].count("| - ") == 12


def test_without_branches_there_is_nothing_to_say_and_no_record_is_read():
    def never():
        raise AssertionError("asked for records")

    assert summarize_branches([{"update": 1, "intervention/branches": 0}, {"update": 2}], never) is None
    assert summarize_branches([], never) is None


def test_numbers_that_a_damaged_file_holds_are_no_numbers():
    damaged = [branch(math.nan, 0.1), branch(0.1, math.inf), branch(0.2, 0.3, chance=math.nan, entropy=math.inf)]
    gains = summarize_branches(LINES, lambda: damaged).gains
    assert (gains.branches, gains.told.traces, gains.over_chance, gains.entropy_pearson) == (2, 1, None, None)


def test_branches_are_read_from_a_run_without_its_rollouts(branched):
    reader = RunReader(branched)
    for update in range(1, UPDATES + 1):
        whole = [record for group in reader.trajectories(update) for record in group.branches]
        assert reader.branches(update) == whole
        assert whole
    assert [record.rule for record in recorded_branches(reader)].count("controller") == 2
    assert {record.hidden for record in recorded_branches(reader)} == {()}


def test_a_report_on_a_branched_run(branched, plain, tmp_path):
    text = write_report([branched, plain], tmp_path / "report").read_text()
    assert "Rollouts were branched 14 times" in text
    assert "No step was intervened on." in text  # of the other run
    assert text.count("No step was intervened on.") == 1
    assert "The controller decided from update 3 on." in text
    assert "## Branches" in text
    assert "| run | rollouts a task |" in text
    for name in ("gains_0", "actions_0", "rollouts_used"):
        assert f"({name}.png)" in text
        assert (tmp_path / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "report" / "gains_1.png").exists()
    assert "| policy, in branches |" in text
    assert "| rule/" not in text  # counts stand in the sentences
    stored = json.loads((tmp_path / "report" / "comparison.json").read_text())["runs"]
    assert stored[0]["branches"]["num_branches"] == 14
    assert stored[1]["branches"] is None
    # What the policy writes in branches is the policy's.
    row = next(line for line in text.splitlines() if line.startswith("| rail | 0 |"))
    assert row.split("|")[10].strip() == "0"


def test_a_report_without_branches_has_no_such_section(plain):
    comparison = compare_runs([plain])
    assert comparison.branch_table() == ""
    text = write_report(plain).read_text()
    assert "## Branches" not in text
    assert not (plain / "rollouts_used.png").exists()


def test_predicted_and_realised_gains_are_drawn_by_who_chose(tmp_path):
    path = plot_gains(RECORDS * 20, "rail", tmp_path / "a.png")
    pixels = imread(path)
    assert pixels.shape == (560, 1000, 4)
    assert plot_gains(RECORDS[-1:], "rail", tmp_path / "b.png") is None
    alone = [replace(RECORDS[0], rule="$\\frac$_<b>")] * 3
    assert plot_gains(alone, "_$x$", tmp_path / "c.png") is not None  # no spread, hostile names


def test_actions_are_stacked_over_updates(branched, tmp_path):
    assert colours_in(plot_actions(LINES, "rail", tmp_path / "a.png")) == [COLOURS[0], COLOURS[1]]
    assert plot_actions([{"update": 1}], "rail", tmp_path / "b.png") is None
    _, lines = read(branched)
    assert plot_actions(lines[str(branched)], "rail", tmp_path / "c.png") is not None


def test_rollouts_used_are_drawn_for_every_run_where_one_branches(branched, plain, tmp_path):
    assert colours_in(plot_rollouts_used(*read(branched, plain), tmp_path / "a.png")) == [COLOURS[0], COLOURS[1]]
    assert plot_rollouts_used(*read(plain), tmp_path / "b.png") is None


def test_names_are_escaped_in_sentences_and_tables():
    hostile = "<script>|`x`_\x1b"
    lines = [{**LINES[0], f"intervention/action/{hostile}": 1.0, f"intervention/rule/{hostile}": 1.0}]
    records = [branch(0.1, 0.2, rule=hostile)]
    found = summarize_branches(lines, lambda: records)
    text = " ".join(branch_sentences(found)) + branch_table([(hostile, found)])
    assert "<script>" not in text
    assert "`" not in text
    assert "\x1b" not in text
    assert "\x1b" not in branch_table([(hostile, found)], escape=visible)
