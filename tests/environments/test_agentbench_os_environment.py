"""Episodes on real systems: rewards, the shell, forks, and whatever a policy may do to its system."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.environments.agentbench_os_tasks import CHANGE, COUNT, KINDS, MATCH, bash, begin, call, machine, world
from tests.environments.leftovers import processes_with

from midcourse.environments.agentbench_os import AgentBenchOSConfig
from midcourse.environments.agentbench_os.episode import CUT, FILE_CLOCK, shown
from midcourse.environments.agentbench_os.machine import Machine, MachineError
from midcourse.environments.base import ENVIRONMENTS
from midcourse.errors import ConfigError, EnvironmentFault, ReplayMismatchError
from midcourse.types import AssistantTurn, ToolCall

MARK = "midcourse-marker-9f2c"  # stands in the command line of what must not survive


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def environment(kind, tmp_path_factory):
    """Three tasks: a question, a change and a match."""
    folder = tmp_path_factory.mktemp("tasks")
    return world(folder, kind, COUNT, CHANGE, MATCH, command_seconds=20.0, disk_mebibytes=16)


@pytest.fixture(scope="module")
def hasty(kind, tmp_path_factory):
    """A question whose commands have a second, and few processes."""
    return world(tmp_path_factory.mktemp("tasks"), kind, COUNT, command_seconds=1.0, processes=32)


@pytest.fixture
def episode(environment):
    """A question's episode; whatever was done in it, nothing may be left afterwards."""
    episode = begin(environment)
    yield episode
    episode.close()
    assert survivors() == []
    assert remains(environment) == []


def survivors() -> list[str]:
    """Return the processes on this machine whose command line has the mark."""
    return processes_with(MARK)


def remains(environment) -> list[str]:
    """Return the control groups and mounts that are left of this process's systems."""
    groups = environment._sandbox._groups.values()
    found = [str(group) for parent in groups for group in parent.glob(f"midcourse-{os.getpid()}-*")]
    root = environment._sandbox.machine.root
    return found + ([line for line in Path("/proc/mounts").read_text().splitlines() if root and root in line])


def test_a_question_is_scored_by_its_answer(environment):
    for answer, reward in (("2", 1.0), (" 2\n", 1.0), (2, 1.0), ("3", 0.0), ("two", 0.0), ("", 0.0)):
        episode = begin(environment)
        assert call(episode, "answer_action", answer=answer).content == "ok"
        assert episode.score() == episode.score() == reward
        assert episode.act(AssistantTurn(tool_calls=(ToolCall("bash_action", {"script": "ls"}),))).results == ()
        episode.close()


def test_a_question_without_an_answer_is_worth_nothing(environment):
    episode = begin(environment)
    assert episode.score() == 0.0
    call(episode, "finish_action")
    assert episode.score() == 0.0
    episode.close()


def test_a_change_is_scored_by_the_system_with_or_without_an_end(environment):
    episode = begin(environment, 1)
    assert episode.score() == 0.0
    assert bash(episode, "chmod 600 ~/notes") == ""
    assert episode.score() == 1.0
    call(episode, "finish_action", thought="done")
    assert episode.score() == 1.0
    episode.close()


def test_a_match_is_exact_and_its_start_runs_in_the_shell(environment):
    for answer, reward in (("blue", 1.0), (" blue ", 1.0), ("Blue", 0.0), ("it is blue", 0.0)):
        episode = begin(environment, 2)
        assert bash(episode, "echo $colour; pwd") == "blue\n/tmp\n"
        call(episode, "answer_action", answer=answer)
        assert episode.score() == reward
        episode.close()


def test_tolerant_answers_are_asked_for_by_name(tmp_path):
    environment = world(tmp_path, "readonly", MATCH, COUNT, answers="tolerant")
    for number, answer, reward in ((0, "It is Blue.", 1.0), (0, "green", 0.0), (1, "There are 2.", 1.0), (1, "3", 0.0)):
        episode = begin(environment, number)
        call(episode, "answer_action", answer=answer)
        assert episode.score() == reward
        episode.close()


def test_the_shell_keeps_its_folder_and_variables(episode):
    assert bash(episode, "cd /tmp; x=5; alias say='echo said'; f() { echo f$1; }") == ""
    assert bash(episode, "pwd; echo $x; say; f 1\nfalse; echo $?") == "/tmp\n5\nsaid\nf1\n1\n"
    assert "unexpected EOF" in bash(episode, 'echo "open')
    assert "nope: command not found" in bash(episode, "nope")
    assert bash(episode, "pwd") == "/tmp\n"


def test_nothing_is_waited_for_on_standard_input(episode):
    began = time.monotonic()
    assert bash(episode, "cat; read line; echo got $line") == "got\n"
    assert time.monotonic() - began < 1.0


def test_output_is_cut_as_agentbench_cuts_it(episode):
    assert bash(episode, "printf 'x%.0s' $(seq 800)") == "x" * 800
    assert bash(episode, "printf 'x%.0s' $(seq 801)") == "x" * 780 + CUT
    assert bash(episode, r"printf '\033[31mred\033[0m\a'") == "red"
    assert shown("a\xff", is_cut=True) == "a\xff" + CUT


def test_a_hundred_megabytes_of_output_are_read_and_dropped(episode):
    result = call(episode, "bash_action", script="head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end >&2")
    assert result.content.startswith("The output of the OS:\n\n" + "x" * 780 + CUT)
    assert bash(episode, "echo after") == "after\n"


@pytest.mark.parametrize("script", ["sleep 60", "yes", "while :; do :; done", "while true; do sleep 0.2; done"])
def test_a_command_that_does_not_end_is_ended(hasty, script):
    episode = begin(hasty)
    began = time.monotonic()
    result = call(episode, "bash_action", script=f"cd /tmp; {script}")
    assert result.is_error
    assert "the command took longer than 1 seconds and was ended" in result.content
    assert time.monotonic() - began < 15
    where = bash(episode, "pwd; ps ax | wc -l")
    assert where.splitlines()[0] == ("/root" if "The shell has ended" in result.content else "/tmp")
    assert int(where.split()[1]) <= 6
    episode.close()


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$", "set -e; false", "exec true"])
def test_a_shell_that_ends_is_replaced(episode, script):
    bash(episode, "cd /tmp; x=5; echo kept > /tmp/file")
    result = call(episode, "bash_action", script=script)
    assert result.is_error
    assert "The shell has ended; the next command begins in a new one" in result.content
    assert bash(episode, "pwd; echo x=$x; cat /tmp/file") == "/root\nx=\nkept\n"


def test_killing_everything_ends_neither_system_nor_score(episode):
    call(episode, "bash_action", script="kill -9 -1; kill -9 1")
    assert bash(episode, "echo alive") == "alive\n"
    call(episode, "answer_action", answer="2")
    assert episode.score() == 1.0


def test_a_process_that_leaves_its_session_ends_with_the_episode(episode):
    bash(episode, f"(setsid nohup bash -c 'exec -a {MARK} sleep 600' >/dev/null 2>&1 &)")
    assert bash(episode, "sleep 0.2; ps ax | grep -c '[m]idcourse-marker'") == "1\n"
    assert survivors() != []


def test_forks_without_end_are_ended_and_said(hasty):
    if "pids" not in hasty._sandbox._groups:
        pytest.skip("no pids control group can be made here")
    episode = begin(hasty)
    seen = [call(episode, "bash_action", script=text) for text in (":(){ :|:& };:", "sleep 0.3", "sleep 0.3")]
    assert any("too many processes" in result.content or result.is_error for result in seen)
    assert bash(episode, "echo alive") == "alive\n"
    call(episode, "answer_action", answer="2")
    assert episode.score() == 1.0
    episode.close()
    assert remains(hasty) == []


def test_a_full_disk_is_the_policys_to_see(episode):
    assert "No space left on device" in bash(
        episode, "head -c 100000000 /dev/zero > /root/big; ls -s /root/big | wc -l"
    )
    assert int(bash(episode, "stat -c %s /root/big")) <= 16 * 2**20


def test_memory_is_bounded(episode):
    assert "MemoryError" in bash(episode, "python3 -c 'bytearray(3 * 10**9)'")


def test_the_machine_around_is_out_of_sight(episode, kind):
    with open(Path.home() / f".{MARK}", "w") as secret:
        paths = [secret.name, str(Path(__file__)), f"/proc/1/root{secret.name}", f"/proc/1/cwd/..{secret.name}"]
        seen = bash(episode, f"ls -d {' '.join(paths)} 2>/dev/null; env | grep -c PYTEST; echo end")
    os.unlink(secret.name)
    assert seen == "0\nend\n"
    refused = bash(
        episode,
        "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do"
        " (echo x > $f) 2>/dev/null && echo $f; done; mount -t tmpfs none /mnt 2>/dev/null && echo mounted;"
        " mknod /tmp/sda b 8 0 2>/dev/null && echo node;"
        " hostname other 2>/dev/null && echo named; date -s 2001-01-01 >/dev/null 2>&1 && echo dated; echo end",
    )
    assert refused == "end\n"
    assert "Network is unreachable" in bash(episode, "exec 3<>/dev/tcp/1.1.1.1/80")


def test_deleting_the_system_is_worth_nothing(episode):
    call(episode, "bash_action", script="rm -rf /root /tmp/* /home /usr/bin /bin --no-preserve-root 2>/dev/null")
    call(episode, "bash_action", script="ls")
    call(episode, "answer_action", answer="2")
    assert episode.score() == 0.0


def test_the_next_episode_starts_clean(environment, episode):
    bash(episode, "touch ~/c.txt; echo exit > ~/.bashrc; rm -f ~/a.txt; touch /tmp/left")
    other = begin(environment)
    assert bash(other, "ls ~ /tmp") == "/root:\na.txt\nb.txt\nc.log\ndraw\n\n/tmp:\n"
    other.close()


def test_a_bashrc_that_ends_the_shell_does_not_keep_it_from_starting(episode):
    bash(episode, "echo exit 1 > ~/.bashrc")
    call(episode, "bash_action", script="exit")
    assert bash(episode, "echo alive") == "alive\n"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("shell", {"script": "ls"}, "unknown tool 'shell'; expected one of bash_action, finish_action, answer_action"),
        ("bash_action", {}, "expects the argument script and no other: got none"),
        ("bash_action", {"script": "ls", "cwd": "/"}, "no other: got script, cwd"),
        ("bash_action", {"script": 5}, "expects script to be text"),
        ("bash_action", {"script": "a\0b"}, "must not hold the character NUL"),
        ("bash_action", {"script": "\ud800"}, "half of a surrogate pair"),
        ("bash_action", {"script": "x" * 70_000}, "has 70000 bytes; at most 65536"),
        ("answer_action", {"answer": ["2"]}, "expects answer to be text"),
        ("answer_action", {"answer": True}, "expects answer to be text"),
    ],
)
def test_a_bad_call_goes_back_to_the_policy(environment, name, arguments, message):
    episode = begin(environment)
    result = call(episode, name, **arguments)
    assert result.is_error
    assert message in result.content
    episode.close()


def test_a_turn_without_a_call_ends_the_episode_and_eight_turns_do(environment):
    episode = begin(environment)
    assert not episode.act(AssistantTurn(parse_error="no JSON")).done
    assert episode.act(AssistantTurn(content="2")).done
    episode.close()
    episode = begin(environment)
    for _ in range(8):
        bash(episode, "true")
    assert episode.act(AssistantTurn(tool_calls=(ToolCall("answer_action", {"answer": "2"}),))).done
    assert episode.score() == 0.0
    episode.close()


def test_a_fork_has_the_same_files_draws_and_times_and_goes_its_own_way(environment):
    hour = 3600 * 10**9
    began = time.clock_gettime_ns(FILE_CLOCK)
    first = begin(environment)
    draws = bash(first, "cd /tmp; echo $RANDOM > d; mkdir e; cat ~/draw d")
    # As if all this had been an hour ago.
    moments = first._start.args[2]  # pyright: ignore[reportFunctionMemberAccess]
    for step in moments:
        moments[step] -= hour
    first._episode._machine.shift_times(since=began, by=-hour)  # pyright: ignore
    hours = "ls -lA --time-style=+%H ~ .; ls -ld --time-style=+%H ~ e"
    before = bash(first, hours)
    assert f" {time.strftime('%H', time.gmtime(time.time() - 3600))} e\n" in before
    fork = first.fork()
    assert bash(fork, "pwd; cat ~/draw d") == "/tmp\n" + draws
    assert bash(fork, hours) == before
    bash(fork, "rm d")
    assert bash(first, "cat ~/draw d") == draws
    fork.close()
    first.close()
    assert remains(environment) == []


def test_a_world_that_answers_otherwise_is_no_fork(episode):
    bash(episode, "head -c 8 /dev/urandom | od -x")
    fork = episode.fork()
    with pytest.raises(ReplayMismatchError, match="at turn 1 of 1 bash_action answered"):
        fork.score()
    fork.close()


def test_seeds_change_what_scripts_draw_and_nothing_else(environment):
    draws = []
    for seed in (0, 0, 1):
        episode = begin(environment, seed=seed)
        draws.append(bash(episode, "cat ~/draw"))
        episode.close()
    assert draws[0] == draws[1] != draws[2]


def test_a_task_that_cannot_be_set_up_is_a_fault(tmp_path):
    broken = COUNT | {"create": {"init": "echo why >&2; exit 3"}}
    endless = COUNT | {"create": {"init": "sleep 60"}}
    stuck = MATCH | {"start": "sleep 60"}
    environment = world(tmp_path, "readonly", broken, endless, stuck, script_seconds=0.5, command_seconds=0.5)
    for number, message in ((0, "fails with status 3: why"), (1, "takes too long"), (2, "does not come to an end")):
        with pytest.raises(EnvironmentFault, match=message):
            begin(environment, number)
    assert remains(environment) == []


def test_a_check_that_does_not_end_is_a_fault_and_no_reward(tmp_path):
    record = CHANGE | {"evaluation": {"check": "sleep 60", "example": "true"}}
    episode = begin(world(tmp_path, "readonly", record, script_seconds=0.5))
    with pytest.raises(EnvironmentFault, match="a check does not come to an end"):
        episode.score()
    episode.close()


def test_background_processes_of_a_script_are_not_waited_for(tmp_path):
    record = COUNT | {"create": {"init": "cd ~; touch a.txt; (sleep 60; echo late) &"}}
    began = time.monotonic()
    episode = begin(world(tmp_path, "readonly", record))
    call(episode, "answer_action", answer="1")
    assert episode.score() == 1.0
    episode.close()
    assert time.monotonic() - began < 30


def test_a_system_that_goes_away_is_a_fault(environment):
    episode = begin(environment)
    episode._episode._machine._box.close()
    with pytest.raises(MachineError, match="the system ended"):
        call(episode, "bash_action", script="ls")
    episode.close()
    episode.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"\0\0\0\2{}", "otherwise than agreed"),
        (b"\0\0\0\x10" + b'{"status": "0"}x', "otherwise than agreed"),
        (b"\x7f\0\0\0", "more than"),
        (b"\0\0", "the system ended"),
    ],
)
def test_what_the_inside_answers_is_not_trusted(environment, answer, message):
    inside = Machine(environment._sandbox)
    reader, writer = os.pipe()
    os.write(writer, answer)
    os.close(writer)
    os.dup2(reader, inside._reader)
    os.close(reader)
    with pytest.raises(MachineError, match=message):
        inside.command("true")
    inside.close()


def test_episodes_run_in_several_threads_and_outlive_the_one_that_began_them(environment):
    episodes = []
    threads = [threading.Thread(target=lambda: episodes.append(begin(environment))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [bash(episode, "echo alive") for episode in episodes] == ["alive\n"] * 3
    for episode in episodes:
        episode.close()


def test_a_system_ends_with_the_process_that_made_it(environment, tmp_path):
    config = environment._sandbox.machine
    source = f"""
from midcourse.environments.agentbench_os import MachineConfig
from midcourse.environments.agentbench_os.machine import Machine
machine = Machine(MachineConfig.model_validate_json({config.model_dump_json()!r}).build())
machine.command("(exec -a {MARK} sleep 600) &")
print("up", flush=True)
import time; time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
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


def test_users_and_the_whole_system_are_there_on_an_overlay(tmp_path):
    episode = begin(world(tmp_path, "overlay", COUNT))
    assert bash(episode, "useradd -m -s /bin/bash joe; su - joe -c 'id -un; pwd; cat /etc/shadow 2>&1 | wc -l'") == (
        "joe\n/home/joe\n1\n"
    )
    assert (
        bash(episode, "echo x > /usr/file; cat /usr/file; rm /usr/bin/tree; ls /usr/bin/tree 2>&1 | wc -l") == "x\n1\n"
    )
    episode.close()
    start = MATCH | {"start": "useradd -m -s /bin/bash joe && su - joe"}
    episode = begin(world(tmp_path, "overlay", start))
    assert bash(episode, "whoami; pwd") == "joe\n/home/joe\n"
    assert bash(episode, "whoami") == "joe\n"
    episode.close()


def test_the_environment_is_registered_and_refuses_what_it_has_not(environment):
    assert ENVIRONMENTS["agentbench_os"] is AgentBenchOSConfig
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        environment.tasks("dev")
    with pytest.raises(ConfigError, match=r"environment\.test\.path must name a file"):
        environment.tasks("test")
    with pytest.raises(ConfigError, match="must name a file"):
        AgentBenchOSConfig(machine=machine("readonly")).build()
