"""Weights from the trainer's GPU to the server's over NCCL, by vLLM's own sender.

Written against vLLM 0.32 (vllm.distributed.weight_transfer: NCCLTrainerWeightTransferEngine and the routes it drives).
It needs vLLM in this process's environment too, and a GPU for each side: it has not been run by this project.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from midcourse.engines.vllm.routes import Routes
from midcourse.errors import EngineError, EngineTimeoutError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CLOSE_SECONDS = 10.0


class NcclSender:
    """The trainer's end of a group of which the server's workers are the other members.

    Args:
        engine: vLLM's sender.
        seconds: longest wait for one transfer.
    """

    def __init__(self, engine: Any, *, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds

    async def send(self) -> None:
        """Send every parameter of the model that the sender was opened with.

        Raises:
            EngineTimeoutError: it took too long; the group cannot be used any more.
            EngineError: vLLM's sender failed.
        """
        await _in_thread(self._engine.send_weights, seconds=self._seconds, what="sending weights over NCCL")

    async def close(self) -> None:
        """Leave the group. One whose other members are gone is given up after a while."""
        with contextlib.suppress(EngineError):
            await _in_thread(self._engine.shutdown, seconds=CLOSE_SECONDS, what="leaving the NCCL group")


async def open_sender(routes: Routes, url: str, model: Any, *, seconds: float) -> NcclSender:
    """Return a sender of `model`'s parameters, on a CUDA device, to the server at `url`.

    Raises:
        EngineError: vLLM is not installed here, or the group cannot be formed: the server must have been started with
            `--weight-transfer-config '{"backend": "nccl"}'`.
    """
    try:
        backend = import_module("vllm.distributed.weight_transfer.nccl_engine")
        base = import_module("vllm.distributed.weight_transfer.base")
        clients = import_module("vllm.distributed.weight_transfer.clients")
    except ImportError as error:
        raise EngineError(f'weight_sync "nccl" needs vLLM in the trainer\'s environment too: {error}') from error
    answer = await routes.get("/get_world_size")
    workers = answer.get("world_size") if isinstance(answer, dict) else None
    if not isinstance(workers, int):
        raise EngineError(f"{url}/get_world_size: expected a number of workers, got {answer!r}")
    try:
        address, port = _meeting_point(url)
    except OSError as error:
        raise EngineError(f"no address of this machine leads to {url}: {error}") from error
    wanted = backend.NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=1 + workers, rank=0)
    engine = await _in_thread(
        lambda: backend.NCCLTrainerWeightTransferEngine.trainer_init(
            wanted,
            client=clients.HTTPVLLMWeightSyncClient(url, timeout=seconds),
            source=base.ModuleSource(model),
        ),
        seconds=seconds,
        what="forming the NCCL group",
    )
    return NcclSender(engine, seconds=seconds)


def _meeting_point(url: str) -> tuple[str, int]:
    """Return this machine's address as the server sees it, and a free port there."""
    host = urlsplit(url).hostname or ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((host, 9))  # sends nothing: it asks which of our addresses leads there
        address = "127.0.0.1" if host in LOOPBACK else route.getsockname()[0]
    with socket.socket() as trial:
        trial.bind((address, 0))
        return address, trial.getsockname()[1]


async def _in_thread(work: Callable[[], Any], *, seconds: float, what: str) -> Any:
    """Return what `work` returns.

    The thread is none of a pool's: the process waits for those when it ends, and one can hang in NCCL for ever.
    """
    done: Future[Any] = Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # from here on it cannot be cancelled, only left alone
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(done)
    except TimeoutError as error:
        raise EngineTimeoutError(f"{what} took longer than {seconds:g} s") from error
    except (RuntimeError, ValueError, OSError) as error:  # NCCL's, the sender's and the routes' ways to fail
        raise EngineError(f"{what} failed: {error}") from error
