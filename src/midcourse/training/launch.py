"""Which of a run's processes this one is, as torchrun tells it. Apart from torch, so that the command line can ask."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

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
        """Return what torchrun has put into the environment; a run of one process where it is not at work."""
        if not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            return cls()
        return cls(
            rank=int(environment["RANK"]),
            local_rank=int(environment["LOCAL_RANK"]),
            size=int(environment["WORLD_SIZE"]),
            attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
        )
