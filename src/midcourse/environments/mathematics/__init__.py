"""Mathematics problems of one turn: from files, from reasoning-gym, and generated arithmetic for the nano policy."""

from midcourse.environments.mathematics import arithmetic
from midcourse.environments.mathematics.environment import MathematicsConfig, MathematicsEnvironment

__all__ = ["MathematicsConfig", "MathematicsEnvironment", "arithmetic"]
