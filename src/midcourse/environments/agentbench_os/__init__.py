"""Tasks on a Linux system of the policy's own, in shell commands (AgentBench-OS; docs/agentbench_os.md)."""

from midcourse.environments.agentbench_os.environment import AgentBenchOSConfig, AgentBenchOSEnvironment
from midcourse.environments.agentbench_os.settings import MachineConfig, TaskFiles

__all__ = ["AgentBenchOSConfig", "AgentBenchOSEnvironment", "MachineConfig", "TaskFiles"]
