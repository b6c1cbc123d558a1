"""What settings there are: a run's sections, which class each has, and every key that may be set."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

import midcourse.engines.transformers
import midcourse.engines.vllm.config
import midcourse.environments
import midcourse.methods
from midcourse.engines.base import ENGINES
from midcourse.engines.openai import OpenAIEngineConfig
from midcourse.environments.base import ENVIRONMENTS
from midcourse.evaluation.evaluate import EvaluationConfig
from midcourse.methods.base import METHODS
from midcourse.recording.writer import RecordingConfig
from midcourse.registry import Registry
from midcourse.rollout.limits import RolloutConfig
from midcourse.training.config import TrainingConfig
from midcourse.training.policy import PolicyConfig

DEFAULT_METHOD = "rti"
DEFAULT_ENVIRONMENT = "navigation"
DEFAULT_ENGINE = "transformers"
NAMED_SECTIONS: Mapping[str, tuple[Registry[Any], str]] = {
    "environment": (ENVIRONMENTS, DEFAULT_ENVIRONMENT),
    "engine": (ENGINES, DEFAULT_ENGINE),
    "method": (METHODS, DEFAULT_METHOD),
}
PLAIN_SECTIONS: Mapping[str, type[BaseModel]] = {
    "policy": PolicyConfig,
    "rollout": RolloutConfig,
    "training": TrainingConfig,
    "evaluation": EvaluationConfig,
    "recording": RecordingConfig,
}
TEXT_ENGINES: Mapping[str, type[BaseModel]] = {"openai": OpenAIEngineConfig}
"""Engines that give text alone: they can play roles and cannot be the policy's."""
ROLES = ("validator", "corrector", "verifier", "judge")
TOP_FIELDS = ("seed", "output", "plugins", "plugins_folder")
SECTIONS = ("environment", "policy", "engine", "rollout", "method", "training", "evaluation", "recording")


class RunConfig(BaseModel):
    """Everything that decides a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int = Field(default=0, ge=0)
    """Seed of every draw: data order, rollouts, evaluation. Same seed and settings, same run (on a CPU bit for bit)."""
    output: str = Field(default="", validate_default=False)
    """Folder that the run is written to; empty takes runs/<method>-<seed>."""
    plugins: tuple[str, ...] = ()
    """Python modules with environments, methods or engines of your own, imported before names are looked up."""
    plugins_folder: str = ""
    """Where they are, if not on PYTHONPATH; empty: in the settings file's folder, where relative ones start, too."""
    environment: SerializeAsAny[BaseModel]
    policy: PolicyConfig
    engine: SerializeAsAny[BaseModel]
    rollout: RolloutConfig
    method: SerializeAsAny[BaseModel]
    training: TrainingConfig
    evaluation: EvaluationConfig
    recording: RecordingConfig
    role_engines: Mapping[str, OpenAIEngineConfig] = Field(default_factory=dict)
    """Role -> server that plays it, for the roles whose source is "engine"."""

    def name_of(self, section: str) -> str:
        """Return the registered name behind "environment", "engine" or "method"."""
        registry, _ = NAMED_SECTIONS[section]
        return next(name for name in registry.names() if registry[name] is type(getattr(self, section)))

    @property
    def output_folder(self) -> Path:
        """The run folder."""
        return Path(self.output or f"runs/{self.name_of('method')}-{self.seed}")


@cache
def register_all() -> None:
    """Import the files that register methods, environments and engines under their names."""
    for module in pkgutil.iter_modules(midcourse.methods.__path__):
        importlib.import_module(f"midcourse.methods.{module.name}")
    for module in pkgutil.iter_modules(midcourse.environments.__path__):
        importlib.import_module(f"midcourse.environments.{module.name}")


def section_classes(names: Mapping[str, str]) -> dict[str, type[BaseModel]]:
    """Return section -> class, in file order, for the chosen environment, engine and method.

    Raises:
        ConfigError: a name is not registered.
    """
    register_all()
    classes: dict[str, type[BaseModel]] = {}
    for section in SECTIONS:
        if section in NAMED_SECTIONS:
            registry, default = NAMED_SECTIONS[section]
            classes[section] = registry[names.get(section, default)]
        else:
            classes[section] = PLAIN_SECTIONS[section]
    return classes


def section_fields(section_class: type[BaseModel]) -> list[str]:
    """Return the fields that a section writes; its `name` is written by whoever chose the class."""
    return [name for name in section_class.model_fields if name != "name"]


def nested_class(section_class: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the class of a field that is a table of settings itself, one that may be absent too; else None."""
    annotation = section_class.model_fields[name].annotation
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    kinds = [part for part in parts if part is not NoneType]
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel) else None


def literal_options(annotation: Any) -> tuple[Any, ...]:
    """Return the values that a field's annotation lists, those within a union too; none where it lists none."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(option for part in get_args(annotation) for option in literal_options(part))


def nested_tables(section: BaseModel, path: str) -> Iterator[tuple[str, BaseModel]]:
    """Yield (path, table) of every table of settings that a section has, those within tables too."""
    for name in section_fields(type(section)):
        table = getattr(section, name)
        if isinstance(table, BaseModel):
            yield f"{path}.{name}", table
            yield from nested_tables(table, f"{path}.{name}")


def section_keys(section_class: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield every key of a section, those of nested tables included, after `prefix`."""
    for name in section_fields(section_class):
        nested = nested_class(section_class, name)
        if nested is None:
            yield prefix + name
        else:
            yield from section_keys(nested, f"{prefix}{name}.")


def known_keys(classes: Mapping[str, type[BaseModel]]) -> list[str]:
    """Return every key that may be set, dotted."""
    keys = [*TOP_FIELDS, *(f"{section}.name" for section in NAMED_SECTIONS)]
    for section, section_class in classes.items():
        keys += section_keys(section_class, section + ".")
    for role in ROLES:
        keys += [f"role_engines.{role}.name", *section_keys(OpenAIEngineConfig, f"role_engines.{role}.")]
    return keys
