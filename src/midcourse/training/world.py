"""The processes that train together, as an updater asks them: who has which work, weights, sums. Here: one alone.

`distributed.Processes` is the same for several. An updater is written for any number of them and never asks how many
there are. Process 0, the main one, makes the run; what all must do at once is a method marked `collective`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from midcourse.training.batch import MicroBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Result = TypeVar("Result")
Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


class World(Protocol):
    """What an updater asks. Every method but `together` is called by all processes, in the same order."""

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which rolls out and writes."""
        ...

    def together(self, name: str, arguments: Sequence[Any]) -> AbstractContextManager[None]:
        """Let the others run the same method of their updater with the same arguments while this block runs."""
        ...

    def split(self, model: Any) -> Any:
        """Return the model that computes here, with main's weights. Main keeps the whole one that it gave besides."""
        ...

    def run(self, model: Any, compute: Callable[[Any], tuple["Tensor", ...]]) -> tuple["Tensor", ...]:
        """Return what `compute` makes of a split model, whose weights it can read as if they were whole."""
        ...

    def share_out(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """Return this process's part of an optimizer step's micro-batches; as many as every other one's."""
        ...

    def clip_gradients(self, parameters: Sequence["torch.nn.Parameter"], max_norm: float) -> float:
        """Scale the gradients, added over processes, down to a norm over all weights; return what it was."""
        ...

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, in their order."""
        ...

    def publish(self, trained: Any, whole: Any) -> None:
        """Put the weights of the split model that are trained into main's whole one."""
        ...

    def spread(self, whole: Any, trained: Any) -> None:
        """Put the weights of main's whole model into the split one."""
        ...

    def join_up(self, part: "Tensor") -> "Tensor":
        """Return the whole of a tensor that is split as its weight is."""
        ...

    def hand_out(self, whole: "Tensor | None", *, like: "Tensor") -> "Tensor":
        """Return a copy of main's tensor, split as `like` is and on its device; the others give None."""
        ...


class Alone:
    """One process: the models and tensors are the ones given, and nothing is moved."""

    is_main = True

    def together(self, name: str, arguments: Sequence[Any]) -> AbstractContextManager[None]:
        """Do nothing: there are no others."""
        return nullcontext()

    def split(self, model: Any) -> Any:
        """Return the model."""
        return model

    def run(self, model: Any, compute: Callable[[Any], tuple["Tensor", ...]]) -> tuple["Tensor", ...]:
        """Return what `compute` makes of the model."""
        return compute(model)

    def share_out(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """Return all of them."""
        return batches

    def clip_gradients(self, parameters: Sequence["torch.nn.Parameter"], max_norm: float) -> float:
        """Scale the gradients down to a norm; return what it was."""
        import torch

        return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    def gather(self, value: Value) -> list[Value]:
        """Return the value."""
        return [value]

    def publish(self, trained: Any, whole: Any) -> None:
        """Do nothing: both are one."""

    def spread(self, whole: Any, trained: Any) -> None:
        """Do nothing: both are one."""

    def join_up(self, part: "Tensor") -> "Tensor":
        """Return the tensor."""
        return part

    def hand_out(self, whole: "Tensor | None", *, like: "Tensor") -> "Tensor":
        """Return a copy of the tensor beside `like`."""
        assert whole is not None  # the main process gives it, and this is the main process
        return whole.to(like.device, copy=True)


class HasWorld(Protocol):
    """An object that each process has one of, alike."""

    world: World


Owner = TypeVar("Owner", bound=HasWorld)


def collective(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result]:
    """Make a method one that all processes run together when the main one calls it.

    Positional arguments reach the others, too, by pickle; keyword arguments stay with the main process, and the others
    run with the defaults of these.
    """

    @wraps(method)
    def on_all(owner: Owner, *arguments: Arguments.args, **kept: Arguments.kwargs) -> Result:
        with owner.world.together(method.__name__, arguments):
            return method(owner, *arguments, **kept)

    return on_all
