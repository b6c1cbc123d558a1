"""Loaded by vLLM into each of its workers, to take new weights from a folder. Imports nothing of midcourse.

    PYTHONPATH=<folder of this file> vllm serve ... --worker-extension-cls midcourse_extension.Extension

Its methods are called through the server's route /collective_rpc. Under midcourse's keeper it also ends worker and
engine when the keeper was killed: vLLM's own do not notice that the server in front of them is gone.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open


class Extension:
    """Becomes a base class of vLLM's worker, which has `model_runner`. Written against vLLM 0.32."""

    model_runner: Any

    def describe_weights(self) -> dict[str, Any]:
        """Return the worker's dtype, device and whether the head is the embedding."""
        runner = self.model_runner
        return {
            "dtype": str(runner.model_config.dtype).removeprefix("torch."),
            "device": str(runner.device.type),
            "is_tied": _is_tied(runner),
        }

    def can_read(self, path: str) -> dict[str, Any]:
        """Return whether this worker's machine has the file or folder."""
        return {"is_there": Path(path).exists()}

    def load_weights_from(self, folder: str) -> dict[str, Any]:
        """Put the tensors of `folder`'s safetensors files in the place of the model's.

        Returns:
            How many tensors and bytes were read, and how many heads had to be tied again.

        Raises:
            FileNotFoundError: no safetensors file is there.
        """
        reading = _Reading(Path(folder))
        self.model_runner.reload_weights(weights_iterator=iter(reading))
        return {"tensors": reading.tensors, "bytes": reading.bytes, "tied_heads": _tie_again(self.model_runner)}


class _Reading:
    """A folder's tensors one after another, counted."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.safetensors"))
        if not self.paths:
            raise FileNotFoundError(f"no *.safetensors in {folder}")
        self.tensors = self.bytes = 0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path in self.paths:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(name)
                    self.tensors += 1
                    self.bytes += tensor.nbytes
                    yield name, tensor


def _end_with(keeper: int) -> None:
    engine = os.getppid()
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(keeper)], [], [])
    os.kill(engine, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_tied(runner: Any) -> bool:
    return bool(getattr(runner.model_config.hf_text_config, "tie_word_embeddings", False))


def _tie_again(runner: Any) -> int:
    """Give tied heads the new embedding; return how many.

    On a CPU, vLLM packs a copy of the head's weight for its matrix product. A checkpoint of a tied model has no tensor
    for the head, so that a reload leaves the head's old copy in place and says so only in its log.
    """
    if not _is_tied(runner):
        return 0
    count = 0
    for module in runner.get_model().modules():
        head = getattr(module, "lm_head", None)
        embedding = getattr(getattr(module, "model", None), "embed_tokens", None)
        if head is None or embedding is None or head is embedding or not hasattr(head, "cpu_linear"):
            continue
        from vllm.model_executor.layers.utils import (  # pyright: ignore[reportMissingImports]
            dispatch_cpu_unquantized_gemm,
        )

        head.weight = embedding.weight
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
        count += 1
    return count


if "MIDCOURSE_KEEPER" in os.environ:
    threading.Thread(target=_end_with, args=[int(os.environ["MIDCOURSE_KEEPER"])], daemon=True).start()
