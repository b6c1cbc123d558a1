import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from midcourse.config import NAMED_SECTIONS, register_all

# The same examples in every run, and no limit that a busy machine could break. Here, so that it is in force before any
# test is read: a test takes the settings of the time when it is decorated.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


@pytest.fixture
def plugins_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test import plugins: what they register, and the modules themselves, are gone after it."""
    register_all()
    for registry, _ in NAMED_SECTIONS.values():
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    folders = set(sys.path)
    yield
    added = [folder for folder in sys.path if folder not in folders]
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and any(Path(file).is_relative_to(folder) for folder in added):
            del sys.modules[name]
