import json
import math
import re

import pytest
from tests.evaluation.reviewed_run import letters, write_reviewed_run
from tests.evaluation.synthetic_run import write_run

from midcourse.errors import DataError
from midcourse.evaluation.compare import compare_runs
from midcourse.evaluation.markdown import visible
from midcourse.evaluation.report import intervention_sentences, write_report
from midcourse.recording.writer import RecordingConfig, RunWriter, trajectory_path


def test_a_report_of_several_runs_has_its_figures_beside_it(tmp_path):
    folders = [
        write_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, updates=3)
        for method in ("rti", "grpo")
        for seed in (0, 1)
    ]
    text = write_report(folders, tmp_path / "report").read_text()
    for name in ("progress", "difficulty", "perplexity", "turns_0", "outcomes_0"):
        assert f"({name}.png)" in text
        assert (tmp_path / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "At equal cost" in text
    assert text.count("Cost per update, ") == len(folders)
    assert json.loads((tmp_path / "report" / "comparison.json").read_text())["runs"]


def test_a_run_without_interventions_says_so_and_draws_no_outcomes(tmp_path):
    path = write_report(write_run(tmp_path / "grpo", method="grpo", updates=2))
    text = path.read_text()
    assert "No step was intervened on" in text
    assert "judge" not in text
    assert "something to learn from" not in text  # not counted in this run
    assert "after interventions" not in text
    assert {file.name for file in path.parent.glob("*.png")} == {
        *("progress.png", "difficulty.png", "turns_0.png", "wall_clock.png", "authors_0.png")
    }


def test_a_run_that_has_only_begun_gets_a_report(tmp_path):
    RunWriter(tmp_path, RecordingConfig(), resolved_config='[method]\nname = "rti"\n').close()
    assert "0 updates" in write_report(tmp_path).read_text()


def test_words_of_a_model_are_escaped_in_the_examples(tmp_path):
    text = write_report(write_run(tmp_path / "rti", updates=3)).read_text()
    assert "&lt;script&gt;the region is missing" in text
    assert "<script>" not in text
    assert text.count("<pre>draft") == 3


def test_a_damaged_file_of_rollouts_is_left_out_and_named(tmp_path):
    folder = write_run(tmp_path / "rti", updates=3)
    trajectory_path(folder, 2).write_bytes(b"PAR1 cut off")

    with pytest.warns(UserWarning, match=r"no example is taken from it") as told:
        text = write_report(folder).read_text()

    assert any(str(trajectory_path(folder, 2)) in str(warning.message) for warning in told)
    assert "Update 2, task" not in text
    assert "Update 3, task" in text


def test_drafts_are_decoded_where_a_decoder_is_given(tmp_path):
    text = write_report(write_run(tmp_path / "rti", updates=2), decode=lambda ids: f"<{sum(ids)}>").read_text()
    assert "draft      &lt;9&gt;" in text
    assert "corrected  &lt;10&gt;" in text


def test_the_sentences_hold_the_records_numbers(tmp_path):
    run = compare_runs([write_run(tmp_path / "rti", updates=3)]).runs[0]
    text = intervention_sentences(run)
    flagged = sum(run.outcomes.values()) - run.outcomes["valid"]
    assert f"flagged {flagged:,.0f} " in text
    assert f"accepted {run.outcomes['accepted']:,.0f} " in text
    assert f"{run.num_rescued:,.0f} groups" in text


def test_several_runs_need_a_place_for_the_report(tmp_path):
    folders = [write_run(tmp_path / name, updates=1) for name in "ab"]
    with pytest.raises(DataError, match="needs a folder"):
        write_report(folders)


def test_a_report_on_reviewed_rollouts_speaks_of_the_reviews(tmp_path):
    path = write_reviewed_run(tmp_path)
    text = write_report(path, decode=letters).read_text()
    assert "No step was intervened on" not in text
    assert "The judge reviewed 16 chunks of 8 rollouts: kept 12 (75.0 %), revised 4 (25.0 %)." in text
    assert "33.3 % of the groups had something to learn from." in text
    assert "policy wrote alone: 0.0 % in the first update, 100.0 % in the last." in text
    assert "under review: 100.0 % in the first update with reviews, 100.0 % in the last." in text
    assert "| corrections |" in text
    assert "after interventions" not in text
    assert "a mean over the last 5 updates, or all so far where they are fewer, without members under review." in text
    assert "| mintrl | 0 | - | 3 |" in text
    assert "| num_revised | 4 |" in text
    assert "review/" not in text  # reviews by outcome stand in the sentence: a mean over updates says less
    assert "rejected    <del>Xd</del>" in text
    for name in ("success", "correction_logprobs", "token_fraction", "reviews_0", "authors_0", "wall_clock"):
        assert f"({name}.png)" in text
        assert (path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (path / "outcomes_0.png").exists()
    assert not (path / "perplexity.png").exists()
    assert json.loads((path / "comparison.json").read_text())["runs"][0]["reviews"]["outcomes"]["revised"] == 4


def test_what_a_reviewed_run_corrected_is_in_the_table(tmp_path):
    comparison = compare_runs([write_reviewed_run(tmp_path / "mintrl"), write_run(tmp_path / "rti", updates=2)])
    row = next(line for line in comparison.table().splitlines() if line.startswith("| mintrl"))
    assert row.split("|")[-3].strip() == "4"


def test_names_that_users_and_models_wrote_are_escaped_everywhere(tmp_path):
    """Of methods, settings, splits, tags, roles and failures; in Markdown, in JSON, in figures and on the terminal."""
    hostile = "<script>|`x` $\\frac$ _\x1b"
    estimate = {"value": 0.5, "low": None, "high": None}
    sheet = {"pass_at": {"1": estimate}, "pass_hat": {"1": estimate}}
    for index in range(2):
        method = f'[method]\nname = {json.dumps(hostile)}\nnote = "{index}|<i>"\n'
        with RunWriter(tmp_path / str(index), RecordingConfig(tensorboard=False), resolved_config=method) as writer:
            spoken = {f"rollout/tokens/{hostile}": 2, f"rollout/errors/{hostile}": 1, f"intervention/{hostile}": 3}
            drawn = {"intervention/perplexity_accepted": math.inf, "turns/1": 1, "time/rollout": 1, "time/update": 1}
            writer.write_metrics(1, {**spoken, **drawn, f"time/rollout/{hostile}": 1, "group/pass_before": 1})
            split = f"{hostile}\ud800"
            writer.write_evaluation(1, {"splits": {split: sheet}, "tags": {f"{split}/hard": sheet}})
    folders = [tmp_path / "0", tmp_path / "1"]
    text = write_report(folders, tmp_path / "report").read_text()
    assert not re.search(r"<script>|<i>|`|\$|\x1b", text)
    widths = {len(line.split("|")) for line in text.splitlines() if "script" in line and line.startswith("| ")}
    headings = {len(line.split("|")) for line in text.splitlines() if line.startswith("| --- ")}
    assert widths <= headings
    stored = json.loads((tmp_path / "report" / "comparison.json").read_text(), parse_constant=pytest.fail)
    assert stored["runs"][0]["intervention_means"]["intervention/perplexity_accepted"] == "inf"
    shown = compare_runs(folders)
    assert "\x1b" not in shown.table(escape=visible) + shown.cost_tables(escape=visible)


def test_a_run_with_a_teacher_claims_no_intervention(tmp_path):
    with RunWriter(tmp_path, RecordingConfig(tensorboard=False), resolved_config='[method]\nname = "opd"\n') as writer:
        cost = {"rollout/scored_tokens/teacher": 40.0, "time/rollout": 1.0, "time/rollout/teacher": 2.0}
        writer.write_metrics(1, {"rollout/count": 8.0, "intervention/teacher_scored": 8.0, **cost})
    text = write_report(tmp_path).read_text()
    assert "1 updates, 8 rollouts. No step was intervened on." in text
    assert "## Statistics of the method" in text
    assert "| teacher_scored | 8 |" in text
    assert "| teacher | 0 | 40 | 0 | 2.0 |" in text
    assert not {"judge", "correction.", "Example"} & {*text.split()}
