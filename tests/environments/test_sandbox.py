"""What code in a box can reach, and what is left of it. Each hostile program runs under every kind that works here."""

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from tests.environments.leftovers import processes_with

from midcourse.environments.sandbox import Ending, Sandbox, SandboxConfig, SandboxError, exchange
from midcourse.environments.sandbox.cgroup import LimitGroup, group_parents
from midcourse.environments.sandbox.command import bubblewrap_command, interpreter, joining_command, python_command
from midcourse.errors import ConfigError

MARK = "midcourse-marker-5b1d"  # stands in the command line of what must not survive


def build(kind: str, **settings) -> Sandbox:
    """Return a sandbox, or skip with what this machine lacks."""
    try:
        return SandboxConfig(kind=kind, **settings).build()
    except ConfigError as error:
        pytest.skip(str(error))


def run(sandbox: Sandbox, source: str, *, wall_seconds: float = 20.0, output_bytes: int = 100_000):
    """Return what the program wrote, why reading stopped, and its exit status."""
    (unread, writer), (reader, written) = os.pipe(), os.pipe()
    try:
        with sandbox.start(python_command(source, [MARK]), stdin=unread, stdout=written) as box:
            os.close(written)
            heard = exchange(
                writer, reader, b"", start_seconds=30, wall_seconds=wall_seconds, output_bytes=output_bytes
            )
            status = box.wait(2.0) if heard.ending is Ending.CLOSED else None
    finally:
        os.close(unread)
        os.close(reader)
    return heard, status


def survivors() -> list[str]:
    """Return the processes on this machine whose command line has the mark."""
    return processes_with(MARK)


@pytest.fixture(scope="module")
def bubblewrap():
    return build("bubblewrap")


def test_a_box_sees_neither_the_home_nor_the_working_folder_nor_the_environment(bubblewrap, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    with NamedTemporaryFile(dir=Path.home(), prefix=".midcourse-test-") as secret:
        paths = [secret.name, str(Path(__file__)), "/etc/passwd", "/etc/shadow", "/proc/1/root" + secret.name]
        heard, status = run(
            bubblewrap, f"import os; print([p for p in {paths} if os.path.exists(p)], 'SECRET_TOKEN' in os.environ)"
        )
    assert (status, heard.output) == (0, b"[] False\n")


def test_a_box_writes_to_its_own_temporary_folder_alone(bubblewrap):
    paths = ["/x", "/usr/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/proc/self/oom_score_adj", "/tmp/x"]
    source = f"""
for path in {paths}:
    try:
        open(path, "a").close()
        print("opened", path)
    except OSError:
        pass
"""
    heard, status = run(bubblewrap, source)
    assert (status, heard.output) == (0, b"opened /tmp/x\n")
    heard, _ = run(bubblewrap, "import os; print(os.listdir('/tmp'))")
    assert heard.output == b"[]\n"


def test_a_box_has_no_network(bubblewrap):
    heard, _ = run(
        bubblewrap,
        """
import socket
for address in (("1.1.1.1", 53), ("8.8.8.8", 80)):
    try:
        socket.create_connection(address, timeout=2)
        print("connected")
    except OSError as error:
        print(error.errno)
""",
    )
    assert heard.output == b"101\n101\n"  # ENETUNREACH: there is no route, it is not that nobody answered


def test_a_box_does_not_reach_a_server_of_this_machine(bubblewrap):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        heard, _ = run(
            bubblewrap,
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 2); print('in')\n"
            "except OSError as e: print(e.errno)",
        )
    assert heard.output == b"111\n"


def test_a_box_has_no_capability_and_cannot_mount(bubblewrap):
    source = """
import ctypes
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")])
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.umount(b"/usr"))
"""
    heard, _ = run(bubblewrap, source)
    assert heard.output == b"['0000000000000000']\n-1 -1\n"


@pytest.mark.parametrize("kind", ["bubblewrap", "process"])
def test_processes_that_left_their_session_die_with_the_box(kind):
    sandbox = build(kind)
    if kind == "process" and not (sandbox._prefix or sandbox._groups):
        pytest.skip("neither pid namespaces nor control groups can be made here")
    source = """
import os, sys, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print("up", flush=True)
            os.close(1)
            time.sleep(600)
        os._exit(0)
time.sleep(1)
"""
    heard, _ = run(sandbox, source)
    assert heard.output.count(b"up") == 5
    assert survivors() == []


@pytest.mark.parametrize("kind", ["bubblewrap", "process"])
def test_a_fork_bomb_is_bounded_and_leaves_nothing(kind):
    sandbox = build(kind, processes=32)
    if "pids" not in sandbox._groups:
        pytest.skip("no pids control group can be made here")
    started = time.monotonic()
    source = """
import os, time
print("started", flush=True)
count = 0
while True:
    try:
        if os.fork() == 0:
            continue
        count += 1
    except OSError:
        print("refused after", count, flush=True)
        time.sleep(600)
"""
    heard, _ = run(sandbox, source, wall_seconds=1.5)
    assert heard.ending is Ending.TIMEOUT
    refused = [line for line in heard.output.splitlines() if line.startswith(b"refused after")]
    assert 0 < len(refused) <= 32
    assert survivors() == []
    assert time.monotonic() - started < 20


def test_memory_of_many_processes_is_bounded_together():
    sandbox = build("bubblewrap", memory_mebibytes=128)
    if "memory" not in sandbox._groups:
        pytest.skip("no memory control group can be made here")
    source = """
import os, time
print("started", flush=True)
for _ in range(8):
    if os.fork() == 0:
        block = bytearray(b"x" * (40 << 20))
        time.sleep(600)
time.sleep(600)
"""
    (unread, writer), (reader, written) = os.pipe(), os.pipe()
    with sandbox.start(python_command(source, [MARK]), stdin=unread, stdout=written) as box:
        deadline = time.monotonic() + 20
        while not box.ran_out_of_memory() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert box.ran_out_of_memory()
    for descriptor in (unread, writer, reader, written):
        os.close(descriptor)
    assert survivors() == []


def test_gigabytes_of_output_are_read_up_to_the_limit():
    sandbox = build("process")
    heard, _ = run(sandbox, "while True: print('x' * 100_000)", output_bytes=1_000_000)
    assert heard.ending is Ending.TOO_MUCH
    assert 1_000_000 < len(heard.output) <= 1_000_000 + 2**16
    assert survivors() == []


def test_output_that_stops_coming_ends_at_the_deadline():
    sandbox = build("process")
    started = time.monotonic()
    heard, _ = run(sandbox, "import time; print(1, flush=True); time.sleep(600)", wall_seconds=0.3)
    assert (heard.output, heard.ending) == (b"1\n", Ending.TIMEOUT)
    assert time.monotonic() - started < 10


def test_a_box_that_says_nothing_has_not_started():
    heard, status = run(build("process"), "raise SystemExit(3)")
    assert (heard.output, heard.ending) == (b"", Ending.NOT_STARTED)
    assert status is None


def test_a_message_longer_than_a_pipe_arrives_whole():
    source = "import os\nos.write(1, b'?')\nn = 0\nwhile c := os.read(0, 65536): n += len(c)\nprint(n)"
    (unread, writer), (reader, written) = os.pipe(), os.pipe()
    with build("process").start(python_command(source, []), stdin=unread, stdout=written):
        os.close(unread)
        os.close(written)
        heard = exchange(writer, reader, b"m" * 1_000_000, start_seconds=20, wall_seconds=20, output_bytes=1000)
    os.close(reader)
    assert heard.output == b"?1000000\n"


def test_the_plain_kind_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sandbox = build("process")
    heard, _ = run(sandbox, "import os; open('left', 'w').close(); print(os.getcwd() == os.environ['HOME'])")
    assert heard.output == b"True\n"
    assert list(tmp_path.iterdir()) == []


def test_no_sandbox_is_an_error_that_names_the_weaker_kind(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match=r'bwrap was not found.*ask for the weaker kind "process" by name'):
        SandboxConfig().build()


def test_a_bubblewrap_that_does_not_work_here_is_an_error_with_its_message(tmp_path, monkeypatch):
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"does not work on this machine.*No permissions to create new namespace"):
        SandboxConfig().build()


def test_a_box_that_cannot_be_started_is_a_fault_of_the_sandbox(monkeypatch):
    sandbox = build("process")
    monkeypatch.setattr(sandbox, "_groups", {})
    monkeypatch.setattr(sandbox, "_prefix", ["/nowhere/unshare"])
    descriptors = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxError, match="cannot be started"):
        sandbox.start(python_command("", []), stdin=0, stdout=1)
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_a_box_dies_with_the_process_that_made_it(bubblewrap):
    source = f"""
import sys
from midcourse.environments.sandbox import SandboxConfig
from midcourse.environments.sandbox.command import python_command
sandbox = SandboxConfig().build()
program = python_command("import time; print('up', flush=True); time.sleep(600)", [{MARK!r}])
box = sandbox.start(program, stdin=0, stdout=1)
box.wait(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"up\n"
        assert survivors() != []
        owner.kill()
        owner.wait()
    deadline = time.monotonic() + 10
    while survivors() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert survivors() == []
    remains = [group for parent in bubblewrap._groups.values() for group in parent.glob(f"midcourse-{owner.pid}-*")]
    assert len(remains) == len(bubblewrap._groups)
    build("bubblewrap")  # takes away what the killed process could not
    assert not any(group.exists() for group in remains)


def test_closing_a_box_twice_is_harmless_and_no_descriptor_is_left(bubblewrap):
    run(bubblewrap, "print(1)")
    descriptors = len(os.listdir("/proc/self/fd"))
    box = bubblewrap.start(python_command("import time; time.sleep(600)", [MARK]), stdin=0, stdout=1)
    box.close()
    box.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert survivors() == []


def test_the_bubblewrap_command_keeps_private_what_it_must():
    limits = SandboxConfig(file_mebibytes=3).limits
    command = bubblewrap_command(
        ["prog", "--flag"], bubblewrap="/x/bwrap", limits=limits, readable=["/data/packages"], info_fd=7
    )
    text = " ".join(command)
    assert command[0] == "/x/bwrap"
    for part in (
        "--unshare-all --die-with-parent --new-session --cap-drop ALL",
        "--info-fd 7",
        "--ro-bind /usr /usr",
        f"--size {3 * 2**20} --tmpfs /tmp",
        "--ro-bind /data/packages /data/packages",
        "--remount-ro /proc --remount-ro /dev --remount-ro /",
    ):
        assert part in text
    assert text.endswith("--chdir /tmp -- prog --flag")
    assert " --bind " not in text
    assert "--share-net" not in text
    # A readable folder may lie below /tmp: bound before it, the private folder would hide it.
    assert command.index("/data/packages") > command.index("/tmp")


def test_answers_run_on_this_python_outside_its_virtual_environment():
    version = subprocess.run(
        [interpreter(), "-c", "import sys; print(sys.version_info[:2] + (sys.prefix == sys.base_prefix,))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert version.strip() == f"({sys.version_info[0]}, {sys.version_info[1]}, True)"


def test_joining_quotes_folders_and_needs_no_shell_where_there_is_no_group():
    assert joining_command(["a", "b"], []) == ["a", "b"]
    joined = joining_command(["a", "$x"], [Path("/g/one two/cgroup.procs")])
    assert joined == ["/bin/sh", "-c", "echo $$ > '/g/one two/cgroup.procs' && exec \"$@\"", "sh", "a", "$x"]


def test_groups_are_found_in_both_versions_and_limits_written(tmp_path):
    """A folder stands in for the kernel's: it makes no control files, so they are laid out by hand."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "pids" / "a").mkdir(parents=True)
    own.write_text("5:pids:/a\n4:memory:/only/on/the/host\n0::/\n")
    assert group_parents(root, own) == {}  # nothing here makes a pids.max
    group = LimitGroup({"pids": root / "pids" / "a"}, SandboxConfig(processes=9).limits)
    (member_file,) = group.member_files
    assert member_file.parent.parent == root / "pids" / "a"
    assert group.remove()
    assert list((root / "pids" / "a").iterdir()) == []
    own.unlink()
    assert group_parents(root, own) == {}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\n", True),
        ("memory.events", "low 0\noom_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True),
        ("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0\n", False),
    ],
)
def test_a_kill_for_want_of_memory_is_read_in_both_versions(tmp_path, name, text, expected):
    group = LimitGroup({"memory": tmp_path}, SandboxConfig().limits)
    (group.member_files[0].parent / name).write_text(text)
    assert group.ran_out_of_memory() is expected
