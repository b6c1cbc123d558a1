"""Which settings a resumed run must share with the run that it goes on with."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from pydantic import BaseModel

from midcourse.config.schema import NAMED_SECTIONS, SECTIONS, TOP_FIELDS, RunConfig, section_fields
from midcourse.config.writing import toml_value

FREE_ON_RESUME = (
    # how long it goes on, and what is written and scored on the way
    "output",
    # where code of one's own is found; the names that are taken from it are kept
    "plugins",
    "plugins_folder",
    "recording.*",
    "evaluation.*",
    "training.updates",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    # where it runs and what fits there: the same numbers up to rounding
    "policy.device",
    "policy.threads",
    "policy.gradient_checkpointing",
    "policy.logprob_chunk_tokens",
    "training.micro_batch_tokens",
    "training.process_timeout_seconds",
    "training.idle_timeout_seconds",
    "engine.max_batch_rows",
    "engine.prefix_cache_tokens",
    "engine.barrier_timeout_seconds",
    "engine.trainer_pass.*",
    "engine.server",
    "engine.server.python",
    "engine.server.port",
    "engine.server.environment",
    "engine.server.weights_folder",
    "engine.server.*_seconds",
    "engine.server.max_restarts",
    "engine.server.restart_minutes",
    "engine.running",
    "engine.running.*",
    "engine.running_judge",
    "engine.running_judge.*",
    "engine.request_timeout_seconds",
    "engine.max_concurrency",
    "engine.max_retries",
    "engine.backoff_seconds",
    "engine.probe_*",
    # where a role's server is and how it is asked
    "role_engines.*.base_url",
    "role_engines.*.api_key_variable",
    "role_engines.*.timeout_seconds",
    "role_engines.*.max_retries",
    "role_engines.*.backoff_seconds",
    "role_engines.*.max_backoff_seconds",
    "role_engines.*.max_concurrency",
)
"""Keys (patterns of them) that may change when a run is resumed; every other setting decides what comes out of it."""


def kept_settings(config: RunConfig) -> dict[str, str]:
    """Return key -> value, as TOML writes it, of every setting that a resumed run must share."""
    return {
        key: value
        for key, value in _flat_settings(config)
        if not any(fnmatchcase(key, pattern) for pattern in FREE_ON_RESUME)
    }


def _flat_settings(config: RunConfig) -> Iterator[tuple[str, str]]:
    for name in TOP_FIELDS:
        yield name, toml_value(getattr(config, name))
    for section in SECTIONS:
        if section in NAMED_SECTIONS:
            yield f"{section}.name", toml_value(config.name_of(section))
        yield from _flat_section(getattr(config, section), f"{section}.")
    for role, engine in config.role_engines.items():
        yield from _flat_section(engine, f"role_engines.{role}.")


def _flat_section(section: BaseModel, prefix: str) -> Iterator[tuple[str, str]]:
    for name in section_fields(type(section)):
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _flat_section(value, f"{prefix}{name}.")
        else:
            yield prefix + name, toml_value(value)
