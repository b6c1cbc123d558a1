"""A trainer's weights as a folder that a server reads: whole or not there, and never more than two of them."""

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from midcourse.errors import EngineError
from midcourse.training.export import save_weights

PREFIX = "weights-"
MARGIN = 1.05  # what a file holds besides the tensors


class WeightFolder:
    """Where one trainer's weights pass through.

    Args:
        parent: where the folder is made; none: where temporary files are.

    Raises:
        EngineError: it cannot be made.
    """

    def __init__(self, parent: Path | None) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix="midcourse-weights-", dir=parent)).absolute()
        except OSError as error:
            raise EngineError(f"no folder for weights can be made in {parent}: {error}") from error
        self.close = weakref.finalize(self, _remove, self.path, os.getpid())
        self._count = 0

    def write(self, model: Any) -> Path:
        """Write a transformers or PEFT model in several safetensors files if it is large; return its folder.

        Tied weights are written once. A reader never sees a part of it: the folder gets its name when it is whole.

        Raises:
            EngineError: no room, or a file cannot be written.
        """
        self._count += 1
        place = self.path / f"{PREFIX}{self._count}"
        partial = self.path / f".{place.name}"
        needed, free = int(MARGIN * num_bytes(model)), shutil.disk_usage(self.path).free
        if needed > free:
            raise EngineError(
                f"no room for the weights in {self.path}: {needed} bytes needed, {free} free; "
                "set engine.server.weights_folder (or engine.running.weights_folder) to a larger place"
            )
        try:
            _save(model, partial)
            partial.rename(place)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise EngineError(f"the weights cannot be written to {place}: {error}") from error
        return place

    def keep_only(self, place: Path) -> None:
        """Remove what was written before `place`."""
        for path in self.path.glob(f"{PREFIX}*"):
            if path != place:
                shutil.rmtree(path, ignore_errors=True)


def num_bytes(model: Any) -> int:
    """Return the size of what `WeightFolder.write` writes of a model: of its adapter alone if it has one."""
    has_adapter = hasattr(model, "peft_config")
    parameters = [value for name, value in model.named_parameters() if not has_adapter or "lora_" in name]
    return sum(value.numel() * value.element_size() for value in parameters)


def _save(model: Any, folder: Path) -> None:
    from transformers.utils import logging

    shows_progress = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        save_weights(model, folder)
    finally:
        if shows_progress:
            logging.enable_progress_bar()


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # else a copy of the process that made it
        shutil.rmtree(folder, ignore_errors=True)
