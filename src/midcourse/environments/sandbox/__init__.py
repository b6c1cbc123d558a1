"""A place to run code that nobody vouches for: confined, limited, and gone without a trace afterwards."""

from midcourse.environments.sandbox.box import Box, Sandbox, SandboxError
from midcourse.environments.sandbox.exchange import Ending, Exchange, exchange
from midcourse.environments.sandbox.settings import Limits, SandboxConfig

__all__ = ["Box", "Ending", "Exchange", "Limits", "Sandbox", "SandboxConfig", "SandboxError", "exchange"]
