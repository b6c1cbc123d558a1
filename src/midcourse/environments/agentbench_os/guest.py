"""What runs as the first process of a system: one file of standard library, sent as text.

It reads requests from its input and runs what they ask for: scripts of the task, each a process of its own, or commands
of the policy, one after another in one shell. It cannot be killed from inside its pid namespace, takes over the
processes that others leave behind, and ends, and all others with it, when its input does. What it answers is read by
the other side as what a stranger wrote: root inside may look into this process and change it, as it may change every
program that the task's checks run. It is not shut off from that, since `find /` then would end with an error.

Requests and answers are JSON behind their length in four bytes.
"""

import contextlib
import errno
import json
import os
import resource
import select
import shlex
import signal
import stat
import subprocess
import sys
import time

CHUNK_BYTES = 65536
DRAINED_CHUNKS = 64  # of what is written faster than it can be read
FIRST_SECONDS = 3.0
RETURN_SECONDS = 0.5  # that a shell has to come back once what it ran was killed
GONE_SECONDS = 5.0
FIRST_LINES = "shopt -s expand_aliases\n[ -r ~/.bashrc ] && . ~/.bashrc </dev/null >/dev/null 2>&1\ncd ~\n"


class Collected:
    """The first bytes of what comes out of a pipe; the rest is read and thrown away, so that nobody waits to write."""

    def __init__(self, reader, limit):
        os.set_blocking(reader, False)
        self.reader, self.limit, self.content, self.is_cut = reader, limit, b"", False

    def drain(self):
        """Read what is there. Return False at the end."""
        for _ in range(DRAINED_CHUNKS):
            try:
                chunk = os.read(self.reader, CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self.is_cut = self.is_cut or len(self.content) + len(chunk) > self.limit
            self.content += chunk[: self.limit - len(self.content)]
        return True

    def take(self):
        """Return the text so far and begin anew."""
        text, self.content, is_cut, self.is_cut = self.content, b"", self.is_cut, False
        return text.decode("utf-8", "replace"), is_cut


class Guest:
    """The processes of the system.

    `limits`: cpu (seconds), memory (bytes), processes, per_user (whether to limit them here); `seed`: of $RANDOM.
    """

    def __init__(self, limits, seed):
        self.limits = limits
        self.seed = seed
        self.statuses = {}  # of children that ended
        self.children = set()  # that somebody asks for
        self.shell = None
        self.waker, signalled = os.pipe()  # readable when a child ended
        os.set_blocking(self.waker, False)
        os.set_blocking(signalled, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)

    def start(self, command, *, stdin, stdout, stderr, keep=()):
        """Return a process that runs `command` in root's home, or / where there is none any more."""

        def limit():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
            resource.setrlimit(resource.RLIMIT_CPU, (self.limits["cpu"], self.limits["cpu"]))
            resource.setrlimit(resource.RLIMIT_AS, (self.limits["memory"], self.limits["memory"]))
            if self.limits["per_user"]:
                resource.setrlimit(resource.RLIMIT_NPROC, (self.limits["processes"],) * 2)
            with contextlib.suppress(OSError):
                os.chdir("/root")

        def begin():
            os.chdir("/")
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=keep,
                preexec_fn=limit,
                start_new_session=True,
                restore_signals=True,
            )

        try:
            process = begin()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM):
                raise
            self.kill_all()  # they have taken every place
            process = begin()
        process.returncode = 0  # else it would take its status for itself when it is collected
        self.children.add(process.pid)
        return process.pid

    def reap(self):
        """Take the statuses of children that ended; those of strangers are forgotten."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.children:
                self.statuses[pid] = os.waitstatus_to_exitcode(status)

    def sleep_again(self):
        """Forget that children ended; ask for them afterwards."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.waker, CHUNK_BYTES)

    def ended(self, pid):
        """Return whether a child has ended."""
        self.reap()
        return pid in self.statuses

    def kill_new(self, before):
        """Kill every process that was not there before."""
        for pid in processes() - before - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_all(self):
        """Kill every process but this one, and wait until they are gone."""
        deadline = time.monotonic() + GONE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self.reap()
            if not processes() - {os.getpid()}:
                return
            time.sleep(0.002)

    def wait(self, collected, is_over, deadline):
        """Drain pipes until `is_over()` or the deadline; return whether it is over."""
        poller = select.poll()
        for pipe in collected:
            poller.register(pipe.reader, select.POLLIN)
        poller.register(self.waker, select.POLLIN)
        while not is_over():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            ready = dict(poller.poll(remaining * 1000))
            self.sleep_again()
            for pipe in collected:
                if pipe.reader in ready and not pipe.drain():
                    poller.unregister(pipe.reader)
        for pipe in collected:
            pipe.drain()
        return True

    def script(self, request):
        """Run a program by itself; what it leaves in the background stays, and is not waited for."""
        before = processes()
        (output, output_writer), (errors, errors_writer) = os.pipe(), os.pipe()
        pipes = [Collected(output, request["bytes"]), Collected(errors, request["bytes"])]
        try:
            pid = self.start(request["command"], stdin=subprocess.DEVNULL, stdout=output_writer, stderr=errors_writer)
        except OSError as error:
            os.close(output)
            os.close(errors)
            return {"status": 127, "output": "", "errors": str(error)}
        finally:
            os.close(output_writer)
            os.close(errors_writer)
        in_time = self.wait(pipes, lambda: self.ended(pid), time.monotonic() + request["seconds"])
        if not in_time:
            self.kill_new(before)
            self.wait(pipes, lambda: self.ended(pid), time.monotonic() + GONE_SECONDS)
        self.children.discard(pid)
        text, is_cut = pipes[0].take()
        # Closed: a background process that still writes gets a signal, as under a terminal that went away.
        os.close(output)
        os.close(errors)
        status = self.statuses.pop(pid, None)
        return {
            "status": status if in_time else None,
            "output": text,
            "errors": pipes[1].take()[0],
            "is_cut": is_cut,
        }

    def start_shell(self):
        """Begin a shell, its first lines read; plainer ones if the policy's .bashrc does not end, or ends it."""
        for lines in (FIRST_LINES, "cd /\n"):
            self.shell = Shell(self)
            begun = self.shell.run(f"RANDOM={self.seed}\n{lines}", seconds=FIRST_SECONDS, limit=0, is_raw=True)
            if not begun["shell_ended"] and begun["status"] is not None:
                return

    def command(self, request):
        """Run a command in the shell that the commands before it ran in, or in a fresh one where that is gone."""
        try:
            if self.shell is None:
                self.start_shell()
            if self.shell is None:
                raise OSError("it ends at once")
            ran = self.shell.run(
                request["text"], seconds=request["seconds"], limit=request["bytes"], is_raw=request["is_raw"]
            )
        except OSError as error:
            return {"status": None, "output": f"no shell can be started: {error}", "shell_ended": True}
        if len(processes()) > self.limits["processes"] // 2:  # they go on forking, and nothing else can be started
            self.kill_all()
            if self.shell is not None:
                self.shell.close()
            ran |= {"too_many_processes": True, "shell_ended": True}
        return ran

    def answer(self, request):
        """Return what a request leads to."""
        if "since" in request:
            shift_times(request["folders"], request["since"], request["by"])
            return {"status": 0, "output": ""}
        return self.command(request) if "text" in request else self.script(request)


class Shell:
    """One shell; commands and what is around them are written to its input, line by line."""

    def __init__(self, guest):
        self.guest = guest
        reader, self.writer = os.pipe()
        output, self.output_writer = os.pipe()
        control, self.control_writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.output, self.control = Collected(output, 0), Collected(control, 1000)
        try:
            # Its own output goes nowhere: what it says there is about the lines around a command.
            self.pid = guest.start(
                ["/bin/bash"],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                keep=(self.output_writer, self.control_writer),
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(reader)

    def run(self, text, *, seconds, limit, is_raw):
        """Run a command. Raw, it is read as the shell's own lines, so that a shell it begins reads what follows."""
        before = processes()
        mark = os.urandom(8).hex()
        if not is_raw:
            text = f"builtin eval {shlex.quote(text)} </dev/null >&{self.output_writer} 2>&1"
        lines = f"{text}\nbuiltin printf '{mark} %d\\n' $? >&{self.control_writer}\n".encode()
        self.output.limit = limit
        self.control.drain()
        self.control.take()
        deadline = time.monotonic() + seconds

        def status():
            for line in self.control.content.splitlines(keepends=True):
                if line.startswith(mark.encode()) and line.endswith(b"\n"):
                    return int(line.split()[1])
            return None

        def is_over():
            return status() is not None or self.guest.ended(self.pid)

        pipes = [self.output, self.control]
        in_time = self.write(lines, pipes, deadline) and self.guest.wait(pipes, is_over, deadline)
        if not in_time:
            self.guest.kill_new(before)
            self.guest.wait(pipes, is_over, time.monotonic() + RETURN_SECONDS)
        output, is_cut = self.output.take()
        found = status()
        self.control.take()
        shell_ended = found is None
        if shell_ended:
            if not in_time:
                self.guest.kill_all()
            else:
                found = self.guest.statuses.get(self.pid)
            self.close()
        return {
            "status": found if in_time else None,
            "output": output,
            "is_cut": is_cut,
            "shell_ended": shell_ended,
        }

    def write(self, content, pipes, deadline):
        """Write to the shell's input, reading what comes out. Return whether it took all of it in time."""
        while content and time.monotonic() < deadline:
            try:
                content = content[os.write(self.writer, content) :]
            except BlockingIOError:
                self.guest.wait(pipes, lambda: False, min(deadline, time.monotonic() + 0.01))
            except BrokenPipeError:
                return True
        return not content

    def close(self):
        """Let go of it."""
        for pipe in (self.output, self.control):
            os.close(pipe.reader)
        for writer in (self.writer, self.output_writer, self.control_writer):
            os.close(writer)
        self.guest.children.discard(getattr(self, "pid", None))
        self.guest.shell = None


def shift_times(folders, since, by):
    """Move the times of all files below that were changed since then. Nanoseconds."""
    devices = {os.lstat(folder).st_dev for folder in folders if os.path.isdir(folder)}
    pending = list(folders)
    while pending:
        path = pending.pop()
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISDIR(found.st_mode) and found.st_dev in devices:
                pending.extend(os.path.join(path, name) for name in os.listdir(path))
            if found.st_mtime_ns >= since:
                os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + by), follow_symlinks=False)


def processes():
    """Return the ids of all processes."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def read_exactly(count, guest):
    """Return that many bytes of the input, reaping meanwhile; end with the input."""
    content = b""
    while len(content) < count:
        ready, _, _ = select.select([0, guest.waker], [], [])
        guest.sleep_again()
        guest.reap()
        if 0 in ready:
            chunk = os.read(0, count - len(content))
            if not chunk:
                sys.exit(0)
            content += chunk
    return content


def main():
    """Answer requests until there are no more."""
    guest = Guest(json.loads(sys.argv[2]), int(sys.argv[3]))
    while True:
        request = json.loads(read_exactly(int.from_bytes(read_exactly(4, guest), "big"), guest))
        content = json.dumps(guest.answer(request)).encode()
        content = len(content).to_bytes(4, "big") + content
        while content:
            content = content[os.write(1, content) :]


if __name__ == "__main__":
    main()
