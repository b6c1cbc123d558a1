"""Make the clean system that episodes start from, once. Run as root:

    python -m midcourse.environments.agentbench_os.prepare FOLDER [--mirror URL]     # Debian 12 by debootstrap
    python -m midcourse.environments.agentbench_os.prepare FOLDER --archive FILE     # any other, from a tar archive

An archive is what `docker export CONTAINER` writes. It must hold bash, /usr/bin/python3 and what tasks use.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from midcourse.environments.agentbench_os.systems import HOST_NAME, MOUNT_POINT, SYSTEM
from midcourse.errors import ConfigError

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("python3", "git", "vim-tiny", "curl", "wget", "unzip", "zip", "tree", "procps", "sudo")
"""Those of AgentBench's images, as far as its tasks use them. Debian stands in for Ubuntu."""
SECONDS = 3600.0
NEEDED = ("bin/bash", "usr/bin/python3")
LEFTOVERS = ("var/cache/apt/archives", "var/lib/apt/lists")  # but not the logs: tasks ask about them
FILES = {
    "etc/hostname": f"{HOST_NAME}\n",
    "etc/hosts": f"127.0.0.1 localhost {HOST_NAME}\n",
    "etc/resolv.conf": "",
}


def debootstrap(folder: Path, *, mirror: str, packages: Sequence[str] = PACKAGES, suite: str = SUITE) -> None:
    """Fill a folder with a Debian.

    Raises:
        ConfigError: debootstrap is not there, or fails.
    """
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise ConfigError("debootstrap was not found: apt-get install debootstrap, or give --archive FILE")
    _run([program, "--variant=minbase", f"--include={','.join(packages)}", suite, str(folder), mirror])


def unpack(folder: Path, *, archive: Path) -> None:
    """Fill a folder from a tar archive.

    Raises:
        ConfigError: it cannot be unpacked.
    """
    _run(["tar", "--extract", "--numeric-owner", "--directory", str(folder), "--file", str(archive)])


def finish(folder: Path) -> None:
    """Take out what tells of this machine or of how the system was made.

    Raises:
        ConfigError: something is missing that every system needs.
    """
    for name in NEEDED:
        if not (folder / name).exists() and not (folder / name).is_symlink():
            raise ConfigError(f"the system holds no /{name}")
    for name, text in FILES.items():
        path = folder / name
        path.unlink(missing_ok=True)  # it may be a link to a file of this machine
        path.write_text(text, encoding="utf-8")
    for name in LEFTOVERS:
        for path in (folder / name).rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.unlink()
    (folder / "var/log/bootstrap.log").unlink(missing_ok=True)


def prepare(folder: Path, *, archive: Path | None = None, mirror: str = MIRROR) -> None:
    """Make a root in `folder`, complete or not at all.

    Raises:
        ConfigError: it cannot be made, or the folder is in use.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty")
    if os.geteuid() != 0:
        raise ConfigError("a system with its owners and permissions can only be made by root")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="unfinished-") as unfinished:
        system = Path(unfinished, SYSTEM)
        system.mkdir(mode=0o755)
        if archive is None:
            debootstrap(system, mirror=mirror)
        else:
            unpack(system, archive=archive)
        finish(system)
        (folder / MOUNT_POINT).mkdir()
        system.rename(folder / SYSTEM)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise ConfigError(f"{command[0]} failed with status {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--mirror", default=MIRROR)
    options = parser.parse_args()
    try:
        prepare(options.folder, archive=options.archive, mirror=options.mirror)
    except ConfigError as error:
        sys.exit(str(error))
    print(f'[environment.machine]\nroot = "{options.folder.resolve()}"')


if __name__ == "__main__":
    main()
