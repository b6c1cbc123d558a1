"""The command lines that confine a program: bubblewrap's, and the weaker one of a plain process."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from midcourse.environments.sandbox.settings import Limits

SYSTEM_FOLDERS = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")  # links into /usr, or folders of their own
SHARED_MEMORY_BYTES = 2**20
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a set of strings must not change between two runs of one answer
    "OMP_NUM_THREADS": "1",
}
"""All that the code sees of the environment: no key and no token of the training process."""


def interpreter() -> Path:
    """Return the Python that answers run on: this one, without the virtual environment around it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = Path(sys.base_prefix, "bin", version)
    return own if own.is_file() else Path(sys.executable).resolve()


def python_command(source: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs Python source with nothing on its path but the standard library."""
    return [str(interpreter()), "-s", "-S", "-P", "-B", "-X", "utf8", "-c", source, *arguments]


def bubblewrap_command(
    program: Sequence[str], *, bubblewrap: str, limits: Limits, readable: Sequence[str], info_fd: int
) -> list[str]:
    """Return the command that runs `program` in namespaces of its own, with a root that holds only what it needs.

    The root is built from nothing: system folders, the interpreter and `readable`, all read-only, and empty folders
    for what is private. Homes, the working folder and /etc are not hidden but absent.

    Args:
        program: command and arguments, found inside.
        bubblewrap: path of bwrap.
        limits: of the box; here the size of its temporary folder.
        readable: further folders to be seen, read-only.
        info_fd: inherited descriptor that bwrap writes the id of the box's first process to.
    """
    command = [bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--info-fd", str(info_fd), "--ro-bind", "/usr", "/usr"]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    command += ["--proc", "/proc", "--dev", "/dev"]
    command += ["--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    command += ["--size", str(limits.file_bytes), "--tmpfs", "/tmp"]
    # After the private folders: what is to be read may lie below one of them.
    for folder in dict.fromkeys((sys.base_prefix, *readable)):
        if not Path(folder).is_relative_to("/usr"):
            command += ["--ro-bind", folder, folder]
    # Under a real root user the kernel lets /proc/sys be written even without any capability.
    command += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", "/tmp", "--", *program]


def joining_command(program: Sequence[str], member_files: Sequence[Path]) -> list[str]:
    """Return the command that joins control groups and becomes `program`."""
    if not member_files:
        return list(program)
    joins = " && ".join(f"echo $$ > {shlex.quote(str(path))}" for path in member_files)
    return ["/bin/sh", "-c", f'{joins} && exec "$@"', "sh", *program]


def unshare_prefixes() -> list[list[str]]:
    """Return what a plain process is put behind, the first that works: no network, a pid namespace that dies whole.

    The second is for users who are not root. The shell is the namespace's first process: limits do not end that one,
    and unshare loses its signal.
    """
    namespaces = ["--net", "--pid", "--fork", "--kill-child=SIGKILL", "/bin/sh", "-c", '"$@"; exit $?', "sh"]
    return [["unshare", *namespaces], ["unshare", "--user", "--map-current-user", *namespaces]]
