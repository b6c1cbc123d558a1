"""Algorithms, one file each. Every file of this folder is imported, so that its decorator names the method."""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
