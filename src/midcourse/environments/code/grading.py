"""Verdicts on answers: what ran where, and who decides.

An answer is run in a box that holds neither tests nor expected values. Calls: a checker in a second box asks it for
values and compares them. Programs: their output is compared here. So no line of the answer runs in the process that
decides, and printing, exiting or overwriting anything changes only what the answer says for itself.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from midcourse.environments.code.output import same_output
from midcourse.environments.sandbox import Box, Ending, Sandbox, SandboxError, exchange
from midcourse.environments.sandbox.command import python_command

OUT_OF_MEMORY = 86  # as in guest.py
KILLED_FOR_CPU = (128 + 24, 128 + 9, -24, -9)  # SIGXCPU at the limit; SIGKILL where that was ignored
OPEN_FILES = 256
EXIT_SECONDS = 2.0
QUEUE_SECONDS = 600.0
VERDICT_BYTES = 65536
REPLY_PIPE_BYTES = 2**20
REASON_CHARACTERS = 300


class Verdict(StrEnum):
    """What came of an answer. A sandbox error says nothing about it and is never a reward."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    SANDBOX_ERROR = "sandbox_error"


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, why, and how long it took."""

    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTests:
    """Tests that call what the answer defines. `script` runs in the checker with `data`, and with `names` bound."""

    script: str = field(repr=False)
    names: Mapping[str, str]  # name in the script -> name in the answer
    prelude: str = field(default="", repr=False)  # code that the answer may take for granted
    data: Any = field(default=None, repr=False)  # as guest.encode made it


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTests:
    """Tests that run the answer as a program: (standard input, expected output) each."""

    cases: Sequence[tuple[str, str]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """What a program wrote, and the verdict on it where it did not end well by itself."""

    output: str
    problem: Verdict | None
    reason: str


class Grader:
    """Grades answers, so many at a time. Called from the threads of many rollouts at once."""

    def __init__(self, sandbox: Sandbox, *, concurrency: int, packages: Sequence[str] = ()) -> None:
        """`packages` are folders on the answer's import path, readable in the sandbox; `concurrency` is at least 1."""
        self._sandbox = sandbox
        self._free = threading.BoundedSemaphore(concurrency)
        self._packages = list(packages)
        limits = sandbox.limits
        self._limits = {
            "memory": limits.memory_bytes,
            "file": limits.file_bytes,
            "cpu": limits.cpu_seconds,
            "processes": limits.processes,
            "files": OPEN_FILES,
        }

    def grade(self, source: str, tests: CallTests | ProgramTests) -> Grade:
        """Return the verdict on an answer. Waits for its turn; the seconds are those of the grading alone."""
        if not self._free.acquire(timeout=QUEUE_SECONDS):
            return Grade(Verdict.SANDBOX_ERROR, f"no place was free to grade in within {QUEUE_SECONDS:g} s")
        started = time.monotonic()
        try:
            if isinstance(tests, CallTests):
                verdict, reason = self._grade_calls(source, tests)
            else:
                verdict, reason = self._grade_programs(source, tests)
        except SandboxError as error:
            verdict, reason = Verdict.SANDBOX_ERROR, str(error)
        finally:
            self._free.release()
        return Grade(verdict, reason[:REASON_CHARACTERS], time.monotonic() - started)

    def _guest(self, part: str, **settings: Any) -> list[str]:
        settings |= {"packages": self._packages, "limits": self._limits}
        return python_command(_guest_source(), [part, json.dumps(settings)])

    def _grade_calls(self, source: str, tests: CallTests) -> tuple[Verdict, str]:
        config = self._sandbox.config
        job = {
            "prelude": tests.prelude,
            "source": source,
            "script": tests.script,
            "names": dict(tests.names),
            "data": tests.data,
        }
        with contextlib.ExitStack() as stack:
            to_candidate, from_checker, to_checker, from_candidate, verdicts, verdict_writer = _pipes(stack, 3)
            candidate = stack.enter_context(
                self._sandbox.start(self._guest("candidate"), stdin=to_candidate.fd, stdout=from_candidate.fd)
            )
            checker = stack.enter_context(
                self._sandbox.start(
                    self._guest("checker", reply_bytes=config.output_bytes),
                    stdin=to_checker.fd,
                    stdout=from_checker.fd,
                    stderr=verdict_writer.fd,
                )
            )
            with contextlib.suppress(OSError):  # a wish: the two take turns, and in small steps that is slow
                fcntl.fcntl(from_candidate.fd, fcntl.F_SETPIPE_SZ, REPLY_PIPE_BYTES)
            # Only the boxes hold these ends from here on, so that the end of a box is seen by the other one.
            for end in (to_candidate, from_checker, to_checker, verdict_writer):
                end.close()
            heard = exchange(
                from_candidate.release(),
                verdicts.fd,
                json.dumps(job).encode() + b"\n",
                start_seconds=config.start_seconds,
                wall_seconds=config.wall_seconds,
                output_bytes=VERDICT_BYTES,
            )
            return self._verdict(heard.output, heard.ending, candidate, checker)

    def _verdict(self, output: bytes, ending: Ending, candidate: Box, checker: Box) -> tuple[Verdict, str]:
        first, _, rest = output.decode(errors="replace").partition("\n")
        if first != "running":
            said = _said(first) or (Verdict.SANDBOX_ERROR, f"the tests did not start: {first} {ending}")
            return said[0], f"{said[1]} {candidate.error_text()} {checker.error_text()}".strip()
        if ending is Ending.TIMEOUT:
            return Verdict.TIMEOUT, f"not finished within {self._sandbox.config.wall_seconds:g} s"
        said = _said(rest)
        if said is None:
            # The checker runs tests that are known to pass: only what came back can have been too much for it.
            return self._why_gone(checker, "what came back could not be read")
        if said[0] is None:
            return self._why_gone(candidate, said[1])
        return said

    def _why_gone(self, box: Box, otherwise: str) -> tuple[Verdict, str]:
        status = box.wait(EXIT_SECONDS)
        if box.ran_out_of_memory():
            return Verdict.MEMORY, "used more memory than it may"
        if status in KILLED_FOR_CPU:
            return Verdict.TIMEOUT, f"used more than {self._limits['cpu']} s of CPU time"
        return Verdict.FAILED, otherwise

    def run(self, source: str, given: str, *, wall_seconds: float | None = None) -> ProgramRun:
        """Return what a program writes that reads `given`.

        Args:
            source: Python.
            given: its standard input.
            wall_seconds: longest wall clock; None takes the sandbox's.

        Raises:
            SandboxError: it could not be run.
        """
        config = self._sandbox.config
        text = source.encode(errors="replace")
        with contextlib.ExitStack() as stack:
            reader, writer, output, output_writer = _pipes(stack, 2)
            box = stack.enter_context(
                self._sandbox.start(
                    self._guest("program", source_bytes=len(text)), stdin=reader.fd, stdout=output_writer.fd
                )
            )
            reader.close()
            output_writer.close()
            heard = exchange(
                writer.release(),
                output.fd,
                text + given.encode(errors="replace"),
                start_seconds=config.start_seconds,
                wall_seconds=config.wall_seconds if wall_seconds is None else wall_seconds,
                output_bytes=config.output_bytes,
            )
            first, _, written = heard.output.partition(b"\n")
            if first != b"running":
                raise SandboxError(f"the program did not start: {heard.ending} {box.error_text()}".strip())
            return ProgramRun(written.decode(errors="replace"), *self._problem_of(heard.ending, box))

    def _problem_of(self, ending: Ending, box: Box) -> tuple[Verdict | None, str]:
        config = self._sandbox.config
        if ending is Ending.TIMEOUT:
            return Verdict.TIMEOUT, f"not finished within {config.wall_seconds:g} s for all tests"
        if ending is Ending.TOO_MUCH:
            return Verdict.FAILED, f"wrote more than {config.output_mebibytes} MiB"
        status = box.wait(EXIT_SECONDS)
        if status == OUT_OF_MEMORY:
            return Verdict.MEMORY, "used more memory than it may"
        return (None, "") if status == 0 else self._why_gone(box, f"ended with status {status}")

    def _grade_programs(self, source: str, tests: ProgramTests) -> tuple[Verdict, str]:
        remaining = self._sandbox.config.wall_seconds
        for number, (given, expected) in enumerate(tests.cases):
            started = time.monotonic()
            run = self.run(source, given, wall_seconds=remaining)
            remaining = max(remaining - (time.monotonic() - started), 0.0)
            if run.problem is not None:
                return run.problem, f"test {number}: {run.reason}"
            if not same_output(run.output, expected):
                return Verdict.FAILED, f"test {number}: another output than expected"
        return Verdict.PASSED, ""


def _said(line: str) -> tuple[Any, str] | None:
    """Return the checker's verdict (None for an answer whose process is gone) and reason; None if it said nothing."""
    try:
        said = json.loads(line)
        verdict = said["verdict"]
    except (ValueError, TypeError, KeyError):
        return None
    return None if verdict == "gone" else Verdict(verdict), said["reason"]


@cache
def _guest_source() -> str:
    text = files("midcourse.environments.code").joinpath("guest.py").read_text(encoding="utf-8")
    return f"{text}\n\nmain()\n"


class _End:
    """One end of a pipe, closed at most once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.release())

    def release(self) -> int:
        """Return the descriptor, which is the caller's to close from then on."""
        fd, self.fd = self.fd, -1
        return fd


def _pipes(stack: contextlib.ExitStack, count: int) -> list[_End]:
    """Return reading and writing ends in turn, closed with the stack."""
    ends: list[_End] = []
    for _ in range(count):
        for fd in os.pipe():
            end = _End(fd)
            stack.callback(end.close)
            ends.append(end)
    return ends
