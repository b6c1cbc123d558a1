"""LoRA: low-rank adapters on a policy's linear layers, by peft. The weights beneath them stay as they are, bit for bit.

A layer gives W x + s B A x (arXiv:2106.09685v2, Eq. 3), with s = alpha / rank, or alpha / sqrt(rank) for rsLoRA
(arXiv:2312.03732v1, Sec. 3.2). B begins at 0, so that the policy begins as its base. A and B are float32, whatever type
W has. The layers are put into the model itself, whose class stays the same: the engine, the passes over shared prefixes
and gradient checkpointing walk its layers as before. An adapter's folder is peft's: adapter_config.json, which names
the base, and adapter_model.safetensors.

peft is imported where an adapter is made; the settings need neither it nor torch.
"""

import copy
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.errors import ConfigError
from midcourse.nano.package import BUILT_IN

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
OURS = "default"  # peft's name for the adapter of a model that has one
PREFIX = "base_model.model."  # before every name in peft's files
BEYOND_PLAIN = (  # settings of peft under which a layer is more than W x + s B A x, or other weights are trained too
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
)
# What peft raises on the settings in an adapter's folder that are of another type, or that it cannot use.
SETTINGS_ERRORS = (ValueError, TypeError, AttributeError, ImportError, re.error)
PLAIN_BEGINNINGS = (True, False, "gaussian")  # the others take what B A gives at first off the base's weights


class LoraConfig(BaseModel):
    """Adapters that are trained in place of the policy's weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    # More would be no low rank, whatever the model; the width of its layers is known only once it is loaded.
    rank: int = Field(default=16, ge=1, le=1024)
    """Columns of B and rows of A. A layer with fewer inputs or outputs than that gains nothing from more."""
    alpha: int = Field(default=32, ge=1)
    """What the adapter's output is multiplied by, over the rank."""
    rank_stabilized: bool = False
    """rsLoRA: divide alpha by the rank's square root instead."""
    dropout: float = 0.0
    """Must be 0: with dropout the probability ratio of a token to itself would not be 1."""
    target_modules: tuple[str, ...] = ()
    """Names of linear layers, such as "q_proj"; none named takes all but the output head. No embeddings."""
    seed: int = Field(default=0, ge=0)
    """Of A's first values."""

    @model_validator(mode="after")
    def _without_dropout(self) -> Self:
        if self.dropout != 0.0:
            raise ValueError(
                f"dropout must be 0: got {self.dropout}; with any, the probability ratio of a token to itself would "
                "not be 1"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """What an adapter's folder says of it."""

    folder: Path
    base: str  # a path or name that the base is loaded by
    settings: Mapping[str, Any]  # peft's


def find_adapter(path: str) -> AdapterFile | None:
    """Return what the adapter's folder at `path` says; None: it is no adapter's folder.

    Raises:
        ConfigError: it cannot be read, its weights are missing, it names no base, or it is more than LoRA matrices.
    """
    folder = Path(path)
    place = folder / ADAPTER_CONFIG
    try:
        if not place.is_file():
            return None
    except OSError as error:  # a name that is too long, or a folder that may not be read
        raise ConfigError(f"policy.path = {path!r}: cannot be looked up: {error.strerror}") from error
    try:
        settings = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"policy.path = {path!r}: {ADAPTER_CONFIG} cannot be read: {error}") from error
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"policy.path = {path!r}: {ADAPTER_CONFIG} names no base: expected base_model_name_or_path, a folder or "
            "hub name"
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ConfigError(f"policy.path = {path!r}: the adapter's folder holds no {ADAPTER_WEIGHTS}")
    more = [name for name in BEYOND_PLAIN if settings.get(name)]
    if settings.get("bias", "none") != "none":
        more.append("bias")
    if settings.get("init_lora_weights", True) not in PLAIN_BEGINNINGS:
        more.append("init_lora_weights")
    if settings.get("peft_type") != "LORA" or more:
        what = ", ".join(more) or repr(settings.get("peft_type"))
        raise ConfigError(f"policy.path = {path!r}: expected an adapter of LoRA matrices alone: got one with {what}")
    return AdapterFile(folder=folder, base=base, settings=settings)


def base_name(path: str) -> str:
    """Return how an adapter names its base: a folder or file by its full path, since it is looked up from anywhere."""
    return str(Path(path).resolve()) if path not in BUILT_IN and Path(path).exists() else path


def add_adapter(model: Any, config: LoraConfig, *, base: str) -> None:
    """Put a new adapter into the model; its own weights become the only ones that are trained.

    Raises:
        ConfigError: peft is missing, no layer has such a name, or one that is named is no plain linear layer.
    """
    import torch

    peft = _peft()
    linear = _linear_layers(model)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        use_rslora=config.rank_stabilized,
        target_modules=list(config.target_modules) or sorted({name.rsplit(".", 1)[-1] for name in linear}),
        fan_in_fan_out=any(not isinstance(layer, torch.nn.Linear) for layer in linear.values()),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    named = f"policy.lora.target_modules = {list(config.target_modules)}"
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        try:
            _inject(model, settings)
        except ValueError as error:
            raise ConfigError(f"{named}: expected names of linear layers: {error}") from error
    _settle(model, named=named)


def load_adapter(model: Any, found: AdapterFile, *, base: str) -> None:
    """Put the adapter of a folder into the model of its base. Raises ConfigError: it does not fit, or is damaged."""
    from safetensors import SafetensorError

    peft = _peft()
    named = f"policy.path = {str(found.folder)!r}"
    try:
        settings = peft.LoraConfig.from_pretrained(found.folder)
        settings.base_model_name_or_path = base
        settings.lora_dropout = 0.0
        settings.inference_mode = False
        _inject(model, settings)
    except SETTINGS_ERRORS as error:
        raise ConfigError(f"{named}: no adapter can be made of its {ADAPTER_CONFIG}: {error}") from error
    _settle(model, named=named)
    try:
        read_adapter_weights(model, found.folder)
    except ValueError as error:
        raise ConfigError(f"{named}: the adapter does not fit its base: {error}") from error
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{named}: {ADAPTER_WEIGHTS} cannot be read: {error}") from error


def check_same_adapter(found: AdapterFile, config: LoraConfig) -> None:
    """Raise ConfigError unless an adapter that training goes on with is of the kind that the settings ask for."""
    pairs = {
        "rank": (config.rank, found.settings.get("r")),
        "alpha": (config.alpha, found.settings.get("lora_alpha")),
        "rank_stabilized": (config.rank_stabilized, bool(found.settings.get("use_rslora"))),
    }
    if differing := [
        f"policy.lora.{key} = {asked}, there {there}" for key, (asked, there) in pairs.items() if asked != there
    ]:
        raise ConfigError(
            f"policy.path = {str(found.folder)!r} is an adapter of another kind: {'; '.join(differing)}. Without "
            "[policy.lora] it is merged into its base, and all weights are trained"
        )


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError("LoRA needs the package peft: pip install -e '.[lora]' in the clone") from error
    return peft


def _linear_layers(model: Any) -> dict[str, Any]:
    """Return every linear layer but the head; GPT-2's keep their weights the other way round."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    }


def _inject(model: Any, settings: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*tie_word_embeddings", UserWarning)  # refused by _settle
        _peft().inject_adapter_in_model(settings, model, adapter_name=OURS)


def _settle(model: Any, *, named: str) -> None:
    """Refuse what peft adapts and we do not, and make the matrices float32."""
    import torch
    from torch import nn

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    for name, layer in adapter_layers(model):
        base_layer = layer.get_base_layer()
        if isinstance(base_layer, nn.Embedding):
            raise ConfigError(f"{named}: {name} is an embedding, and embeddings are not adapted")
        if layer is head and base_layer.weight is embedding.weight:
            raise ConfigError(
                f"{named}: {name} shares its weights with the embedding; adapted alone the two would part"
            )
    for parameter in adapter_weights(model).values():
        parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def adapter_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, layer) of every adapted layer; none where the model has no adapter."""
    if not has_adapter(model):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            yield name, module


def has_adapter(model: Any) -> bool:
    """Whether an adapter has been put into the model."""
    return bool(model.__dict__.get("peft_config"))


def base_of(model: Any) -> str | None:
    """Return how the adapter names its base; None where the model has no adapter."""
    return model.peft_config[OURS].base_model_name_or_path if has_adapter(model) else None


def adapter_weights(model: Any) -> "dict[str, Tensor]":
    """Return the adapter's matrices under the names that peft's files have."""
    return {
        f"{PREFIX}{name}.{kind}.weight": matrices[OURS].weight
        for name, layer in adapter_layers(model)
        for kind, matrices in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B))
    }


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter's folder as peft and vLLM read it. Raises OSError or SafetensorError."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    settings = copy.copy(model.peft_config[OURS])
    settings.inference_mode = True
    settings.target_modules = sorted(settings.target_modules)  # a set's order is another one in every process
    settings.save_pretrained(str(folder))
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in adapter_weights(model).items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def read_adapter_weights(model: Any, folder: Path) -> None:
    """Copy the matrices of an adapter's folder into the model's adapter.

    Raises:
        ValueError: other layers, matrices of another shape, or values that are not finite.
        OSError, SafetensorError: the file cannot be read.
    """
    import torch
    from safetensors.torch import load_file

    stored, weights = load_file(folder / ADAPTER_WEIGHTS), adapter_weights(model)
    if odd := sorted(stored.keys() ^ weights.keys()):
        raise ValueError(f"{len(odd)} of its matrices and the model's are not the same, such as {odd[0]}")
    with torch.no_grad():
        for name, weight in weights.items():
            if stored[name].shape != weight.shape:
                raise ValueError(f"{name} is {list(stored[name].shape)}, expected {list(weight.shape)}")
            if not stored[name].isfinite().all():
                raise ValueError(f"{name} is not finite")
            weight.copy_(stored[name])


def merged_weight(layer: Any) -> "Tensor":
    """Return W + s B A of an adapted layer, added in float32 and rounded once to W's type. No gradient."""
    weight = layer.get_base_layer().weight.detach()
    return (weight + layer.get_delta_weight(OURS).detach()).to(weight.dtype)


def merge_adapter(model: Any) -> None:
    """Add the adapter to the weights beneath and take it out: a model as if it never had one, all of it trainable."""
    for name, layer in list(adapter_layers(model)):
        base_layer = layer.get_base_layer()
        base_layer.weight.data.copy_(merged_weight(layer))
        model.set_submodule(name, base_layer)
    del model.peft_config
    model.requires_grad_(True)


def frozen_copy(model: Any) -> Any:
    """Return the model as it is now, for reading alone: what is trained is copied, what is not trained is shared.

    Of a model with an adapter the adapter alone is copied. With a new adapter, whose B is 0, the model is its base:
    then the copy's adapter is switched off, which changes no bit and saves its products. What is shared must stay
    untrained.
    """
    shared = {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}
    twin = copy.deepcopy(model, shared).eval().requires_grad_(False)
    matrices = adapter_weights(twin)
    if not any(bool(weight.any()) for name, weight in matrices.items() if ".lora_B." in name):
        for _, layer in adapter_layers(twin):
            layer.enable_adapters(enabled=False)
    return twin
