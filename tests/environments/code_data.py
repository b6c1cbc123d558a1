"""Where tests find the official files, which are not part of the project."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def official(relative: str) -> str:
    """Return the path of a file in or beside the checkout; skip the test where it is absent."""
    for place in (ROOT, ROOT.parent):
        path = place / "shared" / "data" / relative
        if path.is_file():
            return str(path)
    pytest.skip(f"{relative} is not in shared/data, in or beside the checkout")
