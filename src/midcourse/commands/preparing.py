"""The commands that come before a run: a settings file, the names it may hold, data files, the machine."""

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from midcourse import config as settings
from midcourse.commands.console import errors, output, print_json, write_new
from midcourse.commands.loading import load_settings
from midcourse.commands.options import Json, Overrides, Plugins
from midcourse.errors import ConfigError
from midcourse.nano.settings import DEMO_UPDATES, world_settings


def init(
    method: Annotated[
        str | None, typer.Option(help="Method that the file is for.", show_default=settings.DEFAULT_METHOD)
    ] = None,
    file: Annotated[Path | None, typer.Option("--output", help="File to write; standard output if absent.")] = None,
    reference: Annotated[
        bool, typer.Option(help="Print the reference of all settings (docs/configuration.md).")
    ] = False,
    nano: Annotated[
        bool, typer.Option("--nano", help="Take the demo's values, fitted to the built-in policy.")
    ] = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
) -> None:
    """Write a settings file with every setting explained.

    Values are the defaults: those of learning are for a model of your own, which
    --set names together with its environment; --nano takes the demo's.

    Examples:

      midcourse init --nano > run.toml
      midcourse init --method grpo --output grpo.toml
      midcourse init --set environment.name=code --set policy.path=FOLDER --set policy.chat=chatml
      midcourse init --plugin my_tools --set environment.name=my_tools
    """
    chosen = settings.DEFAULT_METHOD if method is None else method
    if reference:
        if nano or method is not None or overrides:
            raise ConfigError("--reference is of every setting: expected no --method and no --nano with it, nor --set")
        _import_plugins(plugins)
        text = settings.reference_markdown()
    elif nano:
        if overrides or plugins:
            raise ConfigError(
                "--nano takes the demo's values: expected no --set with it, nor --plugin; `midcourse train` takes --set"
            )
        values = world_settings(chosen)(chosen, seed=0, updates=DEMO_UPDATES, folder=Path())
        text = settings.commented_nano_toml({**values, "output": ""})
    else:
        named = [f"plugins={settings.toml_value(plugins)}"] if plugins else []
        text = settings.commented_toml(chosen, [*named, *(overrides or [])])
    if file is None:
        sys.stdout.write(text)
        return
    write_new(file, text)
    errors.print(f"wrote {file}; next: midcourse train {file}", markup=False)


def list_names(plugins: Plugins = None, as_json: Json = False) -> None:
    """List methods, engines and environments that a settings file can name.

    Examples:

      midcourse list --json
      midcourse list --plugin my_tools
    """
    _import_plugins(plugins)
    found = {
        section: {name: settings.first_line(registry[name]) for name in registry.names()}
        for section, (registry, _) in settings.NAMED_SECTIONS.items()
    }
    if as_json:
        print_json(found)
        return
    for section, names in found.items():
        output.print(Text(section, style="bold"))
        for name, line in names.items():
            output.print(f"  {name:<14} {line}", markup=False)


def _import_plugins(names: list[str] | None) -> None:
    settings.register_all()  # first, so that a name that is taken is the plugin's mistake
    settings.load_plugins(names or [], folder=Path().absolute(), key="--plugin")


def data(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder to look into, with those below it; absent: list what there is.")
    ] = None,
    datasets: Annotated[
        list[str] | None, typer.Option("--dataset", metavar="NAME", help="One dataset alone; may be given many times.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the data files that environments read, or say which of them a folder has, and in which version.

    None ships with midcourse, and nothing is downloaded: the list says which
    project publishes each file, under what licence, and the settings that use it.

    Given a folder, each known file is one of

      tested      its sha256 is that of the version that was tested
      unknown     it has the name but another sha256: read all the same, if it
                  has the same form; `sha256` in the settings holds a run to it
      unreadable  it cannot be opened
      absent      neither the name nor the content is there

    Examples:

      midcourse data
      midcourse data --dataset toolqa
      midcourse data ~/data --json
    """
    from midcourse.commands.data import chosen_datasets, data_json, data_lines

    chosen = chosen_datasets(datasets or [])
    if as_json:
        print_json(data_json(folder, chosen))
        return
    for line in data_lines(folder, chosen):
        output.print(line, soft_wrap=True)


def doctor(
    config: Annotated[
        Path | None, typer.Argument(help="Settings of a run: is what they name there, does their server answer?")
    ] = None,
    overrides: Overrides = None,
    vllm_python: Annotated[
        str | None,
        typer.Option(
            "--vllm-python",
            metavar="PATH",
            help="Interpreter of an environment of its own for vLLM (bin/python in it, later engine.server.python): "
            "does it have vLLM, and is that for a CPU or a GPU?",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--output", help="Folder that runs would be written to.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Check versions, cores, threads, memory, disk, torch, the built-in policy. Exit 1 if a run cannot work.

    Given settings, also what they name: an interpreter with vLLM, a running vLLM
    server and how it was started, chat templates.

    Examples:

      midcourse doctor
      midcourse doctor run.toml
      midcourse doctor --vllm-python vllm-env/bin/python
    """
    from midcourse.commands.doctor import doctor_json, finding_text, is_healthy
    from midcourse.doctor import examine, examine_settings, examine_vllm

    if config is None and overrides:
        raise ConfigError("--set changes settings of a file: expected `midcourse doctor FILE --set KEY=VALUE`")
    chosen = None if config is None else load_settings(config, overrides)
    found = [examine(folder)]
    found += [] if vllm_python is None else [iter([examine_vllm(vllm_python)])]
    found += [] if chosen is None else [examine_settings(chosen)]
    findings = []
    for finding in chain.from_iterable(found):
        findings.append(finding)
        if not as_json:
            output.print(finding_text(finding))
    if as_json:
        print_json(doctor_json(findings))
    raise typer.Exit(0 if is_healthy(findings) else 1)
