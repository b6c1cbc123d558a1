"""One run of one task: commands, an answer, and the reward of what was said and done."""

import re
import time
from collections.abc import Callable, MutableMapping
from hashlib import blake2b
from typing import TypeVar

from midcourse.environments.agentbench_os.comparisons import COMPARISONS, Comparison, tolerant
from midcourse.environments.agentbench_os.machine import Machine, Ran
from midcourse.environments.agentbench_os.task_file import Problem, Script
from midcourse.environments.agentbench_os.tools import checked_argument
from midcourse.environments.base import Observation
from midcourse.environments.calls import BadCall, Turns
from midcourse.errors import EnvironmentFault
from midcourse.types import AssistantTurn, ToolCall, ToolResult

Value = TypeVar("Value")

MAX_TURNS = 8  # AgentBench's own setting; RAIL names none
FILE_CLOCK = 5  # Linux's CLOCK_REALTIME_COARSE: files get the time of the last tick, milliseconds behind the exact one
SHOWN_CHARACTERS = 800  # a longer output is cut at CUT_CHARACTERS, as AgentBench cuts it
CUT_CHARACTERS = 780
CUT = "\n[truncated because the output is too long]"
ERROR_CHARACTERS = 300
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][0-9]*;[^\x07]*\x07|\x07")  # colours, titles, bells


class ShellEpisode:
    """Runs the calls of a turn in order. `answer_action` and `finish_action` end it, and so does a turn without a call.

    Args:
        problem: what is asked.
        machine: a fresh one; prepared here, and closed with the episode.
        seed: of the draws that the task's scripts make with $RANDOM, as `random_seed` gives it.
        moments: when each step was first taken, by all steps up to it. Shared with the episode's forks: the files that
            a step changes get the times that they have where it was taken first, since `ls -l` shows them.
        is_tolerant: compare answers as RAIL does, not exactly.

    Raises:
        EnvironmentFault: the task's own scripts fail, or the machine does.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        machine: Machine,
        seed: int,
        moments: MutableMapping[bytes, int],
        is_tolerant: bool = False,
    ) -> None:
        self._problem = problem
        self._machine = machine
        self._moments = moments
        self._steps = b""
        self._is_tolerant = is_tolerant
        self._answer: str | None = None
        self._turns = Turns(MAX_TURNS)
        self._score: float | None = None
        self._timed("", lambda: self._set_up(seed))

    def act(self, turn: AssistantTurn) -> Observation:
        """Run the turn's calls; once done, nothing more is run.

        Raises:
            EnvironmentFault: the machine went away.
        """
        self._score = None  # the turn may change what is scored
        return self._turns.run(turn, self._run)

    def score(self) -> float:
        """Return 1.0 where the answer and the system are as they should be, else 0.0. The checks run once.

        Raises:
            EnvironmentFault: the machine went away, or a check takes too long.
        """
        if self._score is None:
            self._score = float(self._is_right())
        return self._score

    def close(self) -> None:
        """Free the machine."""
        self._machine.close()

    def _set_up(self, seed: int) -> None:
        for script in self._problem.init:
            ran = self._machine.script(script.command(prologue=f"RANDOM={seed}\n"))  # a fork has the same files
            self._require(ran, "a script that sets the task up")
        if self._problem.start is not None:
            ran = self._machine.command(self._problem.start, is_raw=True)
            if ran.status is None or ran.shell_ended:
                raise EnvironmentFault(f"{self._problem.task_id}: its start in the shell does not come to an end")

    def _timed(self, step: str, run: Callable[[], Value]) -> Value:
        self._steps = blake2b(self._steps + step.encode()).digest()
        began = time.clock_gettime_ns(FILE_CLOCK)
        first = self._moments.setdefault(self._steps, began)
        value = run()
        if first != began:
            self._machine.shift_times(since=began, by=first - began)
        return value

    def _run(self, call: ToolCall) -> ToolResult:
        try:
            argument = checked_argument(call)
        except BadCall as error:
            return ToolResult(name=call.name, content=f"Error: {error}", is_error=True)
        if call.name == "bash_action":
            ran = self._timed(argument, lambda: self._machine.command(argument))
            return _result(ran, seconds=self._machine.command_seconds)
        self._turns.is_done = True
        if call.name == "answer_action":
            self._answer = argument
        return ToolResult(name=call.name, content="ok")

    def _is_right(self) -> bool:
        problem = self._problem
        if problem.needs_answer and self._answer is None:
            return False
        if problem.match is not None:
            same = tolerant if self._is_tolerant else _same_as_match
            return same(self._answer or "", problem.match)
        values = [self._answer or ""]
        for step in problem.check:
            if isinstance(step, Script):
                ran = self._machine.script(step.command(values))
                if ran.status is None:
                    raise EnvironmentFault(f"{problem.task_id}: a check does not come to an end")
                if ran.status != 0:
                    return False
                values.append(ran.output)
            elif not self._comparison(step.name)(values[0], values[-1]):
                return False
        return True

    def _comparison(self, name: str) -> Comparison:
        exact = COMPARISONS[name]
        if not self._is_tolerant:
            return exact
        return lambda answer, reference: exact(answer, reference) or tolerant(answer, reference)

    def _require(self, ran: Ran, what: str) -> None:
        if ran.status != 0:
            ending = "takes too long" if ran.status is None else f"fails with status {ran.status}"
            raise EnvironmentFault(f"{self._problem.task_id}: {what} {ending}: {ran.errors[:ERROR_CHARACTERS].strip()}")


def random_seed(task_id: str, seed: int) -> int:
    """Return what bash's $RANDOM is seeded with in an episode: a number of 16 bits."""
    return int.from_bytes(blake2b(f"{task_id} {seed}".encode(), digest_size=2).digest(), "big")


def _same_as_match(answer: str, reference: str) -> bool:
    return answer.strip() == reference


def _result(ran: Ran, *, seconds: float) -> ToolResult:
    output = shown(ran.output, is_cut=ran.is_cut)
    notes = []
    if ran.status is None:
        notes.append(f"Error: the command took longer than {seconds:g} seconds and was ended.")
    if ran.too_many_processes:
        notes.append("Error: too many processes were running; all were ended.")
    if ran.shell_ended:
        notes.append("The shell has ended; the next command begins in a new one, in /root, without its variables.")
    text = f"The output of the OS:\n\n{output}" if output else "The output of the OS is empty."
    return ToolResult(name="bash_action", content="\n".join([text, *notes]), is_error=bool(notes))


def shown(output: str, *, is_cut: bool = False) -> str:
    """Return an output as the policy is shown it: without terminal control, cut where it is long."""
    text = _TERMINAL.sub("", output)
    if is_cut or len(text) > SHOWN_CHARACTERS:
        return text[:CUT_CHARACTERS] + CUT
    return text
