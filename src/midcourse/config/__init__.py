"""A run's settings: one TOML file plus `--set a.b=c`, strict, each section owned by its stage.

`[environment]`, `[engine]` and `[method]` carry a `name` that picks the section's class from its registry; the other
sections have one class each. A key that no section uses, or that the chosen method does not use, is an error that
names the nearest right key: no setting is silently ignored. Nothing here needs torch.

schema.py has the sections and their keys, reading.py takes TOML in, plugins.py imports the modules that it names,
writing.py gives TOML out, continuing.py says what a resumed run may change.
"""

from midcourse.config.continuing import FREE_ON_RESUME, kept_settings
from midcourse.config.plugins import load_plugins
from midcourse.config.reading import FOREIGN_NAMES, build_config, default_config, load_config, nearest_key
from midcourse.config.schema import (
    DEFAULT_ENGINE,
    DEFAULT_ENVIRONMENT,
    DEFAULT_METHOD,
    NAMED_SECTIONS,
    PLAIN_SECTIONS,
    ROLES,
    SECTIONS,
    TEXT_ENGINES,
    TOP_FIELDS,
    RunConfig,
    known_keys,
    register_all,
    section_classes,
)
from midcourse.config.writing import (
    commented_nano_toml,
    commented_toml,
    first_line,
    reference_markdown,
    resolved_toml,
    toml_value,
)

__all__ = [
    "DEFAULT_ENGINE",
    "DEFAULT_ENVIRONMENT",
    "DEFAULT_METHOD",
    "FOREIGN_NAMES",
    "FREE_ON_RESUME",
    "NAMED_SECTIONS",
    "PLAIN_SECTIONS",
    "ROLES",
    "SECTIONS",
    "TEXT_ENGINES",
    "TOP_FIELDS",
    "RunConfig",
    "build_config",
    "commented_nano_toml",
    "commented_toml",
    "default_config",
    "first_line",
    "kept_settings",
    "known_keys",
    "load_config",
    "load_plugins",
    "nearest_key",
    "reference_markdown",
    "register_all",
    "resolved_toml",
    "section_classes",
    "toml_value",
]
