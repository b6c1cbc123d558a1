"""Bring the trainer's weights to a vLLM server, in place, and see that it computes with them.

pause -> load -> version -> drop cached prefixes -> resume -> probe. A server that dies meanwhile, or later, is brought
back with the weights that were pushed last, and probed again before anyone may ask it.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from midcourse.engines.vllm.nccl import NcclSender, open_sender
from midcourse.engines.vllm.probe import (
    Agreement,
    Bounds,
    compare,
    default_bounds,
    probe_sequences,
    trainer_logprobs,
)
from midcourse.engines.vllm.routes import Routes
from midcourse.engines.vllm.server import SERVED_MODEL, Server
from midcourse.engines.vllm.weight_folder import WeightFolder, num_bytes
from midcourse.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from torch import Tensor

How = Literal["file", "nccl", "lora"]
ADAPTER = "policy-adapter"
"""The name by which requests ask for the model with the adapter that was pushed."""
DTYPES = frozenset({"float32", "bfloat16", "float16"})
"""Those that vLLM computes in."""
CACHE_ATTEMPTS = 20
CACHE_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """What one update of weights took and showed."""

    how: How
    seconds: float  # all of it, the probe included; with the server's start if it had to be started
    bytes: int  # of tensors, as the trainer holds them
    agreement: Agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pushed:
    version: int
    how: How
    model: Any
    folder: Path | None  # none: they went over NCCL alone
    reference_SV: "Tensor"


class WeightSync:
    """Keeps a server's weights equal to a trainer's.

    Args:
        server: whose weights are kept; its `prepare` becomes this object's.
        how: "file": through a folder that both machines have. "nccl": between GPUs (not run by this project). "lora":
            an adapter, loaded in place. "auto": lora for a model with a PEFT adapter, else file.
        seconds: longest wait for one step of an update.
        num_probe_sequences: token sequences compared after each update, >= 1.
        max_difference: largest difference of one log-probability, nats; none: by the two dtypes.
        mean_difference: largest mean difference, nats; none: by the two dtypes.
    """

    def __init__(
        self,
        server: Server,
        *,
        how: Literal["auto", "file", "nccl", "lora"] = "auto",
        seconds: float = 600.0,
        num_probe_sequences: int = 4,
        max_difference: float | None = None,
        mean_difference: float | None = None,
    ) -> None:
        self._server = server
        self._how = how
        self._seconds = seconds
        self._num_probe_sequences = num_probe_sequences
        self._max_difference = max_difference
        self._mean_difference = mean_difference
        self._routes = Routes(server, seconds=seconds)
        self._folder: WeightFolder | None = None
        self._sender: NcclSender | None = None
        self._pushed: _Pushed | None = None
        self._agreement: Agreement | None = None
        self._pushing = asyncio.Lock()
        server.prepare = self._restore

    @property
    def version(self) -> int | None:
        """Version of the weights that were pushed last; none before the first push."""
        return None if self._pushed is None else self._pushed.version

    @property
    def model_name(self) -> str:
        """The name by which requests must ask for the model now."""
        return ADAPTER if self._pushed is not None and self._pushed.how == "lora" else SERVED_MODEL

    async def push(self, model: Any, *, version: int) -> PushReport:
        """Bring `model`'s weights to the server as `version`; start the server first where that is still to do.

        Args:
            model: transformers' causal language model, or PEFT's around one; not changed.
            version: what the server will say of tokens that are drawn from now on.

        Raises:
            ConfigError: the model does not fit the way that was chosen.
            EngineError: the server refuses, cannot be brought back, or disagrees with the trainer about the probe. Its
                weights are then not to be used.
        """
        async with self._pushing:
            started = time.monotonic()
            how = self._way(model)
            reference_SV = trainer_logprobs(model, self._sequences(model))
            if how == "lora":
                await self._server.ready()  # the adapter needs a model to stand on
            folder = None
            if how != "nccl" or not self._server.is_started:  # a server starts from files, however it goes on
                folder = await asyncio.to_thread(self._weight_folder().write, model)
            self._pushed = _Pushed(version=version, how=how, model=model, folder=folder, reference_SV=reference_SV)
            if folder is not None and how != "lora":
                self._server.serve_from(folder)
            await self._bring()
            if folder is not None:
                self._weight_folder().keep_only(folder)
            return PushReport(
                how=how,
                seconds=time.monotonic() - started,
                bytes=num_bytes(model),
                agreement=cast(Agreement, self._agreement),
            )

    async def probe(self) -> Agreement:
        """Compare the server with what the trainer said when it pushed.

        Raises:
            EngineError: nothing was pushed, another version answers, or they differ by more than the bounds.
        """
        pushed = self._pushed
        if pushed is None:
            raise EngineError("the server cannot be probed: no weights were pushed")
        agreement = await compare(
            self._routes,
            self._sequences(pushed.model),
            pushed.reference_SV,
            model_name=self.model_name,
            version=pushed.version,
        )
        bounds = await self._bounds(pushed.model)
        if not agreement.within(bounds):
            raise EngineError(
                f"the vLLM server does not compute with the trainer's weights (version {pushed.version}, pushed by "
                f"{pushed.how}): log-probabilities of the probe differ by {agreement.worst:.2g} nats at worst and "
                f"{agreement.mean:.2g} on average, expected at most {bounds.worst:.2g} and {bounds.mean:.2g}. If its "
                "dtype or kernels explain this, raise probe_max_difference and probe_mean_difference; else its "
                f"weights are wrong: look for unloaded parameters in {self._server.log or 'its log'}"
            )
        self._agreement = agreement
        return agreement

    async def close(self) -> None:
        """Remove what was written and leave the NCCL group. The server is its owner's."""
        if self._sender is not None:
            await self._sender.close()
        if self._folder is not None:
            self._folder.close()
        await self._routes.close()

    def _way(self, model: Any) -> How:
        has_adapter = hasattr(model, "peft_config")
        if self._how == "auto":
            return "lora" if has_adapter else "file"
        if has_adapter != (self._how == "lora"):
            kind = "a PEFT adapter" if has_adapter else "no PEFT adapter"
            fitting = '"lora"' if has_adapter else '"file" or "nccl"'
            raise ConfigError(f"weight_sync = {self._how!r}: the model has {kind}; expected {fitting} or 'auto'")
        return cast(How, self._how)

    async def _bring(self) -> None:
        if not self._server.is_started:
            await self._server.ready()  # loads, sets the version and probes: see _restore
            return
        try:
            await self._routes.post("/pause", mode="wait")  # requests in flight end with the weights they began with
            await self._load()
            await self._routes.post("/resume")
            await self.probe()
        except EngineError as error:
            # A server that died in between comes back with the weights, probed; one that lives has refused.
            if not await self._server.revive():
                raise EngineError(f"new weights did not get to the vLLM server: {error}") from error

    async def _restore(self) -> None:
        """Give a server that has just started the weights that were pushed last."""
        pushed = self._pushed
        if not self._server.loads_at_start:
            await self._routes.post("/resume")  # a run that was killed in an update leaves it paused
        if pushed is None:
            return
        self._sender = None  # its group ended with the server
        if pushed.how == "file" and self._server.loads_at_start:
            await self._routes.post("/update_weight_version", {"new_version": str(pushed.version)})
        else:
            await self._load()
        await self.probe()

    async def _load(self) -> None:
        pushed = cast(_Pushed, self._pushed)
        if pushed.how == "file":
            await self._load_file(cast(Path, pushed.folder))
        elif pushed.how == "lora":
            adapter = {"lora_name": ADAPTER, "lora_path": str(pushed.folder), "load_inplace": True}
            await self._routes.post("/v1/load_lora_adapter", adapter)
        else:
            if self._sender is None:
                url = self._server.url
                self._sender = await open_sender(self._routes, url, pushed.model, seconds=self._seconds)
            await self._sender.send()
        await self._routes.post("/update_weight_version", {"new_version": str(pushed.version)})
        await self._drop_cache()

    async def _load_file(self, folder: Path) -> None:
        if not all(await self._routes.workers("can_read", str(folder), key="is_there", kind=bool)):
            raise EngineError(
                f"the vLLM server cannot read {folder}: expected engine.running.weights_folder to be one that both "
                'machines have, or engine.weight_sync = "nccl"'
            )
        await self._routes.workers("load_weights_from", str(folder), key="tensors", kind=int)

    async def _drop_cache(self) -> None:
        # Blocks are given back a moment after their requests have ended.
        for _ in range(CACHE_ATTEMPTS):
            answer = await self._routes.post("/reset_prefix_cache", reset_running_requests="true")
            if isinstance(answer, dict) and answer.get("success"):
                return
            await asyncio.sleep(CACHE_PAUSE_SECONDS)
        raise EngineError("the vLLM server does not drop its cached prefixes, which belong to other weights")

    async def _bounds(self, model: Any) -> Bounds:
        dtypes = await self._routes.workers("describe_weights", key="dtype", kind=str)
        if unknown := set(dtypes) - DTYPES:
            raise EngineError(f"the vLLM server's workers compute in {sorted(unknown)}: expected {sorted(DTYPES)}")
        usual = default_bounds(str(model.dtype).removeprefix("torch."), *dtypes)
        worst, mean = self._max_difference, self._mean_difference
        return Bounds(
            worst=usual.worst if worst is None else worst,
            mean=usual.mean if mean is None else mean,
        )

    def _sequences(self, model: Any) -> list[list[int]]:
        return probe_sequences(model.config.get_text_config().vocab_size, self._num_probe_sequences)

    def _weight_folder(self) -> WeightFolder:
        if self._folder is None:
            self._folder = WeightFolder(self._server.folder)
        return self._folder
