"""`midcourse data`: what is listed, and how a folder's files are told apart."""

import hashlib
import json
import re

import pytest
from tests.environments.code_data import ROOT

from midcourse.cli import main
from midcourse.commands.data import Version, chosen_datasets, found_lines, look_into
from midcourse.commands.datasets import DATASETS, DataFile, Dataset
from midcourse.config import load_config
from midcourse.environments import ENVIRONMENTS
from midcourse.errors import ConfigError, DataError

CONTENT = b'{"a": 1}\n'
FILE = DataFile(name="1/new.json", content="1 task", size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
OTHER = DataFile(name="2/new.json", content="1 task", size=5, sha256=hashlib.sha256(b"12345").hexdigest())
DATASET = Dataset(
    name="made_up",
    title="Made up",
    environment="code",
    where="nowhere",
    licence="none",
    settings=(),
    docs="docs/code.md",
    files=(FILE, OTHER),
)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["data", *arguments])
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


def put(folder, path: str, content: bytes):
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


# The table


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda dataset: dataset.name)
def test_every_dataset_is_one_that_an_environment_reads_and_its_settings_load(dataset, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("\n".join(dataset.settings) + '\n[policy]\nchat = "chatml"\n')
    assert load_config(path).name_of("environment") == dataset.environment
    assert dataset.environment in ENVIRONMENTS.names()
    for named in re.findall(r"FOLDER/([\w.-]+\.(?:jsonl|csv|gz))", "\n".join(dataset.settings)):
        assert not dataset.files or any(file.is_named(named) for file in dataset.files), named


def test_names_and_digests_are_each_of_one_file():
    files = [file for dataset in DATASETS for file in dataset.files]
    assert len({dataset.name for dataset in DATASETS}) == len(DATASETS)
    assert len({file.sha256 for file in files}) == len(files)
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) and file.size > 0 for file in files)
    for dataset in DATASETS:
        assert all(dataset.files or dataset.note for dataset in DATASETS)
        for file in dataset.files:
            assert [other for other in dataset.files if other.is_named(file.name)] == [file]


def test_no_address_of_a_server_is_listed():
    for dataset in DATASETS:
        assert "://" not in f"{dataset.where} {dataset.note} {dataset.licence}"


def test_the_docs_that_are_named_are_there():
    for dataset in DATASETS:
        assert (ROOT / dataset.docs).is_file()


# Looking into a folder


def test_each_file_is_tested_unknown_or_absent(tmp_path):
    put(tmp_path, "deep/1/new.json", CONTENT)
    put(tmp_path, "deep/2/new.json", b"another version")
    first, second = look_into(tmp_path, [DATASET])
    assert (first.version, first.path, first.sha256) == (Version.TESTED, "deep/1/new.json", FILE.sha256)
    assert (second.version, second.path, second.size) == (Version.UNKNOWN, "deep/2/new.json", 15)
    assert second.sha256 == hashlib.sha256(b"another version").hexdigest()
    put(tmp_path, "deep/2/new.json", b"")
    assert look_into(tmp_path, [DATASET])[1].version is Version.UNKNOWN
    (tmp_path / "deep/2/new.json").unlink()
    assert look_into(tmp_path, [DATASET])[1].version is Version.ABSENT


def test_a_file_is_known_by_its_content_under_any_name_and_by_its_own_name_first(tmp_path):
    put(tmp_path, "a/renamed.json", CONTENT)
    assert look_into(tmp_path, [DATASET])[0].path == "a/renamed.json"
    put(tmp_path, "1/new.json", b"9 bytes!!")
    assert look_into(tmp_path, [DATASET])[0].path == "a/renamed.json"
    put(tmp_path, "b/1/new.json", CONTENT)
    assert look_into(tmp_path, [DATASET])[0].path == "b/1/new.json"


def test_hidden_files_links_to_nothing_and_parts_of_names_are_no_files(tmp_path):
    put(tmp_path, ".hidden/1/new.json", CONTENT)
    put(tmp_path, "1/.new.json", CONTENT)
    put(tmp_path, "11/new.json", b"x")
    (tmp_path / "1" / "new.json").symlink_to(tmp_path / "nowhere")
    assert [item.version for item in look_into(tmp_path, [DATASET])] == [Version.ABSENT] * 2


def test_a_folder_that_is_none_or_too_large_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="is no folder"):
        look_into(tmp_path / "absent", [DATASET])
    with pytest.raises(DataError, match="is no folder"):
        look_into(put(tmp_path, "file", b""), [DATASET])
    monkeypatch.setattr("midcourse.commands.data.MAX_ENTRIES", 1)
    put(tmp_path, "other", b"")
    with pytest.raises(DataError, match="holds more than 1 files"):
        look_into(tmp_path, [DATASET])


def test_an_unknown_version_is_said_with_both_digests_and_a_name_cannot_steer_the_terminal(tmp_path):
    put(tmp_path, "\x1b[2J/1/new.json", b"x")
    text = "\n".join(line.plain for line in found_lines(tmp_path, [DATASET], look_into(tmp_path, [DATASET])))
    assert "\x1b" not in text
    assert f"tested was {FILE.size} bytes, sha256 {FILE.sha256}" in text
    assert hashlib.sha256(b"x").hexdigest() in text
    assert "0 tested, 1 unknown, 0 unreadable, 1 absent" in text
    assert "read all the same" in text


# The command


def test_the_list_says_where_every_dataset_is_from(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    for dataset in DATASETS:
        assert dataset.title in out
        assert dataset.where in out
    assert "cf8dec6fb8051f46e6171136824aaa8b8707c3affbb3185c0bad2b39bc6b71e2" in out


def test_the_list_in_json_holds_what_a_script_needs(capsys):
    status, out, _ = run(capsys, "--dataset", "toolqa", "--json")
    (listed,) = json.loads(out)
    assert (status, listed["environment"], len(listed["files"])) == (0, "toolqa", 3)
    assert listed["files"][2] == {
        "name": "coffee.csv",
        "content": "prices of 5,741 days, 2000-01-03 to 2022-08-26",
        "bytes": 253808,
        "sha256": "c998215bd197900aaa3ff75fa4b16dff314202cabd9e91f13baeff781a56703d",
    }


def test_a_folder_in_json_has_one_entry_a_known_file(capsys, tmp_path):
    put(tmp_path, "coffee.csv", b"Date\n")
    status, out, _ = run(capsys, str(tmp_path), "--dataset", "toolqa", "--json")
    found = json.loads(out)
    assert (status, found["folder"]) == (0, str(tmp_path))
    assert [(item["name"], item["version"]) for item in found["files"]] == [
        ("coffee-easy.jsonl", "absent"),
        ("coffee-hard.jsonl", "absent"),
        ("coffee.csv", "unknown"),
    ]
    assert found["files"][2]["bytes"] == 5
    assert found["files"][0]["path"] is None


def test_a_mistake_is_one_line_and_names_what_there_is(capsys, tmp_path):
    status, _, err = run(capsys, "--dataset", "tool")
    assert status == 2
    assert "unknown dataset 'tool'; known: agentbench_db, agentbench_os, toolqa, humaneval," in err
    status, _, err = run(capsys, str(tmp_path / "absent"))
    assert status == 2
    assert "is no folder" in err
    with pytest.raises(ConfigError, match="unknown dataset"):
        chosen_datasets(["x"])
    assert chosen_datasets([]) == DATASETS


def test_the_official_files_are_the_tested_ones():
    places = [place / "shared" / "data" for place in (ROOT, ROOT.parent)]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        pytest.skip("shared/data is not there, in or beside the checkout")
    found = look_into(folder, DATASETS)
    assert not [item.path for item in found if item.version in (Version.UNKNOWN, Version.UNREADABLE)]
    assert sum(item.version is Version.TESTED for item in found) > 20
