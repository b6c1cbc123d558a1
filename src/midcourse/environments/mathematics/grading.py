"""Grading in bounded time, from any thread: each grader is a process that can be ended (grading_worker.py).

The limit is CPU time, so a loaded machine does not turn a right answer into a wrong one. An answer that its grader
did not survive is the policy's doing and is worth 0; a grader that cannot be started or stands still is the world's
fault and fails the rollout.
"""

import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from midcourse.errors import ConfigError, EnvironmentFault

logger = logging.getLogger(__name__)

WORKER_FILE = Path(__file__).with_name("grading_worker.py")
WORKER_ENVIRONMENT = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR")
"""Variables that a grading process is given. Keys of services are not among them: graders interpret foreign text."""
START_SECONDS = 120.0
WALL_FACTOR = 20.0
"""A grader that has not answered after this many times its CPU seconds stands still."""
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,100}")
PACKAGES = {"math_verify": "math-verify", "reasoning_gym": "reasoning-gym"}


class GradingConfig(BaseModel):
    """Limits of grading one answer."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    cpu_seconds: float = Field(default=2.0, gt=0, le=60)
    """CPU time for one answer; an answer that needs more is wrong."""
    memory_mb: int = Field(default=1024, ge=64)
    """Memory that a grading process may take beyond what it has when it starts, in MiB (Linux)."""
    max_answer_characters: int = Field(default=1000, ge=1)
    """Longer answers are wrong and are not graded."""
    processes: int = Field(default=2, ge=1)
    """Grading processes at most; each is started when it is first needed."""


class Verdict(StrEnum):
    """What became of an answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TOO_LONG = "too_long"
    OUT_OF_TIME = "out_of_time"  # the grader used up its CPU seconds
    CRASHED = "crashed"  # the grader died of it, twice


class AnswerNotGraded(Exception):
    """A grader did not survive an answer. `verdict` says in which way."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.value)
        self.verdict = verdict


class GraderPool:
    """A few grading processes that threads share; a process that dies is replaced.

    Args:
        grader: "math_verify" or "reasoning_gym".
        settings: what the grader is made with.
        config: limits.

    Raises:
        ConfigError: the grader's package is not installed.
    """

    def __init__(self, grader: str, *, settings: Mapping[str, Any] | None = None, config: GradingConfig) -> None:
        if find_spec(grader) is None:
            raise ConfigError(
                f"grading needs {PACKAGES[grader]}, not installed: pip install -e '.[mathematics]' in the clone"
                if grader == "math_verify"
                else f"this source needs {PACKAGES[grader]}: pip install -e '.[reasoning-gym]' in the clone"
            )
        self.config = config
        self._message = json.dumps(
            {
                **(settings or {}),
                "grader": grader,
                "cpu_seconds": config.cpu_seconds,
                "memory_bytes": config.memory_mb * 2**20,
            }
        )
        # A started process is put on top, so that a second one is started only while the first is busy.
        self._places: queue.LifoQueue[_GraderProcess | None] = queue.LifoQueue()
        for _ in range(config.processes):
            self._places.put(None)
        self._finalizer = weakref.finalize(self, _close_all, self._places)

    def prepare(self) -> None:
        """Start a first process without waiting for it: loading a grader takes a second or more."""
        try:
            process = self._places.get_nowait()
        except queue.Empty:
            return
        try:
            process = process or self._start()
        finally:
            self._places.put(process)

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Return the grader's answer to one request.

        Raises:
            AnswerNotGraded: the request used up its CPU seconds, or two processes died of it.
            EnvironmentFault: a grader cannot be started, or stands still.
        """
        for is_last in (False, True):
            process = self._places.get() or self._start()
            try:
                return process.ask(request, wall_seconds=WALL_FACTOR * self.config.cpu_seconds)
            except _ProcessDied as death:
                if death.status == -signal.SIGPROF:
                    raise AnswerNotGraded(Verdict.OUT_OF_TIME) from death
                # Somebody else may have ended the process, so the answer is blamed for its second death only.
                if is_last:
                    raise AnswerNotGraded(Verdict.CRASHED) from death
            finally:
                self._places.put(None if process.is_closed else process)
                if process.is_closed:
                    self.prepare()
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """End the processes; safe to call twice. Without it they end with the pool or with this process."""
        self._finalizer()

    def _start(self) -> "_GraderProcess":
        return _GraderProcess(self._message)


class MathVerifyGrader:
    """Compares answers with references: equal texts and whole numbers at once, all else by math-verify.

    Raises:
        ConfigError: math-verify is not installed.
    """

    def __init__(self, config: GradingConfig) -> None:
        self.config = config
        self.pool = GraderPool("math_verify", config=config)
        self._readable: set[str] = set()

    def grade(self, answer: str | None, *, reference: str) -> Verdict:
        """Return whether the answer equals the reference.

        Args:
            answer: as `find_answer` found it.
            reference: LaTeX or plain text, without dollar signs.

        Raises:
            EnvironmentFault: the reference cannot be read, or no grader answers.
        """
        if answer is None:
            return Verdict.NO_ANSWER
        if len(answer) > self.config.max_answer_characters:
            return Verdict.TOO_LONG
        if answer == reference:
            return Verdict.CORRECT
        if _WHOLE_NUMBER.fullmatch(answer) and _WHOLE_NUMBER.fullmatch(reference):
            # The common case need not wait for a process that a hostile answer of another rollout keeps busy.
            return Verdict.CORRECT if int(answer) == int(reference) else Verdict.WRONG
        self._check(reference)
        try:
            is_equal = self.pool.ask({"reference": reference, "answer": answer})
        except AnswerNotGraded as error:
            logger.warning("an answer of %d characters was not graded: %s", len(answer), error.verdict.value)
            return error.verdict
        return Verdict.CORRECT if is_equal else Verdict.WRONG

    def _check(self, reference: str) -> None:
        """Read the reference by itself once, so that a bad one is never blamed on an answer."""
        if reference in self._readable:
            return
        try:
            is_readable = self.pool.ask({"reference": reference})
        except AnswerNotGraded as error:
            raise EnvironmentFault(f"the reference answer {reference!r} cannot be graded: {error}") from error
        if not is_readable:
            raise EnvironmentFault(f"math-verify cannot read the reference answer {reference!r}")
        self._readable.add(reference)


class _ProcessDied(Exception):
    """The process ended within a request. `status` is minus the signal's number where one ended it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class _GraderProcess:
    """One grading process and the connection to it. One thread at a time asks."""

    def __init__(self, message: str) -> None:
        ours, theirs = Pipe()
        self._connection = ours
        self._is_ready = False
        try:
            self._process = subprocess.Popen(
                # -P: the folder of the program must not hide installed packages of the same name.
                [sys.executable, "-P", str(WORKER_FILE), str(theirs.fileno()), message],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={name: os.environ[name] for name in WORKER_ENVIRONMENT if name in os.environ},
            )
        except OSError as error:
            ours.close()
            raise EnvironmentFault(f"a grading process cannot be started: {error}") from error
        finally:
            theirs.close()
        self.is_closed = False

    def ask(self, request: Mapping[str, Any], *, wall_seconds: float) -> Any:
        try:
            if not self._is_ready:
                greeting = self._receive(START_SECONDS, "did not load")
                if "error" in greeting:
                    raise EnvironmentFault(f"a grader cannot be loaded: {greeting['error']}")
                self._is_ready = True
            self._connection.send_bytes(json.dumps(request).encode())
            return self._receive(wall_seconds, "stands still: no answer")["value"]
        except (EOFError, OSError) as error:
            was_ready = self._is_ready
            status = self._end()
            if not was_ready:
                raise EnvironmentFault(f"a grading process ended while it loaded: exit status {status}") from error
            raise _ProcessDied(status) from error
        except BaseException:
            self.close()
            raise

    def _receive(self, seconds: float, complaint: str) -> Mapping[str, Any]:
        if not self._connection.poll(seconds):
            raise EnvironmentFault(f"a grading process {complaint} within {seconds:g} s")
        return json.loads(self._connection.recv_bytes())

    def _end(self) -> int:
        """Return the exit status of a process whose connection is gone; one that lingers is killed."""
        self._connection.close()
        self.is_closed = True
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def close(self) -> None:
        if not self.is_closed:
            self._process.kill()
            self._end()


def _close_all(places: "queue.LifoQueue[_GraderProcess | None]") -> None:
    while not places.empty():
        process = places.get_nowait()
        if process is not None:
            process.close()
