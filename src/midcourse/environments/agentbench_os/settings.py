"""Where tasks come from, and what system an episode gets."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.environments.agentbench_os.task_file import Problem, read_problems
from midcourse.environments.sandbox import SandboxConfig
from midcourse.errors import DataError

if TYPE_CHECKING:
    from midcourse.environments.agentbench_os.systems import SystemSandbox


class TaskFiles(BaseModel):
    """The files that a split comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str | None = None
    """JSON file of tasks, or AgentBench's folder `data` of sets 1 to 7; none: the split is not there."""
    scripts: str | None = None
    """Folder of the scripts that tasks name; beside a folder of sets, AgentBench's `scripts` of one folder a set."""
    without_scripts: Literal["refuse", "leave_out"] = "refuse"
    """What becomes of tasks that name a script which is not there. Left out, they are counted in the log."""
    sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$")
    """Digest that the file must have; none reads any. Not for a folder."""
    first: int = Field(default=0, ge=0)
    """Position of the first task that is taken, from 0."""
    count: int | None = Field(default=None, ge=1)
    """How many are taken; none takes all from the first on."""

    def read(self) -> list[Problem]:
        """Return the problems of the files, none where there are no files.

        Raises:
            DataError: a file cannot be used, or there is no task at the positions asked for.
        """
        if self.path is None:
            return []
        problems = read_problems(
            Path(self.path),
            scripts=None if self.scripts is None else Path(self.scripts),
            leave_out=self.without_scripts == "leave_out",
            sha256=self.sha256,
        )
        taken = problems[self.first : None if self.count is None else self.first + self.count]
        if not taken:
            raise DataError(f"{self.path} holds {len(problems)} tasks: none is left from position {self.first} on")
        return taken


class MachineConfig(BaseModel):
    """The Linux system that every episode gets for itself, and what it may use."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["overlay", "readonly"] = "overlay"
    """overlay: a clean system, all of it writable; needs root. readonly: few folders are writable; some tasks fail."""
    root: str | None = None
    """Folder that `python -m midcourse.environments.agentbench_os.prepare FOLDER` made; readonly: none takes the host's
    programs."""
    command_seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Longest time of one command of the policy; it is then ended, and the policy is told."""
    script_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Longest time of one script of a task; longer is a failed rollout."""
    start_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Longest wait until a system is up; longer is a failed rollout."""
    cpu_seconds: int = Field(default=60, ge=1)
    """Most CPU time of one process in it."""
    memory_mebibytes: int = Field(default=1024, ge=64)
    """Most memory of all its processes together, and of one. AgentBench gives 1 GiB."""
    disk_mebibytes: int = Field(default=256, ge=8)
    """Most that it may write, in memory."""
    processes: int = Field(default=128, ge=8)
    """Most processes and threads at once."""

    @property
    def sandbox(self) -> SandboxConfig:
        """The settings of the box that a system runs in."""
        return SandboxConfig(
            start_seconds=self.start_seconds,
            cpu_seconds=self.cpu_seconds,
            memory_mebibytes=self.memory_mebibytes,
            file_mebibytes=self.disk_mebibytes,
            processes=self.processes,
        )

    def build(self) -> "SystemSandbox":
        """Return what starts systems, tried once.

        Raises:
            ConfigError: this machine cannot run a system of that kind; the message says what is missing.
        """
        from midcourse.environments.agentbench_os.systems import SystemSandbox

        return SystemSandbox(self)
