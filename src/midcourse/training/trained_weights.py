"""What the optimizer moves: the trainable weights, those of 16 bits through a float32 copy.

bfloat16 has 8 significant bits: the neighbours of a weight of 0.02 are 1.2e-4 away (2^-6 * 2^-7), so a step of 1e-6
would be rounded away every time. In the copy steps add up (mixed-precision training, arXiv:1710.03740v3, Sec. 3.1), and
the model's weight is the copy rounded, each time anew. Gradients of micro-batches are added up in float32, too.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class TrainedWeights:
    """A model's trainable parameters in the order and under the names of `named_parameters`.

    `optimized` maps each name to what the optimizer gets: the parameter itself, or its float32 copy.
    """

    def __init__(self, model: Any) -> None:
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.optimized: dict[str, nn.Parameter] = {
            name: parameter if parameter.element_size() >= 4 else nn.Parameter(parameter.detach().float())
            for name, parameter in parameters.items()
        }
        self._copied = {
            name: parameter for name, parameter in parameters.items() if self.optimized[name] is not parameter
        }

    @property
    def num_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(weight.numel() for weight in self.optimized.values())

    def collect_gradients(self) -> None:
        """Add the gradients of a backward pass to the copies' and free them; call it after every backward pass."""
        for name, parameter in self._copied.items():
            if parameter.grad is None:
                continue
            master = self.optimized[name]
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the copies into the model; call it after every optimizer step."""
        for name, parameter in self._copied.items():
            parameter.copy_(self.optimized[name])

    def copies(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold besides the model: the float32 copies, by name."""
        return {name: self.optimized[name].detach() for name in self._copied}

    @torch.no_grad()
    def restore(self, copies: Mapping[str, Tensor]) -> None:
        """Take what `copies` gave; of those that are not there, the model's weights as they are now."""
        for name, parameter in self._copied.items():
            self.optimized[name].copy_(copies.get(name, parameter))
