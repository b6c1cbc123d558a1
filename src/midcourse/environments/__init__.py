"""Worlds with tasks, tools, reward and evidence; importing this package registers its environments."""

from midcourse.environments import agentbench_db, code, mathematics, navigation, table_world
from midcourse.environments.base import ENVIRONMENTS

__all__ = ["ENVIRONMENTS", "agentbench_db", "code", "mathematics", "navigation", "table_world"]
