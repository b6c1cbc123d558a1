"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

ConfigArgument = Annotated[Path, typer.Argument(help="TOML file, or a run folder (its config.toml is taken).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be given many times.")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="MODULE", help="Import a module of your own first, from here or PYTHONPATH; as `plugins`."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Standard output is JSON alone; progress goes to standard error.")]
