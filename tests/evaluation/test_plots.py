import pytest
from matplotlib.image import imread
from tests.evaluation.reviewed_run import write_reviewed_run
from tests.evaluation.synthetic_run import write_run

from midcourse.evaluation.compare import compare_runs
from midcourse.evaluation.plots import (
    COLOURS,
    plot_authors,
    plot_correction_logprobs,
    plot_reviews,
    plot_success,
    plot_turns,
    plot_wall_clock,
)
from midcourse.recording.reader import RunReader


def colours_in(path):
    """Return which of the palette's colours a figure has more than a few pixels of."""
    pixels = (imread(path)[..., :3] * 255).round().astype(int)
    found = []
    for colour in COLOURS[:-1]:  # black is the text's
        parts = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
        if (pixels == parts).all(axis=-1).sum() > 20:
            found.append(colour)
    return found


def read(*folders):
    return compare_runs(folders), {str(folder): RunReader(folder).metrics() for folder in folders}


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory):
    return write_reviewed_run(tmp_path_factory.mktemp("runs") / "mintrl")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "grpo", method="grpo", updates=2)


def test_reviews_are_stacked_by_outcome(reviewed, tmp_path):
    _, lines = read(reviewed)
    path = plot_reviews(lines[str(reviewed)], "mintrl", tmp_path / "a.png")
    assert colours_in(path) == [COLOURS[0], COLOURS[1]]  # kept, revised
    only = [{"update": 1, "intervention/review/kept": 0.0, "intervention/review/judge_failed": 2.0}]
    assert colours_in(plot_reviews(only, "mintrl", tmp_path / "b.png")) == [COLOURS[5]]


def test_tokens_by_author_are_those_of_one_rollout(reviewed, tmp_path):
    _, lines = read(reviewed)
    path = plot_authors(lines[str(reviewed)], "mintrl", tmp_path / "a.png")
    assert colours_in(path) == [COLOURS[0], COLOURS[1]]  # policy, intervention; a world without answers
    lines = [{"update": 1, "tokens/environment": 5.0, "group/members": 2.0}]
    assert colours_in(plot_authors(lines, "x", tmp_path / "b.png")) == [COLOURS[2]]
    assert plot_authors([{"update": 1, "tokens/policy": 5.0}], "x", tmp_path / "c.png") is None  # of how many?


def test_turns_are_drawn_only_where_some_rollout_has_more_than_one(tmp_path):
    single = {"update": 1, "turns/1": 1.0}
    assert plot_turns([single, single], "x", tmp_path / "a.png") is None
    assert plot_turns([], "x", tmp_path / "b.png") is None
    lines = [single, {"update": 2, "turns/1": 0.5, "turns/2": 0.5}]
    assert colours_in(plot_turns(lines, "x", tmp_path / "c.png")) == [COLOURS[0], COLOURS[1]]


def test_success_is_drawn_for_every_run_where_one_has_reviews(reviewed, plain, tmp_path):
    assert colours_in(plot_success(*read(reviewed, plain), tmp_path / "a.png")) == [COLOURS[0], COLOURS[1]]
    assert plot_success(*read(plain), tmp_path / "b.png") is None


def test_the_corrections_log_probabilities_are_drawn_where_there_are_any(reviewed, plain, tmp_path):
    assert colours_in(plot_correction_logprobs(*read(reviewed, plain), tmp_path / "a.png")) == [COLOURS[0]]
    assert plot_correction_logprobs(*read(plain), tmp_path / "b.png") is None


def test_the_wall_clock_has_a_colour_for_everyone_who_is_waited_for(reviewed, plain, tmp_path):
    assert len(colours_in(plot_wall_clock(*read(reviewed), tmp_path / "a.png"))) == 3  # update, judge, policy
    assert len(colours_in(plot_wall_clock(*read(plain), tmp_path / "b.png"))) == 1  # only the update was timed
    comparison, _ = read(plain)
    assert plot_wall_clock(comparison, {str(plain): [{"update": 1}]}, tmp_path / "c.png") is None


def test_no_reviews_draw_nothing(plain, tmp_path):
    _, lines = read(plain)
    assert plot_reviews(lines[str(plain)], "grpo", tmp_path / "a.png") is None
