"""Boxes: one confined process tree each, with nothing left of it once it is closed."""

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Self

from midcourse.environments.sandbox.cgroup import LimitGroup, group_parents, remove_abandoned
from midcourse.environments.sandbox.command import (
    ENVIRONMENT,
    bubblewrap_command,
    joining_command,
    python_command,
    unshare_prefixes,
)
from midcourse.environments.sandbox.settings import SandboxConfig
from midcourse.errors import ConfigError, EnvironmentFault

logger = logging.getLogger(__name__)

GONE_SECONDS = 5.0
ERROR_BYTES = 2000


class SandboxError(EnvironmentFault):
    """The sandbox itself did not work. Says nothing about the code in it."""


class Sandbox:
    """Starts boxes. Safe to use from several threads at once."""

    def __init__(self, config: SandboxConfig) -> None:
        """Look at what this machine allows and try one box.

        Raises:
            ConfigError: there is no working sandbox of the kind asked for.
        """
        self.config = config
        self.limits = config.limits
        self._groups = group_parents()
        remove_abandoned(self._groups)
        self._prefix: list[str] = []
        self._bubblewrap = ""
        if config.kind == "bubblewrap":
            found = shutil.which("bwrap")
            if found is None:
                raise ConfigError(
                    'environment.sandbox.kind = "bubblewrap": bwrap was not found on the path; install the package '
                    'bubblewrap, or ask for the weaker kind "process" by name (docs/code.md says what it does not stop)'
                )
            self._bubblewrap = found
        else:
            self._prefix = next(filter(_works, unshare_prefixes()), [])
        self._try_once()

    def _try_once(self) -> None:
        with open(os.devnull, "rb") as empty, tempfile.TemporaryFile() as output:
            try:
                with self.start(self.trial(), stdin=empty.fileno(), stdout=output.fileno()) as box:
                    code, message = box.wait(self.config.start_seconds), box.error_text()
            except SandboxError as error:
                code, message = None, str(error)
            output.seek(0)
            if code != 0 or output.read().strip() != b"ready":
                raise ConfigError(
                    f'environment.sandbox.kind = "{self.config.kind}" does not work on this machine: '
                    f"exit status {code}, {message or 'no message'}"
                )

    def trial(self) -> list[str]:
        """Return the program that prints "ready" in a box that works."""
        return python_command("print('ready')", [])

    def start(self, program: Sequence[str], *, stdin: int, stdout: int, stderr: int | None = None) -> "Box":
        """Return a box that runs `program`. Descriptors are of this process and stay the caller's to close.

        Args:
            program: command and arguments.
            stdin: what it reads.
            stdout: what it writes.
            stderr: for its messages; None keeps the first of them for `Box.error_text`.

        Raises:
            SandboxError: it cannot be started.
        """
        try:
            return Box(self, program, stdin=stdin, stdout=stdout, stderr=stderr)
        except OSError as error:
            raise SandboxError(f"a box cannot be started: {error}") from error

    def command(self, program: Sequence[str], *, info_fd: int) -> list[str]:
        """Return the confined command, control groups left out."""
        if self._bubblewrap:
            return bubblewrap_command(
                program,
                bubblewrap=self._bubblewrap,
                limits=self.limits,
                readable=self.config.readable,
                info_fd=info_fd,
            )
        return [*self._prefix, *program]

    def limit_group(self) -> LimitGroup:
        """Return fresh control groups for one box; empty where none can be made."""
        return LimitGroup(self._groups, self.limits)


class Box:
    """One process tree. Closing it kills the whole tree and takes away its groups and its folder."""

    def __init__(
        self, sandbox: Sandbox, program: Sequence[str], *, stdin: int, stdout: int, stderr: int | None = None
    ) -> None:
        self._first_process: int | None = None  # a descriptor of it, so that its id cannot come to mean another
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None
        self._groups = sandbox.limit_group()
        self._errors, error_writer = os.pipe()
        os.set_blocking(self._errors, False)
        info_reader, info_writer = os.pipe()
        try:
            environment = dict(ENVIRONMENT)
            if sandbox.config.kind == "process":
                self._folder = tempfile.mkdtemp(prefix="midcourse-box-")
                environment |= {"HOME": self._folder, "TMPDIR": self._folder}
            self._process = subprocess.Popen(
                joining_command(sandbox.command(program, info_fd=info_writer), self._groups.member_files),
                stdin=stdin,
                stdout=stdout,
                stderr=error_writer if stderr is None else stderr,
                env=environment,
                cwd=self._folder or "/",
                pass_fds=(info_writer,) if sandbox.config.kind == "bubblewrap" else (),
                start_new_session=True,
            )
            os.close(info_writer)
            info_writer = -1
            if sandbox.config.kind == "bubblewrap":
                self._first_process = _first_process(info_reader, timeout_seconds=sandbox.config.start_seconds)
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in (info_reader, info_writer, error_writer):
                if descriptor >= 0:
                    os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wait(self, timeout_seconds: float) -> int | None:
        """Return the program's exit status, None if it still runs after that time."""
        assert self._process is not None
        try:
            return self._process.wait(max(timeout_seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process of the box for want of memory. Ask before closing."""
        return self._groups.ran_out_of_memory()

    def error_text(self) -> str:
        """Return the beginning of what was written to its own standard error."""
        try:
            return os.read(self._errors, ERROR_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        """Kill everything in the box and wait until it is gone; safe to call twice."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        if self._first_process is not None:
            # The end of a pid namespace's first process is reported only when all others in it have ended.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_process, signal.SIGKILL)
            if not _ended(self._first_process, GONE_SECONDS):
                logger.warning("the processes of a box did not end within %g s of being killed", GONE_SECONDS)
            os.close(self._first_process)
            self._first_process = None
        if self._process is not None:
            self._process.wait()
            self._process = None
        if not self._groups.remove():
            logger.warning("the control groups of a box could not be removed")
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1


def _first_process(info_reader: int, *, timeout_seconds: float) -> int | None:
    """Return a descriptor of the box's first process, None if it did not come up (what it wrote says why)."""
    deadline = time.monotonic() + timeout_seconds
    text = b""
    while b"}" not in text:
        if not _ended(info_reader, deadline - time.monotonic()):
            raise SandboxError(f"bubblewrap said nothing within {timeout_seconds:g} s")
        chunk = os.read(info_reader, 4096)
        if not chunk:
            return None
        text += chunk
    try:
        return os.pidfd_open(json.loads(text)["child-pid"])
    except ProcessLookupError:
        return None


def _ended(descriptor: int, timeout_seconds: float) -> bool:
    """Return whether a descriptor becomes readable in time; that of a process does when it has ended."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(max(timeout_seconds, 0.0) * 1000))


def _works(prefix: Sequence[str]) -> bool:
    if shutil.which(prefix[0]) is None:
        return False
    trial = subprocess.run(
        [*prefix, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return trial.returncode == 0
