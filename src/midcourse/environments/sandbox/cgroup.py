"""Limits on all processes of a box together, where a control group can be made. Versions 1 and 2."""

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from midcourse.environments.sandbox.settings import Limits

CONTROLLERS = ("pids", "memory")
ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
EMPTY_SECONDS = 5.0


def group_parents(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> Mapping[str, Path]:
    """Return controller -> folder in which groups can be made; controllers that cannot be used are left out.

    Groups are made below this process's own, so that a container's limits stay in force.
    """
    try:
        lines = own_groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    parents: dict[str, Path] = {}
    for line in lines:
        _, names, path = line.split(":", 2)
        for controller in CONTROLLERS if not names else set(names.split(",")) & set(CONTROLLERS):
            mount = root if not names else root / controller
            # Inside a container the path may name a folder that only the host sees; the mount is then the own group.
            parent = next((folder for folder in (mount / path.lstrip("/"), mount) if folder.is_dir()), None)
            if parent is not None and controller not in parents and _offers(parent, controller):
                parents[controller] = parent
    return parents


def _offers(parent: Path, controller: str) -> bool:
    trial = parent / f"midcourse-trial-{uuid4().hex}"
    try:
        trial.mkdir()
    except OSError:
        return False
    names = ("pids.max",) if controller == "pids" else ("memory.limit_in_bytes", "memory.max")
    try:
        return any((trial / name).exists() for name in names)
    finally:
        trial.rmdir()


class LimitGroup:
    """The control groups of one box."""

    def __init__(self, parents: Mapping[str, Path], limits: Limits) -> None:
        """Make the groups and set their limits.

        Raises:
            OSError: a group cannot be made any more.
        """
        name = f"midcourse-{os.getpid()}-{uuid4().hex}"
        self._folders = dict.fromkeys(parent / name for parent in parents.values())
        for folder in self._folders:
            folder.mkdir()
            _write(folder / "pids.max", str(limits.processes))
            total = str(limits.memory_bytes + limits.file_bytes)
            if not _write(folder / "memory.max", total):
                _write(folder / "memory.limit_in_bytes", total)
            _write(folder / "memory.swap.max", "0")
            _write(folder / "memory.memsw.limit_in_bytes", total)

    @property
    def member_files(self) -> list[Path]:
        """Files that a process writes its id to in order to join."""
        return [folder / "cgroup.procs" for folder in self._folders]

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed a member for want of memory."""
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                try:
                    lines = (folder / name).read_text(encoding="ascii").splitlines()
                except OSError:
                    continue
                counts = dict(line.split() for line in lines if line.count(" ") == 1)
                if int(counts.get("oom_kill", 0)):
                    return True
        return False

    def remove(self) -> bool:
        """Kill every member, however often they fork, and remove the groups; False if some outlived it all."""
        deadline = time.monotonic() + EMPTY_SECONDS
        remaining = list(self._folders)
        while remaining and time.monotonic() < deadline:
            for folder in remaining:
                _write(folder / "cgroup.kill", "1")
                for member in _members(folder):
                    with contextlib.suppress(OSError):
                        os.kill(member, signal.SIGKILL)
            remaining = [folder for folder in remaining if not _removed(folder)]
            if remaining:
                time.sleep(0.002)
        return not remaining


def remove_abandoned(parents: Mapping[str, Path]) -> None:
    """Remove the empty groups of processes that were killed before they could."""
    for parent in parents.values():
        for folder in parent.glob("midcourse-[0-9]*-*"):
            if not Path("/proc", folder.name.split("-")[1]).exists():
                _removed(folder)


def _write(path: Path, text: str) -> bool:
    """Write to a control file that exists; which ones do depends on version and kernel."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _members(folder: Path) -> list[int]:
    try:
        # 0 stands for a process of another pid namespace; killing that would be killing our own group.
        return [int(line) for line in (folder / "cgroup.procs").read_text().split() if int(line) > 0]
    except OSError:
        return []


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
