"""A run's settings: one TOML file plus `--set a.b=c`, strict, each section owned by its stage.

`[environment]`, `[engine]` and `[method]` carry a `name` that picks the section's class from its registry; the other
sections have one class each. A key that no section uses, or that the chosen method does not use, is an error that
names the nearest right key: no setting is silently ignored. Nothing here needs torch.
"""

import difflib
import importlib
import json
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError

import midcourse.engines.transformers
import midcourse.environments
import midcourse.methods
from midcourse.engines.base import ENGINES
from midcourse.engines.openai import OpenAIEngineConfig
from midcourse.environments.base import ENVIRONMENTS
from midcourse.errors import ConfigError
from midcourse.evaluation.evaluate import EvaluationConfig
from midcourse.interventions.judge import JudgeConfig
from midcourse.interventions.roles import RolesConfig
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
SECTIONS = ("environment", "policy", "engine", "rollout", "method", "training", "evaluation", "recording")

# Names that other trainers use for the same thing. Not accepted: the error says the name that is.
FOREIGN_NAMES: Mapping[str, str] = {
    "num_generations": "group_size",
    "rollout_n": "group_size",
    "n_samples_per_prompt": "group_size",
    "beta": "kl_coefficient",
    "kl_coef": "kl_coefficient",
    "kl_loss_coef": "kl_coefficient",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "clip_ratio_low": "clip_low",
    "clip_ratio_high": "clip_high",
    "loss_agg_mode": "aggregation",
    "loss_type": "aggregation",
    "perplexity_limit": "delta",
    "ppl_delta": "delta",
    "ppl_threshold": "delta",
    "eps_cal": "epsilon_cal",
    "max_steps": "updates",
    "total_training_steps": "updates",
    "lr": "learning_rate",
    "max_completion_length": "max_turn_tokens",
    "max_response_length": "max_turn_tokens",
    "model": "path",
    "model_name_or_path": "path",
    "output_dir": "output",
}


class RunConfig(BaseModel):
    """Everything that decides a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int = Field(default=0, ge=0)
    """Seed of every draw: data order, rollouts, evaluation. Same seed and settings, same run (on a CPU bit for bit)."""
    output: str = Field(default="", validate_default=False)
    """Folder that the run is written to; empty takes runs/<method>-<seed>."""
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


TOP_FIELDS = ("seed", "output")


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a value came from, for messages."""

    file: str | None
    overridden: frozenset[str]

    def of(self, key: str) -> str:
        overridden = any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in self.overridden)
        if overridden or self.file is None:
            return f"--set {key}"
        return f"{self.file}: {key}"


def load_config(path: Path | str | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the settings of a TOML file with `a.b=c` overrides applied, defaults elsewhere.

    Args:
        path: the file; None starts from the defaults alone.
        overrides: each "section.key=value", value in TOML syntax; a bare word is a string.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or unused, a value has the wrong type or range.
    """
    values = {} if path is None else _read(Path(path))
    keys = set()
    for override in overrides:
        keys.add(_apply(values, override))
    return build_config(values, _Origin(None if path is None else str(path), frozenset(keys)))


def default_config(method: str = DEFAULT_METHOD, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the settings that a file with only this method's name gives, overrides applied."""
    return load_config(None, [f"method.name={json.dumps(method)}", *overrides])


def build_config(values: Mapping[str, Any], origin: _Origin | None = None) -> RunConfig:
    """Return checked settings from nested plain values. Raises as `load_config`."""
    origin = origin or _Origin("settings", frozenset())
    register_all()
    _reject_foreign_values(values, origin)
    classes = section_classes(
        {name: _chosen(values, name, origin) for name in NAMED_SECTIONS if isinstance(values.get(name, {}), Mapping)}
    )
    _reject_unknown_keys(values, classes, origin)
    sections: dict[str, Any] = {}
    for section, section_class in classes.items():
        given = values.get(section, {})
        if not isinstance(given, Mapping):
            hint = f"; did you mean {section}.name?" if section in NAMED_SECTIONS else ""
            raise ConfigError(f"{origin.of(section)}: got {given!r}, expected a table of settings{hint}")
        own = {key: value for key, value in given.items() if section not in NAMED_SECTIONS or key != "name"}
        sections[section] = _validate(section_class, own, section, origin)
    _check_profile(sections["policy"], sections["environment"])
    role_engines = _role_engines(values.get("role_engines", {}), sections["method"], origin)
    top = {key: values[key] for key in TOP_FIELDS if key in values}
    try:
        return RunConfig(**_strict_top(top, origin), **sections, role_engines=role_engines)
    except ValidationError as error:
        raise _explain(error, top, "", origin) from error


def _check_profile(policy: PolicyConfig, environment: BaseModel) -> None:
    profile = environment.model_dump().get("profile", "nano")
    if policy.chat == "compact" and profile != "nano":
        raise ConfigError(
            f'environment.profile = {profile!r}: policy.chat "compact" can express the nano profile alone; '
            'set environment.profile = "nano", or another policy with policy.chat = "chatml"'
        )


def _role_engines(given: Any, method: BaseModel, origin: _Origin) -> Mapping[str, BaseModel]:
    """Return role -> engine settings, exactly for the roles that the method leaves to an engine."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{origin.of('role_engines')} = {given!r}: expected tables such as [role_engines.validator]")
    asked = {
        role
        for name in type(method).model_fields
        if isinstance(cast := getattr(method, name), RolesConfig | JudgeConfig)
        for role in cast.engine_roles
    }
    found: dict[str, BaseModel] = {}
    for role, table in given.items():
        key = f"role_engines.{role}"
        if role not in asked:
            raise ConfigError(
                f"{origin.of(key)}: not used, because the method's roles do not leave the {role} to an engine"
            )
        if not isinstance(table, Mapping):
            raise ConfigError(f"{origin.of(key)} = {table!r}: expected a table of settings")
        name = table.get("name", "openai")
        if not isinstance(name, str) or name not in TEXT_ENGINES:
            raise ConfigError(f"{origin.of(key + '.name')} = {name!r}: expected one of {', '.join(TEXT_ENGINES)}")
        own = {setting: value for setting, value in table.items() if setting != "name"}
        found[role] = _validate(TEXT_ENGINES[name], own, key, origin)
    if missing := sorted(asked - found.keys()):
        raise ConfigError(f"the {missing[0]} is left to an engine: [role_engines.{missing[0]}] must say which")
    return found


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


def resolved_toml(config: RunConfig) -> str:
    """Return TOML that spells every setting out; loading it gives an equal config."""
    return _render(config, commented=False)


def commented_toml(method: str = DEFAULT_METHOD) -> str:
    """Return TOML with every setting at its default under a comment that says what it means."""
    header = (
        f"# Settings of a {method} run. Every value below is the default: a file that holds only\n"
        f'# [method] name = "{method}" means the same. Run it with: midcourse train THIS_FILE\n\n'
    )
    return header + _render(default_config(method), commented=True)


def commented_nano_toml(values: Mapping[str, Any]) -> str:
    """Return TOML as `commented_toml` does, with `values` in place of their defaults. Raises as `load_config`."""
    config = build_config(values)
    header = (
        f"# Settings of a {config.name_of('method')} run, fitted to the built-in policy as in `midcourse demo`.\n"
        "# Run it with: midcourse train THIS_FILE\n\n"
    )
    return header + _render(config, commented=True)


def reference_markdown() -> str:
    """Return the reference of all settings, every registered method, engine and environment included."""
    register_all()
    lines = [
        "# Settings",
        "",
        "Written by `midcourse init --reference`; do not edit. A run is one TOML file plus `--set section.key=value`.",
        "Unknown keys, and keys that the chosen method does not use, are errors. `midcourse init` writes a commented",
        'file to start from. A setting that may be absent is written `"none"`.',
        "",
    ]
    lines += ["## Top of the file", "", *_reference_table(RunConfig, "", only=TOP_FIELDS)]
    for section in SECTIONS:
        if section not in NAMED_SECTIONS:
            lines += [f"## [{section}]", "", *_reference_section(PLAIN_SECTIONS[section], section)]
            continue
        registry, default = NAMED_SECTIONS[section]
        for name in _selectable(section):
            lines += [f'## [{section}] name = "{name}"' + (" (default)" if name == default else ""), ""]
            lines += _reference_section(registry[name], section)
    for name, engine_class in TEXT_ENGINES.items():
        lines += [f'## [role_engines.validator] (corrector, verifier, judge) name = "{name}"', ""]
        lines += ["Only for roles whose source is `engine`.", "", *_reference_section(engine_class, "role_engines.*")]
    return "\n".join(lines).rstrip() + "\n"


def _selectable(section: str) -> list[str]:
    return [name for name in NAMED_SECTIONS[section][0].names() if section != "engine" or name not in TEXT_ENGINES]


def first_line(documented: type) -> str:
    """Return the first line of a class's docstring."""
    return (documented.__doc__ or "").strip().partition("\n")[0]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error


def _apply(values: dict[str, Any], override: str) -> str:
    key, separator, text = override.partition("=")
    key, text = key.strip(), text.strip()
    if not separator or not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", key):
        raise ConfigError(f"--set {override!r}: expected section.key=value, such as training.updates=50")
    table = values
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}: {parent} is a value, not a section")
    table[last] = _parse_value(key, text)
    return key


def _parse_value(key: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
        if len(parsed) == 1:
            return parsed["value"]
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"[\w./:@+~ -]+", text):
            return text  # a bare word
    raise ConfigError(f"--set {key}: {text!r} is not a TOML value; quote text that holds other characters than words")


def _chosen(values: Mapping[str, Any], section: str, origin: _Origin) -> str:
    registry, default = NAMED_SECTIONS[section]
    name = values.get(section, {}).get("name", default)
    if not isinstance(name, str):
        raise ConfigError(
            f"{origin.of(section + '.name')}: got {name!r}, expected one of {', '.join(registry.names())}"
        )
    if section == "engine" and name in TEXT_ENGINES:
        raise ConfigError(
            f"{origin.of('engine.name')}: {name!r} gives text alone, so it can play roles ([role_engines.validator]) "
            "and not the policy"
        )
    try:
        _ = registry[name]
    except ConfigError as error:
        raise ConfigError(f"{origin.of(section + '.name')}: {error}") from error
    return name


def _fields(section_class: type[BaseModel]) -> list[str]:
    """Return the fields that a section writes; its `name` is written by whoever chose the class."""
    return [name for name in section_class.model_fields if name != "name"]


def _nested(section_class: type[BaseModel], name: str) -> type[BaseModel] | None:
    annotation = section_class.model_fields[name].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _keys(section_class: type[BaseModel], prefix: str) -> Iterator[str]:
    for name in _fields(section_class):
        nested = _nested(section_class, name)
        if nested is None:
            yield prefix + name
        else:
            yield from _keys(nested, f"{prefix}{name}.")


def known_keys(classes: Mapping[str, type[BaseModel]]) -> list[str]:
    """Return every key that may be set, dotted."""
    keys = [*TOP_FIELDS, *(f"{section}.name" for section in NAMED_SECTIONS)]
    for section, section_class in classes.items():
        keys += _keys(section_class, section + ".")
    for role in ROLES:
        keys += [f"role_engines.{role}.name", *_keys(OpenAIEngineConfig, f"role_engines.{role}.")]
    return keys


def _given_keys(values: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = prefix + name
        if isinstance(value, Mapping) and value and key not in known:
            yield from _given_keys(value, known, key + ".")
        elif not any(other.startswith(key + ".") for other in known):
            yield key, value


def _reject_foreign_values(value: Any, origin: _Origin, key: str = "") -> None:
    """Check what no setting can hold: dates (TOML has them), integers over 64 bits, NUL characters (no path has them).

    Raises:
        ConfigError: there is one; the message names its key.
    """
    expected = ""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _reject_foreign_values(item, origin, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for item in value:
            _reject_foreign_values(item, origin, key)
    elif isinstance(value, date | time):  # a datetime is a date
        expected = "text in quotes, or a number; no setting is a date or time"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        expected = "an integer of at most 64 bits"
    elif isinstance(value, str) and "\0" in value:
        expected = "text without NUL characters"
    if expected:
        shown = repr(value) if isinstance(value, int | str) else str(value)
        raise ConfigError(f"{origin.of(key)} = {shown}: expected {expected}")


def _reject_unknown_keys(values: Mapping[str, Any], classes: Mapping[str, type[BaseModel]], origin: _Origin) -> None:
    known = known_keys(classes)
    for key, value in _given_keys(values, known):
        if key in known:
            continue
        near = nearest_key(key, known)
        hint = f"; did you mean {near}?" if near else ""
        users = [
            f"{section} {name}"
            for section, (registry, _) in NAMED_SECTIONS.items()
            if key.startswith(section + ".")
            for name in registry.names()
            if key in set(_keys(registry[name], section + "."))
        ]
        shown = repr(value) if not isinstance(value, Mapping) else "a table"
        if users:
            section = key.partition(".")[0]
            chosen = next(
                name
                for name in NAMED_SECTIONS[section][0].names()
                if NAMED_SECTIONS[section][0][name] is classes[section]
            )
            raise ConfigError(
                f"{origin.of(key)} = {shown}: not used by {section} {chosen!r} ({', '.join(users)} uses it){hint}"
            )
        raise ConfigError(f"{origin.of(key)} = {shown}: unknown setting{hint or '; sections: ' + ', '.join(classes)}")


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """Return the known key that `key` most likely means, or None."""
    last = key.rpartition(".")[2]
    section = key.partition(".")[0]
    is_own = any(name.startswith(section + ".") and name.endswith("." + last) for name in known)
    wanted = last if is_own else FOREIGN_NAMES.get(last, last)
    same_name = [name for name in known if name.rpartition(".")[2] == wanted]
    for name in sorted(same_name, key=lambda name: not name.startswith(section + ".")):
        return name
    siblings = [name for name in known if name.startswith(section + ".")] if "." in key else []
    for candidates in (siblings, list(known)):
        by_last = {name.rpartition(".")[2]: name for name in reversed(candidates)}
        for close in difflib.get_close_matches(last, by_last, n=1, cutoff=0.7):
            return by_last[close]
    close = difflib.get_close_matches(key, known, n=1)
    return close[0] if close else None


def _allows_none(section_class: type[BaseModel], name: str) -> bool:
    return NoneType in get_args(section_class.model_fields[name].annotation)


def _without_none_words(section_class: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in given.items():
        nested = _nested(section_class, key)
        if nested is not None and isinstance(value, Mapping):
            plain[key] = _without_none_words(nested, value)
        else:
            plain[key] = None if value == "none" and _allows_none(section_class, key) else value
    return plain


def _validate(section_class: type[BaseModel], given: Mapping[str, Any], section: str, origin: _Origin) -> BaseModel:
    # Through JSON, because strict checking of JSON takes lists for tuples and text for enums, and no more than that.
    text = json.dumps(_without_none_words(section_class, given), default=str)
    try:
        return section_class.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise _explain(error, given, section + ".", origin) from error


def _strict_top(top: Mapping[str, Any], origin: _Origin) -> Mapping[str, Any]:
    for key, kind in (("seed", int), ("output", str)):
        if key in top and (not isinstance(top[key], kind) or isinstance(top[key], bool)):
            expected = "an integer" if kind is int else "text"
            raise ConfigError(f"{origin.of(key)} = {top[key]!r}: expected {expected}")
    return top


def _explain(error: ValidationError, given: Mapping[str, Any], prefix: str, origin: _Origin) -> ConfigError:
    lines = []
    for detail in error.errors(include_url=False):
        location = [str(part) for part in detail["loc"]]
        key = (prefix + ".".join(location)).rstrip(".")
        if detail["type"] == "missing":
            lines.append(f"{origin.of(key)}: required, and not given")
            continue
        message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        expected = message if detail["type"] == "value_error" else f"expected {message}"
        value = f" = {detail['input']!r}" if location else ""
        lines.append(f"{origin.of(key)}{value}: {expected}")
    return ConfigError("\n".join(lines))


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it; None becomes the text "none"."""
    return tomlkit.item(_plain(value)).as_string()


def _plain(value: Any) -> Any:
    if value is None:
        return "none"
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _comment(text: str) -> list[str]:
    words, lines = " ".join(text.split()).split(" "), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 108:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return ["# " + line for line in lines if line]


def _bounds(section_class: type[BaseModel], name: str) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    found = [
        f"{sign} {getattr(mark, attribute)}"
        for mark in section_class.model_fields[name].metadata
        for attribute, sign in signs.items()
        if hasattr(mark, attribute)
    ]
    return ", ".join(found)


def _choices(section_class: type[BaseModel], name: str) -> str:
    annotation = section_class.model_fields[name].annotation
    options = [option for option in get_args(annotation) if isinstance(option, str)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        options = [str(member.value) for member in annotation]
    return " | ".join(options)


def _render(config: RunConfig, *, commented: bool) -> str:
    lines: list[str] = []
    lines += _render_fields(config, TOP_FIELDS, commented=commented)
    for section in SECTIONS:
        value = getattr(config, section)
        if lines[-1]:
            lines.append("")
        if commented:
            lines += _comment(first_line(type(value)))
        lines.append(f"[{section}]")
        if section in NAMED_SECTIONS:
            if commented:
                lines.append("# " + " | ".join(_selectable(section)))
            lines.append(f"name = {toml_value(config.name_of(section))}")
        lines += _render_section(value, section, commented=commented)
    for role, engine in config.role_engines.items():
        lines += ["", f"[role_engines.{role}]", 'name = "openai"']
        lines += _render_section(engine, f"role_engines.{role}", commented=commented)
    if commented:
        lines += ["", *_comment("A role that is left to an engine needs to know which, for example:")]
        lines += ["# [role_engines.validator]", '# base_url = "http://127.0.0.1:8000/v1"', '# model = "NAME"']
    return "\n".join(lines).rstrip() + "\n"


def _render_section(value: BaseModel, path: str, *, commented: bool) -> list[str]:
    fields = _fields(type(value))
    lines = _render_fields(value, [name for name in fields if _nested(type(value), name) is None], commented=commented)
    for name in fields:
        if _nested(type(value), name) is not None:
            lines += ["", f"[{path}.{name}]"]
            lines += _render_section(getattr(value, name), f"{path}.{name}", commented=commented)
    return lines


def _render_fields(value: BaseModel, names: Sequence[str], *, commented: bool) -> list[str]:
    lines = []
    for name in names:
        if commented:
            lines += _comment(_meaning(type(value), name))
        lines.append(f"{name} = {toml_value(getattr(value, name))}")
    return lines


def _meaning(section_class: type[BaseModel], name: str) -> str:
    text = section_class.model_fields[name].description or ""
    extra = [part for part in (_choices(section_class, name), _bounds(section_class, name)) if part]
    return f"{text} ({'; '.join(extra)})" if extra else text


def _reference_section(section_class: type[BaseModel], section: str) -> list[str]:
    return [first_line(section_class), "", *_reference_table(section_class, section + ".")]


def _reference_table(section_class: type[BaseModel], prefix: str, only: Sequence[str] = ()) -> list[str]:
    rows = list(_reference_rows(section_class, prefix, only))
    return ["| key | default | meaning |", "| --- | --- | --- |", *rows, ""] if rows else ["No settings.", ""]


def _reference_rows(section_class: type[BaseModel], prefix: str, only: Sequence[str]) -> Iterator[str]:
    for name in _fields(section_class):
        spec, nested = section_class.model_fields[name], _nested(section_class, name)
        if only and name not in only:
            continue
        if nested is not None:
            yield from _reference_rows(nested, f"{prefix}{name}.", ())
            continue
        default = "required" if spec.is_required() else toml_value(spec.get_default(call_default_factory=True))
        meaning = " ".join(_meaning(section_class, name).split()).replace("|", "\\|")
        yield f"| `{prefix}{name}` | `{default}` | {meaning} |"
