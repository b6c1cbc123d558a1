"""TOML and `--set a.b=c` -> checked settings. What is wrong is an error with key, value, origin and what was meant."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from midcourse.config.plugins import load_plugins
from midcourse.config.schema import (
    DEFAULT_METHOD,
    NAMED_SECTIONS,
    TEXT_ENGINES,
    TOP_FIELDS,
    RunConfig,
    known_keys,
    literal_options,
    nested_class,
    nested_tables,
    register_all,
    section_classes,
    section_keys,
)
from midcourse.environments.base import LimitsTurns
from midcourse.errors import ConfigError, SettingError
from midcourse.interventions.judge import JudgeConfig
from midcourse.interventions.roles import RolesConfig
from midcourse.rollout.limits import RolloutConfig
from midcourse.training.policy import PolicyConfig

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

TOO_LONG = "an integer has too many digits, expected one of at most 64 bits"


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a value came from, for messages."""

    file: str | None
    overridden: frozenset[str]
    file_names: Mapping[str, Any]
    """Section -> the name that the file alone gives it, for the sections whose name was overridden."""

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
    file_names = {} if path is None else {section: _name_in(values, section) for section in NAMED_SECTIONS}
    keys = frozenset([_apply(values, override) for override in overrides])
    renamed = {section: name for section, name in file_names.items() if f"{section}.name" in keys}
    return build_config(values, _Origin(None if path is None else str(path), keys, renamed))


def default_config(method: str = DEFAULT_METHOD, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the settings that a file with only this method's name gives, overrides applied."""
    return load_config(None, [f"method.name={json.dumps(method)}", *overrides])


def build_config(values: Mapping[str, Any], origin: _Origin | None = None) -> RunConfig:
    """Return checked settings from nested plain values. Raises as `load_config`."""
    origin = origin or _Origin("settings", frozenset(), {})
    register_all()
    _reject_foreign_values(values, origin)
    values = {**values, **_plugins(values, origin)}
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
    _check_times(sections["rollout"], sections["environment"], origin)
    role_engines = _role_engines(values.get("role_engines", {}), sections["method"], origin)
    top = {key: values[key] for key in TOP_FIELDS if key in values}
    try:
        return RunConfig(**_strict_top(top, origin), **sections, role_engines=role_engines)
    except ValidationError as error:
        raise _explain(error, top, "", origin) from error


def _plugins(values: Mapping[str, Any], origin: _Origin) -> Mapping[str, Any]:
    """Import the plugins that the settings name; return the settings that find them again from any folder."""
    names, given = values.get("plugins", []), values.get("plugins_folder", "")
    if not isinstance(names, list | tuple):
        raise ConfigError(f'{origin.of("plugins")} = {names!r}: expected a list of modules, such as ["my_tools"]')
    if not isinstance(given, str):
        raise ConfigError(f"{origin.of('plugins_folder')} = {given!r}: expected text")
    if not names:
        return {}
    start = Path() if origin.file is None or "plugins_folder" in origin.overridden else Path(origin.file).parent
    folder = (start / given).absolute()
    load_plugins(names, folder=folder, key=origin.of("plugins"))
    return {"plugins": names, "plugins_folder": str(folder)}


def _check_profile(policy: PolicyConfig, environment: BaseModel) -> None:
    profile = environment.model_dump().get("profile", "nano")
    if policy.chat == "compact" and profile != "nano":
        profiles = get_args(type(environment).model_fields["profile"].annotation)
        nano = 'set environment.profile = "nano", or ' if "nano" in profiles else "choose "
        raise ConfigError(
            f'environment.profile = {profile!r}: policy.chat "compact" can express the nano profile alone; '
            f'{nano}another policy.path with policy.chat = "chatml" or "template"'
        )


def _check_times(rollout: RolloutConfig, environment: BaseModel, origin: _Origin) -> None:
    """Check that what a turn runs is ended before the environment is given up, which would be a failed rollout."""
    limits = environment.turn_limits if isinstance(environment, LimitsTurns) else {}
    for name, seconds in limits.items():
        if seconds >= rollout.environment_timeout_seconds:
            raise ConfigError(
                f"{origin.of('environment.' + name)} = {seconds}: expected less than "
                f"rollout.environment_timeout_seconds = {rollout.environment_timeout_seconds}, so that what runs for "
                "too long is ended and told the policy, and is no failed rollout"
            )


def _role_engines(given: Any, method: BaseModel, origin: _Origin) -> Mapping[str, BaseModel]:
    """Return role -> engine settings, exactly for the roles that the method leaves to an engine."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{origin.of('role_engines')} = {given!r}: expected tables such as [role_engines.validator]")
    asked = {
        role
        for _, cast in nested_tables(method, "method")
        if isinstance(cast, RolesConfig | JudgeConfig)
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
        raise ConfigError(
            f"the {missing[0]} is left to an engine: [role_engines.{missing[0]}] must say which, for "
            'example base_url = "http://127.0.0.1:8000/v1" and model = "NAME"'
        )
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: is not TOML: {error}") from error
    except ValueError as error:  # Python's own, of decimal numbers
        raise SettingError(f"{path}: is not TOML: {TOO_LONG}") from error


def _name_in(values: Mapping[str, Any], section: str) -> Any:
    table = values.get(section)
    default = NAMED_SECTIONS[section][1]
    return table.get("name", default) if isinstance(table, Mapping) else default


def _apply(values: dict[str, Any], override: str) -> str:
    key, separator, text = override.partition("=")
    key, text = key.strip(), text.strip()
    if not separator or not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", key):
        raise ConfigError(f"--set {override!r}: expected section.key=value, such as training.updates=50")
    table = values
    *parents, last = key.split(".")
    for parent in parents:
        if table.get(parent) == "none":  # a table that the file leaves out, and that begins here
            table[parent] = {}
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
    except ValueError as error:  # Python's own, of decimal numbers
        raise ConfigError(f"--set {key}: is not a TOML value: {TOO_LONG}") from error
    raise ConfigError(f"--set {key}: {text!r} is not a TOML value; quote text that holds other characters than words")


def _chosen(values: Mapping[str, Any], section: str, origin: _Origin) -> str:
    registry, default = NAMED_SECTIONS[section]
    name = values.get(section, {}).get("name", default)
    if not isinstance(name, str):
        raise SettingError(
            f"{origin.of(section + '.name')}: got {name!r}, expected one of {', '.join(registry.names())}"
        )
    if section == "engine" and name in TEXT_ENGINES:
        raise SettingError(
            f"{origin.of('engine.name')}: {name!r} gives text alone, so it can play roles ([role_engines.validator]) "
            "and not the policy"
        )
    try:
        _ = registry[name]
    except ConfigError as error:
        raise SettingError(f"{origin.of(section + '.name')}: {error}") from error
    return name


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
    expected, shown = "", ""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _reject_foreign_values(item, origin, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for item in value:
            _reject_foreign_values(item, origin, key)
    elif isinstance(value, date | time):  # a datetime is a date
        expected, shown = "text in quotes, or a number; no setting is a date or time", str(value)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        expected = "an integer of at most 64 bits"
        shown = str(value) if value.bit_length() < 256 else f"an integer of {value.bit_length()} bits"
    elif isinstance(value, str) and "\0" in value:
        expected, shown = "text without NUL characters", repr(value)
    if expected:
        raise SettingError(f"{origin.of(key)} = {shown}: expected {expected}")


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
            if key in set(section_keys(registry[name], section + "."))
        ]
        shown = repr(value) if not isinstance(value, Mapping) else "a table"
        if users:
            section = key.partition(".")[0]
            chosen = next(
                name
                for name in NAMED_SECTIONS[section][0].names()
                if NAMED_SECTIONS[section][0][name] is classes[section]
            )
            was = origin.file_names.get(section, chosen)
            if was != chosen and key not in origin.overridden:
                raise SettingError(
                    f"{origin.of(key)} = {shown}: the file's table [{section}] is for {was!r}, and --set "
                    f"{section}.name={chosen} leaves its settings in place; replace the table in the file: "
                    f"`midcourse init --set {section}.name={chosen}` shows the other's"
                )
            raise SettingError(
                f"{origin.of(key)} = {shown}: not used by {section} {chosen!r} ({', '.join(users)} uses it){hint}"
            )
        raise SettingError(f"{origin.of(key)} = {shown}: unknown setting{hint or '; sections: ' + ', '.join(classes)}")


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
        nested = nested_class(section_class, key)
        if nested is not None and isinstance(value, Mapping):
            plain[key] = _without_none_words(nested, value)
        else:
            plain[key] = None if value == "none" and _allows_none(section_class, key) else value
    return plain


def _check_literals(section_class: type[BaseModel], given: Mapping[str, Any], section: str, origin: _Origin) -> None:
    """Refuse `true` and `1.0` where a setting is 0 or 1: strict checking lets pass what is equal to one of them."""
    for name, value in given.items():
        key, nested = f"{section}.{name}", nested_class(section_class, name)
        if nested is not None and isinstance(value, Mapping):
            _check_literals(nested, value, key, origin)
        options = literal_options(section_class.model_fields[name].annotation)
        numbers = [option for option in options if isinstance(option, int)]
        if any(value == number and type(value) is not type(number) for number in numbers):
            raise SettingError(f"{origin.of(key)} = {value!r}: expected {' or '.join(map(repr, options))}")


def _validate(section_class: type[BaseModel], given: Mapping[str, Any], section: str, origin: _Origin) -> BaseModel:
    _check_literals(section_class, given, section, origin)
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
            raise SettingError(f"{origin.of(key)} = {top[key]!r}: expected {expected}")
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
    # What a check says in its own words needs no list of settings.
    kind = ConfigError if all(detail["type"] == "value_error" for detail in error.errors()) else SettingError
    return kind("\n".join(lines))
