import json
from pathlib import Path

import pytest

from midcourse.errors import DataError, OccupiedError
from midcourse.recording.journal import Journal
from midcourse.recording.settings import check_same_settings
from midcourse.types import FailureKind, Group, Member, TokenSource, Trajectory

REQUEST = {"update": 3, "tasks": ["a"]}
SETTINGS = {"method.group_size": "8", "rollout.temperature": "0.8"}


def make_group(task_id="a"):
    sources = (TokenSource.PROMPT, TokenSource.POLICY, TokenSource.INTERVENTION)
    scored = Trajectory(
        task_id=task_id,
        token_ids=(1, 2, 3),
        sources=sources,
        behavior_logprobs=(None, -0.1, -1 / 3),
        policy_versions=(None, 0, 0),
        weights=(1.0, 1.0, 0.8000000000000002),
        calibration_logprobs=(None, None, -5e-324),
        reward=1.0,
    )
    failed = Trajectory(
        task_id=task_id,
        token_ids=(1,),
        sources=sources[:1],
        behavior_logprobs=(None,),
        policy_versions=(None,),
        weights=(1.0,),
        calibration_logprobs=(None,),
        failure=FailureKind.ENVIRONMENT_ERROR,
        failure_message='a "quoted"\nline \ud800',
    )
    return Group(group_id="g", task_id=task_id, members=(Member(trajectory=scored), Member(trajectory=failed)))


def test_a_wave_comes_back_bit_for_bit(tmp_path):
    journal = Journal(tmp_path / "journal")
    groups = [make_group("a"), make_group("b")]
    journal.write(groups, update=3, wave=1, request=REQUEST, settings=SETTINGS)
    assert Journal(tmp_path / "journal").read(update=3, wave=1, request=REQUEST, settings=SETTINGS) == groups


def test_a_wave_that_was_never_written_is_not_there(tmp_path):
    journal = Journal(tmp_path / "journal")
    assert journal.read(update=3, wave=0, request=REQUEST, settings=SETTINGS) is None
    journal.write([make_group()], update=3, wave=0, request=REQUEST, settings=SETTINGS)
    assert journal.read(update=3, wave=1, request=REQUEST, settings=SETTINGS) is None
    assert journal.read(update=4, wave=0, request=REQUEST, settings=SETTINGS) is None


def test_a_place_that_takes_no_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "journal").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"wave_0\.jsonl cannot be written: Not a directory"):
        Journal(tmp_path / "journal").write([make_group()], update=3, wave=0, request=REQUEST, settings=SETTINGS)


def test_what_cannot_be_removed_is_an_error_that_names_it(tmp_path):
    (tmp_path / "journal").write_text("a file where the folder should be")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "update_1").write_text("a file where a folder should be")
    for remove in (
        Journal(tmp_path / "journal").clear,
        lambda: Journal(tmp_path / "journal").drop_up_to(1),
        lambda: Journal(tmp_path / "other").drop_up_to(1),
    ):
        with pytest.raises(DataError, match=r"cannot be removed: Not a directory"):
            remove()


def test_a_folder_in_the_place_of_a_wave_is_no_wave(tmp_path):
    (tmp_path / "update_3" / "wave_0.jsonl").mkdir(parents=True)
    assert Journal(tmp_path).read(update=3, wave=0, request=REQUEST, settings=SETTINGS) is None


def test_a_torn_wave_is_not_there_wherever_it_was_torn(tmp_path):
    journal = Journal(tmp_path)
    journal.write([make_group(), make_group()], update=3, wave=0, request=REQUEST, settings=SETTINGS)
    path = next(tmp_path.rglob("*.jsonl"))
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        assert journal.read(update=3, wave=0, request=REQUEST, settings=SETTINGS) is None
    path.write_bytes(content.replace(b"0.1", b"0.2"))
    assert journal.read(update=3, wave=0, request=REQUEST, settings=SETTINGS) is None
    path.write_bytes(content)
    assert journal.read(update=3, wave=0, request=REQUEST, settings=SETTINGS) is not None


def test_a_wave_of_another_request_is_an_error_not_a_silent_reuse(tmp_path):
    journal = Journal(tmp_path)
    journal.write([make_group()], update=3, wave=0, request=REQUEST, settings=SETTINGS)
    with pytest.raises(DataError, match="other tasks"):
        journal.read(update=3, wave=0, request={**REQUEST, "tasks": ["b"]}, settings=SETTINGS)


def test_a_wave_of_other_settings_is_an_error_that_names_them(tmp_path):
    journal = Journal(tmp_path)
    journal.write([make_group()], update=3, wave=0, request=REQUEST, settings=SETTINGS)
    changed = {"method.group_size": "4", "rollout.temperature": "0.8"}
    with pytest.raises(OccupiedError, match=r"wave_0\.jsonl was made with .*: method\.group_size = 8, now 4\."):
        journal.read(update=3, wave=0, request=REQUEST, settings=changed)
    known_to_one_version_alone = {**SETTINGS, "method.added_later": "true"}
    assert journal.read(update=3, wave=0, request=REQUEST, settings=known_to_one_version_alone) == [make_group()]


def test_many_settings_that_differ_are_counted():
    before, now = ({f"method.{name}": value for name in "abcdefghij"} for value in "12")
    with pytest.raises(OccupiedError, match=r"method\.h = 1, now 2; 2 more\."):
        check_same_settings(before, now, place=Path("run"))


def test_waves_that_a_checkpoint_holds_go_and_later_ones_stay(tmp_path):
    journal = Journal(tmp_path)
    for update in (2, 10):
        journal.write([make_group()], update=update, wave=0, request={"update": update}, settings=SETTINGS)
    journal.drop_up_to(9)
    assert journal.read(update=2, wave=0, request={"update": 2}, settings=SETTINGS) is None
    assert journal.read(update=10, wave=0, request={"update": 10}, settings=SETTINGS) is not None
    journal.clear()
    assert not tmp_path.exists()


def test_the_journal_is_plain_json(tmp_path):
    Journal(tmp_path).write([make_group()], update=1, wave=0, request=REQUEST, settings=SETTINGS)
    head, group = next(tmp_path.rglob("*.jsonl")).read_text().splitlines()
    assert json.loads(head)["request"] == REQUEST
    assert json.loads(group)["members"][0]["trajectory"]["weights"][2] == 0.8000000000000002
