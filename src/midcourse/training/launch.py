"""Which of a run's processes this one is, as torchrun tells it. Apart from torch, so that the command line can ask."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from midcourse.errors import ConfigError

TORCHRUN_VARIABLES = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
    ]
)
"""Which process this is and where the others are, as torchrun tells it; TORCHELASTIC_ begins what else it tells.

It also sets OMP_NUM_THREADS to 1 where that is not set; whoever set it, a server has it too.
"""
EXCERPT_CHARACTERS = 40


def without_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process that is none of the run's, such as a server.

    With torchrun's variables torch takes torchrun's meeting point for the server's own (TORCHELASTIC_USE_AGENT_STORE),
    where nobody answers.
    """
    return {
        name: value
        for name, value in environment.items()
        if name not in TORCHRUN_VARIABLES and not name.startswith("TORCHELASTIC_")
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """This process among those of a run. Process 0 rolls out, scores and writes; the others train beside it."""

    rank: int = 0
    local_rank: int = 0  # among those of this machine: the number of its GPU
    size: int = 1
    attempt: int = 0  # how often torchrun has started them all again

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that rolls out and writes."""
        return self.rank == 0

    @property
    def command(self) -> list[str]:
        """What a command line begins with that starts as many processes."""
        if self.size == 1:
            return ["midcourse"]
        return ["torchrun", "--nproc-per-node", str(self.size), "-m", "midcourse"]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return what torchrun has put into the environment; a run of one process where it is not at work.

        Raises:
            ConfigError: a variable holds what torchrun would not put there.
        """
        if not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            return cls()
        if not environment["MASTER_ADDR"].strip():
            raise ConfigError("MASTER_ADDR is empty: expected the address of process 0, as torchrun sets it")
        _whole_number(environment, "MASTER_PORT", least=1, most=65_535)
        size = _whole_number(environment, "WORLD_SIZE", least=1)
        return cls(
            rank=_whole_number(environment, "RANK", most=size - 1),
            local_rank=_whole_number(environment, "LOCAL_RANK", most=size - 1),
            size=size,
            attempt=_whole_number({"TORCHELASTIC_RESTART_COUNT": "0", **environment}, "TORCHELASTIC_RESTART_COUNT"),
        )


def _whole_number(environment: Mapping[str, str], name: str, *, least: int = 0, most: int = 2**31 - 1) -> int:
    try:
        number = int(environment[name])
    except ValueError:  # no number, or one of thousands of digits
        number = None
    if number is None or not least <= number <= most:
        raise ConfigError(
            f"{name} = {environment[name][:EXCERPT_CHARACTERS]!r}: expected a whole number from {least} to {most}, as "
            "torchrun sets it"
        )
    return number
