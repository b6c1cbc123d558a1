"""Generated databases and requests in AgentBench-DB's form, in few words: the task family of a built-in policy."""

from midcourse.environments.table_world.environment import TableWorldConfig, TableWorldEnvironment
from midcourse.environments.table_world.requests import KINDS, Request, Slot, draw_request
from midcourse.environments.table_world.script import play

__all__ = ["KINDS", "Request", "Slot", "TableWorldConfig", "TableWorldEnvironment", "draw_request", "play"]
