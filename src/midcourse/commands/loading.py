"""What a command is pointed at, a settings file or a run folder -> settings, and how its tokens are read."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from midcourse import config as settings
from midcourse.errors import ConfigError


def load_settings(path: Path, overrides: list[str] | None, folder: Path | None = None) -> settings.RunConfig:
    """Return the settings of a file or a run folder. The run folder is its own output unless another is named."""
    given = overrides or []
    if folder is not None:
        if any(override.partition("=")[0].strip() == "output" for override in given):
            raise ConfigError(f"--set output and --output {folder} both name the run folder: expected one of them")
        given = [*given, f"output={settings.toml_value(str(folder))}"]
    if os.path.isdir(path):  # unlike Path.is_dir it does not raise for a name that is too long or not to be looked up
        return settings.load_config(path / "config.toml", [f"output={settings.toml_value(str(path))}", *given])
    return settings.load_config(path, given)


def load_for_checkpoint(run: Path, overrides: list[str] | None) -> settings.RunConfig:
    """Return the settings of a checkpoint's run. The checkpoint is the policy, so no other can be named."""
    for override in overrides or []:
        if override.partition("=")[0].strip() == "policy.path":
            raise ConfigError(f"--set {override}: not used, because the checkpoint's weights are taken")
    return settings.load_config(run / "config.toml", overrides or [])


def run_decoder(run: Path) -> Callable[[Sequence[int]], str] | None:
    """Return how a run's tokens are read; None where the settings are no longer readable."""
    from midcourse.assembly import token_decoder

    try:
        return token_decoder(settings.load_config(run / "config.toml").policy)
    except ConfigError:
        return None
