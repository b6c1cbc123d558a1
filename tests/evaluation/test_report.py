import json

import pytest
from tests.evaluation.synthetic_run import write_run

from midcourse.errors import DataError
from midcourse.evaluation.compare import compare_runs
from midcourse.evaluation.report import intervention_sentences, write_report
from midcourse.recording.writer import RecordingConfig, RunWriter


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
    assert "No step was intervened on" in path.read_text()
    assert not (path.parent / "outcomes_0.png").exists()


def test_a_run_that_has_only_begun_gets_a_report(tmp_path):
    RunWriter(tmp_path, RecordingConfig(), resolved_config='[method]\nname = "rti"\n').close()
    assert "0 updates" in write_report(tmp_path).read_text()


def test_words_of_a_model_are_escaped_in_the_examples(tmp_path):
    text = write_report(write_run(tmp_path / "rti", updates=3)).read_text()
    assert "&lt;script&gt;the region is missing" in text
    assert "<script>" not in text
    assert text.count("<pre>draft") == 3


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
