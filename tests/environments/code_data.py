"""Where tests find the official files, which are not part of the project."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("MIDCOURSE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def official(relative: str) -> str:
    """Return the path of a file; skip the test where it is absent."""
    path = FOLDER / relative
    if not path.is_file():
        pytest.skip(f"{relative} is not in {FOLDER} (set MIDCOURSE_DATA to the folder that holds it)")
    return str(path)
