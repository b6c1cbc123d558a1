"""What a sandbox is asked to be, and how much the code in it may use."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from midcourse.environments.sandbox.box import Sandbox

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one box may use. Bytes and seconds."""

    memory_bytes: int
    file_bytes: int
    cpu_seconds: int
    processes: int


class SandboxConfig(BaseModel):
    """Where code from the policy runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["bubblewrap", "process"] = "bubblewrap"
    """bubblewrap: namespaces of its own. process: limits alone, for code that is trusted not to be hostile."""
    wall_seconds: float = Field(default=10.0, gt=0, le=86_400)
    """Longest wall clock of one answer's tests, all together."""
    start_seconds: float = Field(default=30.0, gt=0, le=86_400)
    """Longest wait for the sandbox to come up, in seconds; longer is a failed rollout, never reward 0."""
    cpu_seconds: int = Field(default=10, ge=1, le=86_400)
    """Most CPU time of one process in it."""
    memory_mebibytes: int = Field(default=1024, ge=64, le=1 << 20)
    """Most memory of one process; with a writable memory cgroup also of all processes and files together."""
    file_mebibytes: int = Field(default=16, ge=1, le=1 << 20)
    """Largest file, and the size of the private temporary folder."""
    output_mebibytes: int = Field(default=16, ge=1, le=1 << 12)
    """Most output that is read; an answer that writes more has failed."""
    processes: int = Field(default=64, ge=4, le=1 << 16)
    """Most processes and threads at once: by cgroup where one can be made, else by rlimit (no limit for root)."""
    readable: tuple[str, ...] = ()
    """Further folders that the code may read: packages outside the interpreter's own folder, for example."""

    @property
    def limits(self) -> Limits:
        """The limits of one box."""
        return Limits(
            memory_bytes=self.memory_mebibytes * MEBIBYTE,
            file_bytes=self.file_mebibytes * MEBIBYTE,
            cpu_seconds=self.cpu_seconds,
            processes=self.processes,
        )

    @property
    def output_bytes(self) -> int:
        """Most bytes that are read from a box."""
        return self.output_mebibytes * MEBIBYTE

    def build(self) -> "Sandbox":
        """Return the sandbox, tried once.

        Raises:
            ConfigError: this machine cannot run one of that kind.
        """
        from midcourse.environments.sandbox.box import Sandbox

        return Sandbox(self)
