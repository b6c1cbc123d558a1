"""Modules of a user's own: imported by name, so that what they register can be named in settings."""

import difflib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midcourse.config.schema import NAMED_SECTIONS
from midcourse.errors import ConfigError
from midcourse.registry import NameTakenError

MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def load_plugins(names: Sequence[Any], *, folder: Path, key: str = "plugins") -> None:
    """Import modules; one that is imported already is left as it is.

    `folder` is looked into after everything else that Python looks into, so that a file of the user's takes no
    library's place; it stays on the path, for what a plugin imports later.

    Args:
        names: of modules, as `import` takes them.
        folder: with modules that are not on PYTHONPATH; absolute.
        key: of the setting, for messages.

    Raises:
        ConfigError: a name is none, no such module, two of that name, it fails while it is imported, or it registers
            a name that is taken.
    """
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()  # a folder that was written a moment ago
    for name in names:
        if not isinstance(name, str) or not MODULE_NAME.fullmatch(name):
            raise ConfigError(f'{key} = {name!r}: expected a module as `import` takes it, such as "my_tools", no path')
        _import(name, folder, key, home=_home(name, folder, key))


def _home(name: str, folder: Path, key: str) -> Path:
    """Return the folder of a plugin's module or outermost package.

    Raises:
        ConfigError: there is none of that name, or Python takes another one than that in `folder`.
    """
    top = name.partition(".")[0]
    # What is imported already may have no record of where it is from.
    found = getattr(sys.modules[top], "__spec__", None) if top in sys.modules else importlib.util.find_spec(top)
    if found is None and top not in sys.modules:
        raise _not_found(top, folder, key)
    own = next((place for place in (folder / f"{top}.py", folder / top / "__init__.py") if place.is_file()), None)
    origin = None if found is None else found.origin
    if own is not None and (origin is None or Path(origin).resolve() != own.resolve()):
        raise ConfigError(f"{key} = {name!r}: {own} is not what `import {top}` takes, which is {origin}; rename it")
    return Path(origin).parent if origin else folder


def _import(name: str, folder: Path, key: str, *, home: Path) -> None:
    try:
        importlib.import_module(name)
    except NameTakenError as error:
        _forget(name)
        raise ConfigError(f"{key} = {name!r}: {error}; expected a name of its own") from error
    except KeyboardInterrupt:
        _forget(name)
        raise
    except BaseException as error:  # whatever code of a user's does
        _forget(name)
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise _not_found(error.name, folder, key) from error
        raise ConfigError(f"{key} = {name!r}: failed while it was imported: {_told(error, home)}") from error


def _forget(name: str) -> None:
    for registry, _ in NAMED_SECTIONS.values():
        registry.forget(name)


def _not_found(name: str, folder: Path, key: str) -> ConfigError:
    there = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    near = difflib.get_close_matches(name, there, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    missing = "" if folder.is_dir() else " (there is no such folder)"
    return ConfigError(
        f"{key}: there is no module {name!r} in {folder}{missing}, nor on PYTHONPATH{hint}; "
        "plugins_folder or PYTHONPATH say where modules are"
    )


def _told(error: BaseException, home: Path) -> str:
    """Return the error with the line of the user's that it comes from: of those in `home` the last."""
    text = "".join(traceback.format_exception_only(error)).strip()  # also where its own words fail
    if isinstance(error, SyntaxError):  # says itself where it is
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(home)] or frames[-1:]
    return f"{own[-1].filename}, line {own[-1].lineno}: {own[-1].line}: {text}" if own else text
