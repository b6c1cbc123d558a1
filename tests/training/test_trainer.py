import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_run import SCENARIOS, Bomb, ParityEnvironment, run

from midcourse.errors import ConfigError, DataError, OccupiedError
from midcourse.training.trainer import check_tasks, draw_tasks


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What every scenario of training_run.py ended with."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent.parent / "src")])
    done = subprocess.run(
        [sys.executable, str(here / "training_run.py"), str(tmp_path_factory.mktemp("killed"))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_run_that_is_compared_with_trains_in_every_update(killed):
    metrics = killed["outcomes"]["never"]["metrics"]
    assert [line["update"] for line in metrics] == [1, 2, 3, 4]
    assert all(line["objective/optimizer_steps"] >= 1 for line in metrics)
    assert all(line["rollout/errors/total"] == 0 for line in metrics)
    assert [line["update"] for line in killed["outcomes"]["never"]["evaluations"]] == [0, 2, 4]
    assert killed["outcomes"]["never"]["journal"] == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_that_was_killed_and_resumed_ends_like_one_that_was_not(killed, scenario):
    deaths = len(SCENARIOS[scenario])
    assert killed["statuses"][scenario][:deaths] == [-9] * deaths
    assert killed["statuses"][scenario][-1] == 0
    assert killed["outcomes"][scenario] == killed["outcomes"]["never"]


def test_what_the_engine_took_from_its_cache_is_recorded_under_time(tmp_path):
    run(tmp_path, resume=False, bomb=Bomb(), updates=2)
    for text in (tmp_path / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        assert 0 < line["time/engine/prompt_tokens_reused"] < line["time/engine/prompt_tokens"]


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    run(tmp_path, resume=False, bomb=Bomb(), updates=1)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match="holds a run"):
        run(tmp_path, resume=False, bomb=Bomb(), updates=1)


def test_a_resumed_run_can_be_made_longer_but_not_shorter_and_keeps_its_tasks(tmp_path):
    run(tmp_path, resume=False, bomb=Bomb(), updates=2)
    with pytest.raises(ConfigError, match=r"training\.updates = 1: the run has 2 updates already"):
        run(tmp_path, resume=True, bomb=Bomb(), updates=1)
    with pytest.raises(ConfigError, match="must not change"):
        run(tmp_path, resume=True, bomb=Bomb(), updates=3, tasks_per_update=2)
    run(tmp_path, resume=True, bomb=Bomb(), updates=3)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2, 3]


def test_a_journal_of_other_tasks_is_an_error(tmp_path):
    run(tmp_path, resume=False, bomb=Bomb(), updates=1)
    journal = tmp_path / "journal" / "update_2" / "wave_0.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"request": {"update": 2}, "groups": 0, "crc32": 0}\n')
    with pytest.raises(DataError, match="other tasks"):
        run(tmp_path, resume=True, bomb=Bomb(), updates=2)


class Crash(Bomb):
    """Raises where the bomb would kill."""

    def at(self, moment):
        if moment == self.moment:
            raise RuntimeError(moment)


@pytest.mark.parametrize(
    ("moment", "place"), [("write_metrics", r"wave_0\.jsonl"), ("never", "step_2")], ids=["before", "after"]
)
def test_other_settings_are_not_mixed_into_a_run_with_or_without_a_checkpoint(moment, place, tmp_path):
    kept = {"method.group_size": "3", "rollout.temperature": "0.9"}
    if moment == "never":
        run(tmp_path, resume=False, bomb=Bomb(), updates=2, kept=kept)
    else:
        with pytest.raises(RuntimeError):
            run(tmp_path, resume=False, bomb=Crash(moment), updates=2, kept=kept)
    with pytest.raises(OccupiedError, match=rf"{place} was made with .*: method\.group_size = 3, now 4\."):
        run(tmp_path, resume=True, bomb=Bomb(), updates=4, kept={**kept, "method.group_size": "4"})
    run(tmp_path, resume=True, bomb=Bomb(), updates=3, kept=kept)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2, 3]


def test_a_fresh_start_takes_no_wave_from_an_old_journal(tmp_path):
    stale = tmp_path / "journal" / "update_1" / "wave_0.jsonl"
    stale.parent.mkdir(parents=True)
    stale.write_text('{"request": {"update": 1}, "groups": 0, "crc32": 0}\n')
    run(tmp_path, resume=False, bomb=Bomb(), updates=1)
    assert not stale.exists()


def test_no_tasks_too_few_tasks_and_twins_are_refused():
    tasks = ParityEnvironment().tasks("train")
    with pytest.raises(ConfigError, match="no tasks"):
        check_tasks([], 1)
    with pytest.raises(ConfigError, match="at most the 5 tasks"):
        check_tasks(tasks, 6)
    with pytest.raises(ConfigError, match="must differ"):
        check_tasks([*tasks, tasks[0]], 2)


@given(st.integers(1, 12), st.data())
def test_every_epoch_holds_each_task_once_and_no_update_holds_one_twice(num_tasks, data):
    size = data.draw(st.integers(1, num_tasks))
    updates = list(islice(draw_tasks(num_tasks, size, seed=data.draw(st.integers(0, 3))), 4 * num_tasks))
    assert all(len(set(update)) == size for update in updates)
    flat = [index for update in updates for index in update]
    for epoch in range(len(flat) // num_tasks):
        part = flat[epoch * num_tasks : (epoch + 1) * num_tasks]
        assert Counter(part) == Counter(range(num_tasks))


def test_the_order_of_tasks_follows_from_the_seed():
    first, again, other = (list(islice(draw_tasks(50, 10, seed=seed), 5)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
