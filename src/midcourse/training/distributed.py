"""Several processes on one model: torch's FSDP2. Each holds a part of every weight, of its gradient and its moments.

A layer's weights are gathered when it computes and let go afterwards; the embedding, the head and what else stands
beside the layers are one unit, gathered for a whole pass: the head runs apart from the model's own forward, and may
share its weights with the embedding. Gradients are summed, not averaged: losses have the denominators of the whole step
already. The main process keeps the whole model besides: its engine, the scores and the checkpoints read that one, and
each update makes it current.

The main process tells the others what to call over a group of its own, in which they may wait long, as rollouts take
long. All else is over within `training.process_timeout_seconds`, or the run ends.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import MethodType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor

from midcourse.errors import ConfigError, TrainingError
from midcourse.training.batch import MicroBatch, share_of
from midcourse.training.config import TrainingConfig
from midcourse.training.launch import Launch

Value = TypeVar("Value")
Call = tuple[str, Sequence[Any]]
"""The name of an updater's method, and its arguments."""
LOST_PEER = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe|timed? ?out", re.IGNORECASE)
"""What torch's errors say where another process is gone or silent; they have no type of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """The last message of the main process."""

    reason: str | None  # None: the run is done


@contextmanager
def joined(launch: Launch, device: str, config: TrainingConfig) -> Iterator["Processes"]:
    """Yield the processes of a run once they have found each other, and tell the others when the block ends.

    Args:
        launch: which of them this one is.
        device: policy.device.
        config: holds the timeouts.

    Raises:
        ConfigError: there are fewer GPUs on this machine than processes.
        TrainingError: the others did not come.
    """
    place = _own_device(launch, device)
    timeout = timedelta(seconds=config.process_timeout_seconds)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
            # torchrun may keep its store when it starts all again: addresses in it are then of processes that are gone.
            store=PrefixStore(f"attempt_{launch.attempt}", store),
            rank=rank,
            world_size=size,
            timeout=timeout,
        )
        world = Processes(launch, place, config)
    except RuntimeError as error:
        raise TrainingError(f"process {launch.rank} of {launch.size} did not find the others: {error}") from error
    try:
        yield world
    except BaseException as error:
        # The group is not taken down in order: what is under way in it may never end.
        world.end(str(error) or type(error).__name__ if isinstance(error, Exception) else "it was stopped")
        raise
    world.end(None)
    dist.destroy_process_group()


def _own_device(launch: Launch, device: str) -> torch.device:
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if launch.local_rank >= (count := torch.cuda.device_count()):
        raise ConfigError(f"process {launch.local_rank} of this machine has no GPU: torch finds {count}")
    torch.cuda.set_device(launch.local_rank)
    return torch.device("cuda", launch.local_rank)


class Processes:
    """The world of several processes; see `World` for what each method is for."""

    def __init__(self, launch: Launch, device: torch.device, config: TrainingConfig) -> None:
        self.launch = launch
        self.device = device
        self._mesh = init_device_mesh(device.type, (launch.size,))
        idle_seconds = config.process_timeout_seconds if launch.is_main else config.idle_timeout_seconds
        # Plain values go by the CPU, whatever the weights are on.
        self._calls = _value_group(idle_seconds)
        self._values = _value_group(config.process_timeout_seconds)
        self._others_listen = launch.is_main

    @property
    def is_main(self) -> bool:
        """Whether this is process 0."""
        return self.launch.is_main

    def calls(self) -> Iterator[Call]:
        """Yield what the main process calls, until the run is done.

        Raises:
            TrainingError: the main process failed, is gone, or was silent for `training.idle_timeout_seconds`.
        """
        while True:
            received: list[Any] = [None]
            try:
                dist.broadcast_object_list(received, src=0, group=self._calls)
            except RuntimeError as error:
                raise self._lost(error) from error
            message = received[0]
            if not isinstance(message, _End):
                yield message
            elif message.reason is None:
                return
            else:
                raise TrainingError(f"process {self.launch.rank} ends, because process 0 does: {message.reason}")

    def end(self, reason: str | None) -> None:
        """Tell the others that the run is done, or why it is over; where they do not listen they see it themselves."""
        if self._others_listen:
            with suppress(RuntimeError):
                dist.broadcast_object_list([_End(reason=reason)], src=0, group=self._calls)

    @contextmanager
    def together(self, name: str, arguments: Sequence[Any]) -> Iterator[None]:
        """Call the others, and say it in words of ours where one of them is gone.

        Raises:
            TrainingError: another process is gone, or did not come in time.
        """
        try:
            if self.is_main:
                # An error in this block is an error of all of them, or tears the connections.
                self._others_listen = False
                dist.broadcast_object_list([(name, tuple(arguments))], src=0, group=self._calls)
            yield
        except RuntimeError as error:
            if LOST_PEER.search(str(error)):
                raise self._lost(error) from error
            raise
        self._others_listen = self.is_main

    def _lost(self, error: RuntimeError) -> TrainingError:
        return TrainingError(
            f"process {self.launch.rank} of {self.launch.size} waited for the others in vain: one of them is gone or "
            f"hangs, and its own last lines may say why; --resume goes on from the last checkpoint ({error})"
        )

    def split(self, model: Any) -> Any:
        """Return the model with its weights split by FSDP2: main's is a copy, the others' the one given."""
        part = _copy_on_cpu(model) if self.is_main else model
        for module in (*_layers(part), part):
            self._shard(module)
        part.compute_gathered = MethodType(_compute, part)
        register_fsdp_forward_method(part, "compute_gathered")
        self.spread(model, part)
        return part

    def _shard(self, module: nn.Module) -> None:
        is_narrow = any(parameter.element_size() < 4 for parameter in module.parameters())
        # Weights compute in the type that they have, and under the same autocast, as in one process.
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32 if is_narrow else None, cast_forward_inputs=False)
        sharded = fully_shard(module, mesh=self._mesh, mp_policy=precision)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has sums alone

    def run(self, model: Any, compute: Callable[[Any], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what `compute` makes of the model while its weights are gathered, unit by unit."""
        found = model.compute_gathered(compute)
        if not torch.is_grad_enabled():
            model.reshard()  # a backward pass does; without one, what is beside the layers would stay whole
        return found

    def share_out(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """Return this process's micro-batches."""
        return share_of(batches, rank=self.launch.rank, size=self.launch.size)

    def clip_gradients(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Scale the gradients down to a norm over all parts."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return float(norm)

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all."""
        values: list[Any] = [None] * self.launch.size
        dist.all_gather_object(values, value, group=self._values)
        return values

    @torch.no_grad()
    def publish(self, trained: Any, whole: Any) -> None:
        """Put the trained weights into main's whole model, one at a time."""
        weights = dict(whole.named_parameters()) if self.is_main else {}
        for name, part in trained.named_parameters():
            if part.requires_grad:
                gathered = self.join_up(part)
                if self.is_main:
                    weights[name].copy_(gathered)

    @torch.no_grad()
    def spread(self, whole: Any, trained: Any) -> None:
        """Put main's weights into the parts, one at a time."""
        weights = dict(whole.named_parameters()) if self.is_main else {}
        for name, part in trained.named_parameters():
            part.copy_(self.hand_out(weights.get(name), like=part))

    def join_up(self, part: Tensor) -> Tensor:
        """Return the whole tensor."""
        assert isinstance(part, DTensor)
        return part.full_tensor().detach()

    def hand_out(self, whole: Tensor | None, *, like: Tensor) -> Tensor:
        """Return this process's part of main's tensor."""
        assert isinstance(like, DTensor)
        if whole is None:
            whole = torch.empty(like.shape, dtype=like.dtype, device=self.device)
        whole = whole.detach().to(self.device, like.dtype)
        return distribute_tensor(whole, like.device_mesh, like.placements)


def _compute(model: Any, compute: Callable[[Any], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return compute(model)


def _value_group(timeout_seconds: float) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
    assert isinstance(group, dist.ProcessGroup)  # all processes are in it
    return group


def _copy_on_cpu(model: Any) -> Any:
    """Return a copy for splitting, which moves it to its device layer by layer; shared weights stay shared."""
    weights = {
        id(weight): nn.Parameter(weight.detach().to("cpu", copy=True), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, weights)


def _layers(model: Any) -> list[nn.Module]:
    """Return the decoder's layers: what stands in lists, of the classes that the model asks to keep in one piece."""
    names = set(model._no_split_modules or ())
    return [
        module
        for parent in model.modules()
        if isinstance(parent, nn.ModuleList)
        for module in parent
        if type(module).__name__ in names
    ]
