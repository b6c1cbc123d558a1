"""Command lines of both kinds, what is missing, and how a root is made."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from midcourse.environments.agentbench_os import MachineConfig
from midcourse.environments.agentbench_os.prepare import PACKAGES, prepare
from midcourse.environments.agentbench_os.systems import overlay_command, readonly_command
from midcourse.errors import ConfigError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners and permissions can only be set by root")


def test_the_overlay_is_mounted_where_no_other_process_sees_it():
    command = overlay_command(["prog"], root=Path("/made, here"), bubblewrap="/x/bwrap", disk_bytes=9, info_fd=7)
    assert command[:4] == ["unshare", "--mount", "--propagation", "private"]
    mounts = command[command.index("-c") + 1]
    assert mounts.startswith("cd '/made, here' && mount -t tmpfs -o size=9,")
    assert "lowerdir=system,upperdir=box/upper,workdir=box/work" in mounts
    text = " ".join(command)
    for part in ("--bind box/merged /", "--cap-drop ALL", "--clearenv", "--unshare-net", "--remount-ro /proc"):
        assert part in text
    for capability in ("CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_SYS_MODULE"):
        assert capability not in text
    assert "--die-with-parent" not in command
    assert command[-1] == "prog"


def test_readonly_shows_system_folders_and_nothing_else(tmp_path):
    (tmp_path / "usr").mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    command = readonly_command(["prog"], system=tmp_path, bubblewrap="/x/bwrap", disk_bytes=9, info_fd=7)
    text = " ".join(command)
    assert f"--ro-bind {tmp_path}/usr /usr --symlink usr/bin /bin --size 9 --tmpfs /etc" in text
    assert "--unshare-all --unshare-user --uid 0 --gid 0" in text
    assert " --bind " not in text
    assert "--share-net" not in text


def test_what_is_missing_is_said_with_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"needs environment.machine.root.*agentbench_os.prepare FOLDER.*readonly"):
        MachineConfig().build()
    with pytest.raises(ConfigError, match=r"holds no prepared system.*agentbench_os.prepare FOLDER"):
        MachineConfig(root=str(tmp_path)).build()
    (tmp_path / "system" / "usr").mkdir(parents=True)
    (tmp_path / "box").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: 1000)
        with pytest.raises(ConfigError, match=r"needs root.*weaker kind .readonly"):
            MachineConfig(root=str(tmp_path)).build()
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match="install the package bubblewrap"):
        MachineConfig(kind="readonly").build()


@needs_root
def test_without_control_groups_an_overlay_is_refused(tmp_path, monkeypatch):
    (tmp_path / "system" / "usr").mkdir(parents=True)
    (tmp_path / "box").mkdir()
    monkeypatch.setattr("midcourse.environments.sandbox.box.group_parents", dict)
    monkeypatch.setattr("midcourse.environments.sandbox.box.Sandbox._try_once", lambda self: None)
    monkeypatch.setattr("shutil.which", lambda name: f"/x/{name}")
    with pytest.raises(ConfigError, match=r"no control groups for pids and memory.*weaker kind .readonly"):
        MachineConfig(root=str(tmp_path)).build()


def archive(folder: Path, *names: str) -> Path:
    path = folder / "system.tar"
    with tarfile.open(path, "w") as file:
        for name in names:
            file.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


@needs_root
def test_a_root_is_made_from_an_archive_without_traces_of_its_maker(tmp_path):
    names = ("bin/bash", "usr/bin/python3", "etc/resolv.conf", "var/log/bootstrap.log", "var/log/dpkg.log")
    prepare(tmp_path / "root", archive=archive(tmp_path, *names))
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["box", "system"]
    system = tmp_path / "root" / "system"
    assert [path.name for path in (system / "var" / "log").iterdir()] == ["dpkg.log"]
    assert (system / "etc" / "hosts").read_text() == "127.0.0.1 localhost linux\n"
    with pytest.raises(ConfigError, match="is not empty"):
        prepare(tmp_path / "root", archive=tmp_path / "system.tar")


@needs_root
def test_a_root_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch, capfd):
    with pytest.raises(ConfigError, match="holds no /usr/bin/python3"):
        prepare(tmp_path / "root", archive=archive(tmp_path, "bin/bash"))
    with pytest.raises(ConfigError, match="tar failed with status"):
        prepare(tmp_path / "root", archive=tmp_path / "absent.tar")
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(ConfigError, match="apt-get install debootstrap, or give --archive"):
        prepare(tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


@needs_root
def test_debootstrap_is_asked_for_what_tasks_use(tmp_path, monkeypatch):
    made = tmp_path / "debootstrap"
    made.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nmkdir -p "$4/bin" "$4/usr/bin" "$4/etc"\n'
        'touch "$4/bin/bash" "$4/usr/bin/python3"\n'
    )
    made.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    prepare(tmp_path / "root", mirror="http://mirror.example/debian")
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:3] == ["--variant=minbase", f"--include={','.join(PACKAGES)}", "bookworm"]
    assert asked[-1] == "http://mirror.example/debian"
