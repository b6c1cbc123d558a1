import json
import math
import os
import time
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from tests.recording.test_serialization import make_group

from midcourse.errors import ConfigError, DataError
from midcourse.recording.journal import Journal
from midcourse.recording.reader import RunReader
from midcourse.recording.writer import GROUPS_KEY, RecordingConfig, RunWriter, trajectory_path
from midcourse.types import FailureKind

PLAIN = RecordingConfig(tensorboard=False)


def make_writer(folder, *, resume=False, config="seed = 1\n"):
    return RunWriter(folder, PLAIN, resolved_config=config, resume=resume)


def test_groups_come_back_equal_from_the_folder(tmp_path):
    with make_writer(tmp_path) as writer:
        writer.write_groups(3, [make_group()])
    reader = RunReader(tmp_path)
    assert reader.trajectory_updates() == [3]
    assert reader.trajectories(3) == [make_group()]


def test_what_a_controller_was_shown_is_in_the_journal_and_not_in_the_record(tmp_path):
    branches = tuple(replace(record, hidden=(0.5, -1.5)) for record in make_group().branches)
    group = replace(make_group(), branches=branches, task_embedding=(1.0, -1.0))
    with make_writer(tmp_path) as writer:
        writer.write_groups(3, [group])
    assert RunReader(tmp_path).trajectories(3) == [make_group()]
    journal = Journal(tmp_path / "journal")
    journal.write([group], update=3, wave=0, request={}, settings={})
    assert journal.read(update=3, wave=0, request={}, settings={}) == [group]


def test_a_file_of_a_run_before_rollouts_were_branched_is_read(tmp_path):
    with make_writer(tmp_path) as writer:
        writer.write_groups(3, [make_group()])
    path = trajectory_path(tmp_path, 3)
    table = pq.read_table(path)
    (header,) = json.loads(table.schema.metadata[GROUPS_KEY])
    del header["branches"], header["decisions"]
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, GROUPS_KEY: json.dumps([header])}), path)
    assert RunReader(tmp_path).trajectories(3) == [replace(make_group(), branches=(), decisions=0)]


def test_a_branch_that_cannot_be_read_is_a_data_error(tmp_path):
    with make_writer(tmp_path) as writer:
        writer.write_groups(3, [make_group()])
    path = trajectory_path(tmp_path, 3)
    table = pq.read_table(path)
    (header,) = json.loads(table.schema.metadata[GROUPS_KEY])
    header["branches"][0]["rollouts"] = ["1"]
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, GROUPS_KEY: json.dumps([header])}), path)
    with pytest.raises(DataError, match="a int must stand here: got '1'"):
        RunReader(tmp_path).trajectories(3)


def test_a_file_of_a_run_before_teachers_scored_any_is_read(tmp_path):
    with make_writer(tmp_path) as writer:
        writer.write_groups(3, [make_group()])
    path = trajectory_path(tmp_path, 3)
    pq.write_table(pq.read_table(path).drop_columns(["teacher_logprobs"]), path)
    (found,) = RunReader(tmp_path).trajectories(3)
    assert found == replace(make_group(), extra=(replace(make_group().extra[0], teacher_logprobs=None),))


def test_half_a_surrogate_pair_is_kept_in_a_turn_and_spelled_out_in_a_failure(tmp_path):
    group = make_group()
    member = group.members[0]
    turn = member.trajectory.turns[0]
    turns = (replace(turn, message=replace(turn.message, content="a\ud800")), *member.trajectory.turns[1:])
    said = replace(group, members=(replace(member, trajectory=replace(member.trajectory, turns=turns)),))
    failure = {"reward": None, "failure": FailureKind.ENVIRONMENT_ERROR, "failure_message": "b\udfff"}
    failed = replace(group, members=(replace(member, trajectory=replace(member.trajectory, **failure)),))
    with make_writer(tmp_path) as writer:
        writer.write_groups(1, [said])
        writer.write_groups(2, [failed])
    reader = RunReader(tmp_path)
    assert reader.trajectories(1)[0].members[0].trajectory.turns == turns
    assert reader.trajectories(2)[0].members[0].trajectory.failure_message == "b\\udfff"


def test_metrics_come_back_bit_for_bit_and_not_finite_ones_too(tmp_path):
    with make_writer(tmp_path) as writer:
        writer.write_metrics(1, {"loss": 0.1 + 0.2, "kl": math.inf})
    assert RunReader(tmp_path).metrics() == [{"update": 1, "loss": 0.1 + 0.2, "kl": math.inf}]


def test_a_folder_with_a_run_is_not_written_over(tmp_path):
    with make_writer(tmp_path) as writer:
        writer.write_metrics(1, {})
    with pytest.raises(ConfigError, match="already holds a run"):
        make_writer(tmp_path)
    assert len(RunReader(tmp_path).metrics()) == 1


def test_two_writers_never_share_a_folder(tmp_path):
    first = make_writer(tmp_path)
    for resume in (False, True):
        with pytest.raises(ConfigError, match="another process is training there"):
            make_writer(tmp_path, resume=resume)
    first.close()
    make_writer(tmp_path, resume=True).close()


def test_a_writer_that_was_refused_leaves_the_folder_free(tmp_path):
    with make_writer(tmp_path) as writer:
        writer.write_metrics(1, {})
    for _ in range(2):
        with pytest.raises(ConfigError, match="already holds a run"):
            make_writer(tmp_path)


def test_resuming_keeps_the_first_settings_and_notes_the_others(tmp_path):
    make_writer(tmp_path).close()
    make_writer(tmp_path, resume=True, config="seed = 2\n").close()
    assert RunReader(tmp_path).config == {"seed": 1}
    assert (tmp_path / "config.resumed_1.toml").read_text() == "seed = 2\n"


def test_truncation_forgets_later_updates_in_every_file(tmp_path):
    with make_writer(tmp_path) as writer:
        for update in (1, 2, 3):
            writer.write_metrics(update, {})
            writer.write_evaluation(update, {"splits": {}})
            writer.write_groups(update, [make_group()])
        writer.truncate_after(2)
    reader = RunReader(tmp_path)
    assert [line["update"] for line in reader.metrics()] == [1, 2]
    assert [line["update"] for line in reader.evaluations()] == [1, 2]
    assert reader.trajectory_updates() == [1, 2]


def test_a_torn_last_line_is_skipped_and_cut_on_resume(tmp_path):
    with make_writer(tmp_path) as writer:
        writer.write_metrics(1, {})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 2, "lo')
    assert [line["update"] for line in RunReader(tmp_path).metrics()] == [1]
    with make_writer(tmp_path, resume=True) as writer:
        writer.write_metrics(2, {})
    assert [line["update"] for line in RunReader(tmp_path).metrics()] == [1, 2]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    make_writer(tmp_path).close()
    (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n{oops\n{"update": 3}\n')
    with pytest.raises(DataError, match="line 2"):
        RunReader(tmp_path).metrics()


def test_a_folder_that_is_no_run_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="no run folder"):
        RunReader(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        RunReader(tmp_path / "missing")


def test_rollouts_of_another_schema_version_are_refused(tmp_path):
    import pyarrow.parquet as pq

    with make_writer(tmp_path) as writer:
        writer.write_groups(1, [make_group()])
    path = tmp_path / "trajectories" / "update_000001.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"midcourse.schema_version": b"99"}), path)
    with pytest.raises(DataError, match="got 99"):
        RunReader(tmp_path).trajectories(1)


def test_a_place_that_cannot_be_written_is_a_data_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        make_writer(tmp_path / "file" / "run")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_named(tmp_path):
    writer = make_writer(tmp_path)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"metrics.jsonl cannot be written: No space left"):
        writer.write_metrics(1, {})


def test_tensorboard_gets_the_metrics(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunWriter(tmp_path, RecordingConfig(), resolved_config="") as writer:
        writer.write_metrics(1, {"reward/mean": 0.5})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.5)]


def test_a_tracker_without_its_package_says_what_to_install(tmp_path):
    try:
        import trackio  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match="pip install trackio"):
            RunWriter(tmp_path, RecordingConfig(tensorboard=False, trackio_project="x"), resolved_config="")
    else:
        pytest.skip("trackio is installed")


def test_a_line_is_on_disk_before_the_writer_is_closed(tmp_path):
    writer = make_writer(tmp_path)
    writer.write_metrics(1, {"time/update": time.time()})
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["update"] == 1
