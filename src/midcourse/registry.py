"""One name -> one builder. A name taken twice is an error, not an override."""

import difflib
from collections.abc import Callable
from typing import Generic, TypeVar

from midcourse.errors import SettingError

Item = TypeVar("Item")


class NameTakenError(ValueError):
    """Something is registered under this name already."""


class Registry(Generic[Item]):
    """Named items of one kind; names are found by the decorator when their file is imported.

    Args:
        kind: what an item is, in a word, for messages.
        takes: what an item must be an instance of: `type` where items are classes.
    """

    def __init__(self, kind: str, *, takes: type = type) -> None:
        self.kind = kind
        self._takes = takes
        self._items: dict[str, Item] = {}

    def register(self, name: str) -> Callable[[Item], Item]:
        """Return a decorator that stores its argument under `name`.

        Raises:
            NameTakenError: the name is taken.
            TypeError: the argument is none that the registry takes.
        """

        def add(item: Item) -> Item:
            if not isinstance(item, self._takes):
                expected = "a class" if self._takes is type else f"a {self._takes.__name__}"
                raise TypeError(f"{self.kind} {name!r}: expected {expected}, got {item!r}")
            if name in self._items:
                origin = getattr(self._items[name], "__module__", "another module")
                raise NameTakenError(f"{self.kind} {name!r} is registered twice: {origin} has that name already")
            self._items[name] = item
            return item

        return add

    def __getitem__(self, name: str) -> Item:
        if name not in self._items:
            near = difflib.get_close_matches(name, self._items, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise SettingError(f"unknown {self.kind} {name!r}{hint} Known: {', '.join(self.names())}")
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def forget(self, module: str) -> None:
        """Take out what `module` registered, so that a module whose import failed can be imported again."""
        self._items = {name: item for name, item in self._items.items() if getattr(item, "__module__", "") != module}

    def names(self) -> list[str]:
        """Return the known names, sorted."""
        return sorted(self._items)
