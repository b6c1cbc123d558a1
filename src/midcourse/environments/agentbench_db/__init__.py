"""Questions about tables and changes of them, in SQL (AgentBench-DB; docs/agentbench_db.md)."""

from midcourse.environments.agentbench_db.environment import AgentBenchDBConfig, AgentBenchDBEnvironment, TaskFile
from midcourse.environments.agentbench_db.settings import MariaDBConfig, ServerConfig

__all__ = ["AgentBenchDBConfig", "AgentBenchDBEnvironment", "MariaDBConfig", "ServerConfig", "TaskFile"]
