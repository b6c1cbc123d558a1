"""Worlds with tasks, tools, reward and evidence; importing this package registers its environments."""

from midcourse.environments import agentbench_db, agentbench_os, code, mathematics, navigation, table_world, toolqa
from midcourse.environments.base import ENVIRONMENTS

__all__ = [
    "ENVIRONMENTS",
    "agentbench_db",
    "agentbench_os",
    "code",
    "mathematics",
    "navigation",
    "table_world",
    "toolqa",
]
