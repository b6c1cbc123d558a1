"""The policy as others take it: a Hugging Face folder, an adapter's folder, or named tensors for another engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midcourse.training.lora import adapter_layers, adapter_weights, has_adapter, merged_weight, save_adapter

if TYPE_CHECKING:
    from torch import Tensor

BENEATH = ".base_layer."  # between an adapted layer's name and its own weights


def full_state(model: Any) -> "Iterator[tuple[str, Tensor]]":
    """Yield every tensor of the model under the name that it has without an adapter, adapters added to their weights.

    One merged tensor is made at a time, and the model stays as it is. Tensors without an adapter are the model's own,
    not copies; they are in the weights' type and on their device, without gradient. Tied weights come once, under their
    first name (the embedding's).
    """
    layers = dict(adapter_layers(model))
    apart = {id(weight) for weight in adapter_weights(model).values()}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in apart or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        owner, found, leaf = name.rpartition(BENEATH)
        if not found:
            yield name, tensor.detach()
        elif leaf == "weight":
            yield f"{owner}.weight", merged_weight(layers[owner])
        else:
            yield f"{owner}.{leaf}", tensor.detach()


def adapter_folder(model: Any, folder: Path) -> None:
    """Write the model's adapter as peft and vLLM load it. Raises ValueError: it has none."""
    if not has_adapter(model):
        raise ValueError("the model has no adapter")
    save_adapter(model, folder)


def save_weights(model: Any, folder: Path) -> None:
    """Write a folder that transformers loads, or peft where the model has an adapter. Raises OSError."""
    if has_adapter(model):
        save_adapter(model, folder)
        model.generation_config.save_pretrained(folder)
    else:
        model.save_pretrained(folder)
