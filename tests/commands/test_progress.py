"""How far a command is: plain lines in a file, a bar on a terminal."""

import io
import logging

import pytest
from rich.console import Console

from midcourse.commands import progress
from midcourse.commands.progress import progress_bar

logger = logging.getLogger("midcourse.somewhere")


class Clock:
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


@pytest.fixture
def shown(monkeypatch):
    def make(*, terminal: bool) -> io.StringIO:
        file = io.StringIO()
        monkeypatch.setattr(progress, "errors", Console(file=file, force_terminal=terminal, width=100, highlight=False))
        return file

    return make


def test_in_a_file_a_stage_is_a_line_at_once_and_what_is_counted_one_every_thirty_seconds(clock, shown):
    file = shown(terminal=False)
    with progress_bar("updates", 40) as advance:
        logger.info("loading the policy %s", "[red]x")
        assert file.getvalue() == "[     0 s] loading the policy [red]x\n"  # not when all is over
        for update in range(1, 36):
            clock.seconds += 2
            advance(update, "evaluating" if update == 15 else "")
    assert file.getvalue().splitlines()[1:] == [
        "[    30 s] updates 15/40, evaluating",
        "[    60 s] updates 30/40",
        "[    70 s] updates 35/40",
    ]


def test_what_was_counted_before_a_stage_is_told_before_it(clock, shown):
    file = shown(terminal=False)
    with progress_bar("rollouts", None) as advance:
        advance(1, total=3)
        advance(2, total=3)
        logger.info("scores")
    assert [line[11:] for line in file.getvalue().splitlines()] == ["rollouts 1/3", "rollouts 2/3", "scores"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_warning_of_a_stage_is_shown_and_nothing_is_heard_afterwards(terminal, shown):
    file = shown(terminal=terminal)
    with progress_bar("updates", 1):
        logger.warning("3 of 5 tasks left out")
    assert "warning: 3 of 5 tasks left out" in file.getvalue()
    before = file.getvalue()
    logger.info("another stage")
    assert file.getvalue() == before
    assert not logger.isEnabledFor(logging.INFO)


def test_on_a_terminal_the_bar_has_the_stages_name_until_something_is_counted(shown):
    file = shown(terminal=True)
    with progress_bar("updates", 2) as advance:
        logger.info("starting the server (log: /somewhere/vllm.log; at most 900 s)")
        bar = advance.__self__
        assert bar._progress.tasks[0].description == "starting the server"
        advance(1, "[b]")
        assert bar._progress.tasks[0].description == "updates"
    assert "(log: /somewhere/vllm.log; at most 900 s)" in file.getvalue()
    assert "[b]" in file.getvalue()
