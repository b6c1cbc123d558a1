"""Multi-stop route planning with ambiguous place names (RTI, App. C.2.1)."""

from midcourse.environments.navigation.atlas import Atlas, make_atlas
from midcourse.environments.navigation.construction import make_task
from midcourse.environments.navigation.environment import NavigationConfig, NavigationEnvironment
from midcourse.environments.navigation.vocabulary import (
    NANO_NAMES,
    NANO_NUMBERS,
    NANO_PUNCTUATION,
    NANO_REGIONS,
    NANO_WORDS,
)

__all__ = [
    "NANO_NAMES",
    "NANO_NUMBERS",
    "NANO_PUNCTUATION",
    "NANO_REGIONS",
    "NANO_WORDS",
    "Atlas",
    "NavigationConfig",
    "NavigationEnvironment",
    "make_atlas",
    "make_task",
]
