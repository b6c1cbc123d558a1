"""Which folders of this Python hold pandas and what it needs, and no more than that."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from midcourse.errors import ConfigError

NEEDED = ("pandas", "numpy", "dateutil")
OPTIONAL = ("pytz", "six", "tzdata")  # needed by some versions of pandas and of dateutil


@dataclass(frozen=True, slots=True)
class Packages:
    """Import path, and the files and folders on it that code may read."""

    folders: tuple[str, ...]
    readable: tuple[str, ...]


def pandas_packages() -> Packages:
    """Return where pandas is, without importing it.

    Raises:
        ConfigError: it is not installed.
    """
    folders: dict[str, None] = {}
    readable: list[str] = []
    for name in (*NEEDED, *OPTIONAL):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            if name in OPTIONAL:
                continue
            raise ConfigError(
                f"environment toolqa runs code with pandas, and {name} is not installed: "
                "pip install -e '.[toolqa]' in the clone"
            )
        origin = Path(spec.origin)
        place = origin.parent if origin.name == "__init__.py" else origin
        folders[str(place.parent)] = None
        readable.append(str(place))
        libraries = place.parent / f"{name}.libs"  # shared libraries that a wheel brings
        if libraries.is_dir():
            readable.append(str(libraries))
    return Packages(folders=tuple(folders), readable=tuple(readable))
