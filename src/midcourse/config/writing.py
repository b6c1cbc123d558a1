"""Settings -> TOML, with comments or without, and the reference of all settings (docs/configuration.md)."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import tomlkit
from pydantic import BaseModel

from midcourse.config.reading import build_config, default_config
from midcourse.config.schema import (
    DEFAULT_METHOD,
    NAMED_SECTIONS,
    PLAIN_SECTIONS,
    SECTIONS,
    TEXT_ENGINES,
    TOP_FIELDS,
    RunConfig,
    nested_class,
    nested_tables,
    register_all,
    section_fields,
)
from midcourse.interventions.judge import JudgeConfig
from midcourse.interventions.roles import RolesConfig


def resolved_toml(config: RunConfig) -> str:
    """Return TOML that spells every setting out; loading it gives an equal config."""
    return _render(config, commented=False)


def commented_toml(method: str = DEFAULT_METHOD, overrides: Sequence[str] = ()) -> str:
    """Return TOML with every setting at its default, or as overridden, under a comment that says what it means.

    Raises:
        ConfigError: as `load_config`, for overrides.
    """
    config = default_config(method, overrides)
    name = config.name_of("method")
    same = (
        "but for what --set gave" if overrides else f'so a file that holds only\n# [method] name = "{name}" is the same'
    )
    header = f"# Settings of a {name} run. Every value below is the default, {same}.\n"
    return header + "# Run it with: midcourse train THIS_FILE\n\n" + _render(config, commented=True)


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


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it, on one line; None becomes the text "none"."""
    plain = _plain(value)
    if isinstance(plain, dict):
        table = tomlkit.inline_table()
        table.update(plain)
        return table.as_string()
    return tomlkit.item(plain).as_string()


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
    if commented and (role := _role_of(config.method)):
        lines += ["", *_comment("A role that is played by `engine` needs a server, for example:")]
        lines += [f"# [role_engines.{role}]", '# base_url = "http://127.0.0.1:8000/v1"', '# model = "NAME"']
    return "\n".join(lines).rstrip() + "\n"


def _role_of(method: BaseModel) -> str | None:
    """Return a role of the method that a server may play; None where it has none."""
    roles = {RolesConfig: "validator", JudgeConfig: "judge"}
    tables = [table for _, table in nested_tables(method, "method")]
    found = (role for table in tables for kind, role in roles.items() if isinstance(table, kind))
    return next(found, None)


def _render_section(value: BaseModel, path: str, *, commented: bool) -> list[str]:
    fields = section_fields(type(value))
    tables = [name for name in fields if isinstance(getattr(value, name), BaseModel)]
    absent = [name for name in fields if commented and _is_absent_table(value, name)]
    lines = _render_fields(value, [name for name in fields if name not in {*tables, *absent}], commented=commented)
    for name in absent:
        lines += ["", *_comment(_meaning(type(value), name)), *_commented_out(type(value), name, f"{path}.{name}")]
    for name in tables:
        lines += ["", f"[{path}.{name}]"]
        lines += _render_section(getattr(value, name), f"{path}.{name}", commented=commented)
    return lines


def _is_absent_table(section: BaseModel, name: str) -> bool:
    """Return whether a field is a table that is not there, and that a file need not mention to leave it out."""
    spec = type(section).model_fields[name]
    return nested_class(type(section), name) is not None and getattr(section, name) is None and spec.default is None


def _commented_out(section_class: type[BaseModel], name: str, path: str) -> list[str]:
    """Return a table at its defaults, behind `# `: without that mark it is in force, and its comments still are some.

    What has no default is written as the field's example.
    """
    table_class = nested_class(section_class, name)
    assert table_class is not None
    fields = table_class.model_fields.items()
    required = {key: spec.examples[0] for key, spec in fields if spec.is_required() and spec.examples}
    lines = [f"[{path}]", *_render_section(table_class(**required), path, commented=True)]
    return [f"# {line}".rstrip() for line in lines]


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
    for name in section_fields(section_class):
        spec, nested = section_class.model_fields[name], nested_class(section_class, name)
        if only and name not in only:
            continue
        if nested is None or spec.default is None:
            default = "required" if spec.is_required() else toml_value(spec.get_default(call_default_factory=True))
            meaning = " ".join(_meaning(section_class, name).split()).replace("|", "\\|")
            yield f"| `{prefix}{name}` | `{default}` | {meaning} |"
        if nested is not None:
            yield from _reference_rows(nested, f"{prefix}{name}.", ())
