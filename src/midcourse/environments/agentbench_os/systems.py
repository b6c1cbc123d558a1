"""Boxes that hold a whole Linux system, by one of two command lines.

overlay: a clean root (prepare.py) is the lower layer, a size-limited tmpfs the upper; both are mounted in a mount
    namespace of the box alone, so that nothing is left to unmount however it ends. Processes are root of the machine
    with the few capabilities that a container has, no new ones to gain, and all but their own root out of sight.
readonly: system folders read-only, a few folders in memory writable, in a user namespace. No root needed.
"""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from midcourse.environments.sandbox import Sandbox
from midcourse.environments.sandbox.cgroup import CONTROLLERS
from midcourse.environments.sandbox.command import SHARED_MEMORY_BYTES, SYSTEM_FOLDERS
from midcourse.errors import ConfigError

if TYPE_CHECKING:
    from midcourse.environments.agentbench_os.settings import MachineConfig

PREPARE = "python -m midcourse.environments.agentbench_os.prepare FOLDER"
SYSTEM, MOUNT_POINT = "system", "box"  # folders of a prepared root
WEAKER = 'or ask for the weaker kind "readonly" by name (docs/agentbench_os.md says which tasks it cannot play)'
HOST_NAME = "linux"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "TERM": "dumb",
}
CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_AUDIT_WRITE",
)
"""What root may do inside: users, owners and permissions. No mounts, devices, tracing, clocks, modules or network."""
MOST_FILES = 200_000
WRITABLE = ("/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var")
PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"


class SystemSandbox(Sandbox):
    """Starts boxes that hold a system. Safe to use from several threads at once."""

    def __init__(self, config: "MachineConfig") -> None:
        """Look at what this machine allows and try one box.

        Raises:
            ConfigError: bubblewrap, the prepared root, the rights or the control groups are missing, or a box does not
                come up.
        """
        self.machine = config
        self._root = None if config.root is None else _prepared(Path(config.root))
        if config.kind == "overlay":
            _require_overlay(self._root)
        if shutil.which("bwrap") is None:
            raise ConfigError("environment.machine: bwrap was not found on the path; install the package bubblewrap")
        try:
            super().__init__(config.sandbox)
        except ConfigError as error:
            raise ConfigError(f'environment.machine.kind = "{config.kind}" does not work here: {error}') from error
        missing = [controller for controller in CONTROLLERS if controller not in self._groups]
        if config.kind == "overlay" and missing:
            raise ConfigError(
                f"environment.machine: no control groups for {' and '.join(missing)} can be made, and nothing else "
                f"bounds what root uses: make /sys/fs/cgroup writable for this process, {WEAKER}"
            )

    @property
    def has_own_users(self) -> bool:
        """Whether its users are users of this machine, so that a limit on one's processes would count others too."""
        return self.machine.kind == "overlay"

    @property
    def writable(self) -> Sequence[str]:
        """Folders below which its files can change."""
        return ("/",) if self.machine.kind == "overlay" else WRITABLE

    def trial(self) -> list[str]:
        """Return the program that prints "ready" in a box that works: one with the Python and the shell it needs."""
        return ["/usr/bin/python3", "-I", "-S", "-c", "import os; os.execv('/bin/bash', ['bash', '-c', 'echo ready'])"]

    def command(self, program: Sequence[str], *, info_fd: int) -> list[str]:
        """Return the confined command, control groups left out."""
        arguments = {"bubblewrap": self._bubblewrap, "disk_bytes": self.limits.file_bytes, "info_fd": info_fd}
        if self.machine.kind == "overlay":
            assert self._root is not None
            return overlay_command(program, root=self._root, **arguments)
        return readonly_command(program, system=Path("/") if self._root is None else self._root / SYSTEM, **arguments)


def overlay_command(program: Sequence[str], *, root: Path, bubblewrap: str, disk_bytes: int, info_fd: int) -> list[str]:
    """Return the command that runs `program` as the first process of a system with a writable layer of its own.

    Args:
        program: command and arguments, found inside.
        root: folder that prepare.py made.
        bubblewrap: path of bwrap.
        disk_bytes: most that may be written.
        info_fd: inherited descriptor that bwrap writes the id of the box's first process to.
    """
    confined = [bubblewrap, "--bind", f"{MOUNT_POINT}/merged", "/", *_confinement(info_fd)]
    confined += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    # Root of the machine may write to /proc/sys without any capability; /dev is a memory file system without a limit.
    confined += ["--hostname", HOST_NAME, "--remount-ro", "/proc", "--remount-ro", "/dev", "--chdir", "/root", "--"]
    size = f"size={disk_bytes},nr_inodes={MOST_FILES},mode=755"
    # Relative paths: in overlay's options some signs of an absolute one would need quoting.
    layers = f"lowerdir={SYSTEM},upperdir={MOUNT_POINT}/upper,workdir={MOUNT_POINT}/work"
    mounts = (
        f"cd {shlex.quote(str(root))} && mount -t tmpfs -o {size} tmpfs {MOUNT_POINT} && cd {MOUNT_POINT}"
        f" && mkdir upper work merged && cd .. && mount -t overlay -o {layers} overlay {MOUNT_POINT}/merged"
        ' && exec "$@"'
    )
    unshare = ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", mounts, "sh"]
    return [*unshare, *confined, *program]


def readonly_command(
    program: Sequence[str], *, system: Path, bubblewrap: str, disk_bytes: int, info_fd: int
) -> list[str]:
    """Return the command that runs `program` on the programs of `system`, with a few writable folders in memory.

    Args: as of `overlay_command`; `system` is the root that the programs come from.
    """
    command = [bubblewrap, *_confinement(info_fd), "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0"]
    command += ["--hostname", HOST_NAME]
    for folder in ("/usr", *SYSTEM_FOLDERS):
        source = system / folder.lstrip("/")
        if source.is_symlink():
            command += ["--symlink", os.readlink(source), folder]
        elif source.is_dir():
            command += ["--ro-bind", str(source), folder]
    for folder in WRITABLE:
        command += ["--size", str(disk_bytes), "--tmpfs", folder]
    for name in ("alternatives", "ld.so.cache", "localtime"):
        command += ["--ro-bind-try", str(system / "etc" / name), f"/etc/{name}"]
    command += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/root", "--"]
    furnish = 'printf %s "$1" > /etc/passwd; printf %s "$2" > /etc/group; mkdir /var/log /var/tmp; shift 2; exec "$@"'
    return [*command, "/bin/sh", "-c", furnish, "sh", PASSWD, GROUP, *program]


def _confinement(info_fd: int) -> list[str]:
    # Not --die-with-parent: it ends the box with the thread that started it. The first process ends with its input.
    options = ["--as-pid-1", "--new-session", "--info-fd", str(info_fd), "--clearenv", "--cap-drop", "ALL"]
    for capability in CAPABILITIES:
        options += ["--cap-add", capability]
    for name, value in ENVIRONMENT.items():
        options += ["--setenv", name, value]
    return [*options, "--proc", "/proc", "--dev", "/dev", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]


def _prepared(folder: Path) -> Path:
    if not (folder / SYSTEM / "usr").is_dir() or not (folder / MOUNT_POINT).is_dir():
        raise ConfigError(f"environment.machine.root = {str(folder)!r} holds no prepared system; make one: {PREPARE}")
    return folder.resolve()


def _require_overlay(root: Path | None) -> None:
    if root is None:
        raise ConfigError(
            f'environment.machine.kind = "overlay" needs environment.machine.root; make one: {PREPARE}; {WEAKER}'
        )
    if os.geteuid() != 0:
        raise ConfigError(f'environment.machine.kind = "overlay" needs root, to mount it: run as root, {WEAKER}')
    with open("/proc/filesystems", encoding="ascii") as known:
        if "overlay" not in known.read() and not Path("/sys/module/overlay").exists():
            raise ConfigError(f"this kernel knows no overlay file system: load its module (modprobe overlay), {WEAKER}")
