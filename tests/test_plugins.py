"""Modules of a user's own: found, imported before names are looked up, and found again from the run folder."""

import json
import os
import subprocess
import sys
import tomllib

import pytest

from midcourse.cli import main
from midcourse.config import (
    NAMED_SECTIONS,
    kept_settings,
    load_config,
    load_plugins,
    reference_markdown,
    resolved_toml,
)
from midcourse.environments.base import ENVIRONMENTS
from midcourse.errors import ConfigError

pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")

PLUGIN = '''
from pydantic import BaseModel, ConfigDict

from midcourse.environments.base import ENVIRONMENTS


@ENVIRONMENTS.register("own_world")
class OwnWorldConfig(BaseModel):
    """A world of one's own."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    size: int = 3
    """How large it is."""
'''
RUN = 'plugins = ["own_world_plugin"]\n[environment]\nname = "own_world"\n'


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "experiment"
    place.mkdir()
    (place / "own_world_plugin.py").write_text(PLUGIN, encoding="utf-8")
    (place / "run.toml").write_text(RUN, encoding="utf-8")
    return place


def test_a_plugin_beside_the_settings_file_registers_before_names_are_looked_up(folder):
    config = load_config(folder / "run.toml", ["environment.size=5"])
    assert config.name_of("environment") == "own_world"
    assert config.environment.model_dump() == {"size": 5}
    assert (config.plugins, config.plugins_folder) == (("own_world_plugin",), str(folder))


def test_the_resolved_settings_find_the_plugin_from_any_folder(folder, tmp_path):
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    config = load_config(folder / "run.toml")
    (run / "config.toml").write_text(resolved_toml(config), encoding="utf-8")
    code = (
        f"from midcourse.config import load_config; print(load_config({str(run / 'config.toml')!r}).environment.size)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "3\n"
    assert load_config(run / "config.toml") == config


@pytest.mark.parametrize("as_setting", [True, False])
def test_another_folder_is_named_from_the_settings_file_or_the_command(as_setting, folder, tmp_path, monkeypatch):
    (tmp_path / "settings").mkdir()
    path = tmp_path / "settings" / "run.toml"
    path.write_text(('plugins_folder = "../experiment"\n' if as_setting else "") + RUN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = load_config(path, [] if as_setting else ["plugins_folder=experiment"])
    assert os.path.samefile(config.plugins_folder, folder)


def test_a_resumed_run_may_find_its_plugins_elsewhere(folder):
    config = load_config(folder / "run.toml")
    moved = config.model_copy(update={"plugins_folder": "/elsewhere", "plugins": ("own_world_plugin", "json")})
    assert kept_settings(moved) == kept_settings(config)
    assert 'environment.name = "own_world"' in [f"{key} = {value}" for key, value in kept_settings(config).items()]


def test_a_module_on_pythonpath_is_found(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    load_plugins(["own_world_plugin"], folder=tmp_path)
    assert "own_world" in ENVIRONMENTS


def test_a_module_of_a_package_is_named_with_dots(folder, tmp_path):
    package = tmp_path / "lab"
    (package / "worlds").mkdir(parents=True)
    (package / "worlds" / "__init__.py").touch()
    (folder / "own_world_plugin.py").rename(package / "worlds" / "large.py")
    load_plugins(["worlds.large"], folder=package)
    assert "own_world" in ENVIRONMENTS


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ('["own_wrld_plugin"]', "run.toml: plugins: there is no module 'own_wrld_plugin' in {folder}, nor on "),
        ('["own_wrld_plugin"]', "did you mean 'own_world_plugin'?"),
        ('["own_world_plugin.maps"]', "there is no module 'own_world_plugin.maps'"),
        ('["own_world_plugin.py/"]', "run.toml: plugins = 'own_world_plugin.py/': expected a module as `import`"),
        ('"own_world_plugin"', 'expected a list of modules, such as ["my_tools"]'),
        ("[3]", "run.toml: plugins = 3: expected a module as `import` takes it"),
        ('["own_world_plugin"]\nplugins_folder = "gone"', "gone (there is no such folder), nor on PYTHONPATH"),
        ('["own_world_plugin"]\nplugins_folder = 3', "run.toml: plugins_folder = 3: expected text"),
    ],
)
def test_a_plugin_that_cannot_be_found_is_a_clear_error(plugins, expected, folder):
    (folder / "run.toml").write_text(f"plugins = {plugins}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load_config(folder / "run.toml")
    assert expected.format(folder=folder) in str(raised.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1 / 0", "{file}, line 16: 1 / 0: ZeroDivisionError: division by zero"),
        ("import no_such_dependency", "{file}, line 16: import no_such_dependency: ModuleNotFoundError: No module"),
        ("int('x' * 3)", "ValueError: invalid literal"),
        ("import json; json.loads('{{')", "{file}, line 16: import json; json.loads('{{')"),  # not json's own line
        ("def broken(:", "{file}, line 16: SyntaxError: "),
        ("raise SystemExit(0)", "{file}, line 16: raise SystemExit(0): SystemExit: 0"),
        ("raise GeneratorExit", "{file}, line 16: raise GeneratorExit: GeneratorExit"),
        ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
        ("raise type('Own', (BaseException,), {{}})", "Own"),
        ("raise type('Mute', (Exception,), {{'__str__': lambda self: 1 / 0}})", "str() failed"),
        ("ENVIRONMENTS.register('five')(5)", "TypeError: environment 'five': expected a class, got 5"),
    ],
)
def test_a_plugin_that_fails_is_told_with_its_own_line_and_can_be_mended(line, expected, folder):
    file = folder / "own_world_plugin.py"
    broken = PLUGIN + "\n" + line.replace("{{", "{").replace("}}", "}") + "\n"
    file.write_text(broken, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load_config(folder / "run.toml")
    assert "plugins = 'own_world_plugin': failed while it was imported: " in str(raised.value)
    assert expected.replace("{{", "{").replace("{file}", str(file)) in str(raised.value)
    file.write_text(PLUGIN, encoding="utf-8")
    assert load_config(folder / "run.toml").environment.model_dump() == {"size": 3}


def test_a_name_that_is_taken_is_an_error_that_says_by_whom(folder):
    (folder / "own_world_plugin.py").write_text(PLUGIN.replace('"own_world"', '"navigation"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="'own_world_plugin': environment 'navigation' is registered twice: "):
        load_config(folder / "run.toml")
    assert ENVIRONMENTS["navigation"].__module__ == "midcourse.environments.navigation.environment"


def test_what_was_registered_before_a_name_that_is_taken_is_taken_back(folder):
    taken = PLUGIN.partition("@")[2].replace('"own_world"', '"navigation"')
    (folder / "own_world_plugin.py").write_text(f"{PLUGIN}\n\n@{taken}", encoding="utf-8")
    with pytest.raises(ConfigError, match="environment 'navigation' is registered twice: "):
        load_config(folder / "run.toml")
    assert "own_world" not in ENVIRONMENTS.names()


def test_two_plugins_of_one_name_are_an_error(folder):
    (folder / "second_plugin.py").write_text(PLUGIN, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'second_plugin': .*own_world_plugin has that name already"):
        load_plugins(["own_world_plugin", "second_plugin"], folder=folder)


def test_a_file_that_a_library_hides_is_an_error_and_hides_none_itself(folder):
    (folder / "pyclbr.py").write_text(PLUGIN, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"experiment.pyclbr\.py is not what `import pyclbr` takes, which is .*;"):
        load_plugins(["pyclbr"], folder=folder)


def test_a_plugin_is_imported_once(folder):
    first = load_config(folder / "run.toml")
    assert type(load_config(folder / "run.toml").environment) is type(first.environment)


def test_without_plugins_nothing_of_them_is_set(tmp_path):
    config = load_config(None, [f"output={tmp_path.name}"])
    assert (config.plugins, config.plugins_folder) == ((), "")


def output_of(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_the_commands_that_list_names_and_settings_know_plugins(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    before = reference_markdown()
    status, out, _ = output_of(capsys, "list", "--plugin", "own_world_plugin", "--json")
    assert (status, json.loads(out)["environment"]["own_world"]) == (0, "A world of one's own.")
    status, out, _ = output_of(capsys, "init", "--reference", "--plugin", "own_world_plugin")
    assert status == 0
    assert "| `environment.size` | `3` | How large it is. |" in out
    assert "environment.size" not in before
    given = ["--plugin", "own_world_plugin", "--set", "environment.name=own_world"]
    status, out, _ = output_of(capsys, "init", *given)
    assert status == 0
    (tmp_path / "written.toml").write_text(out, encoding="utf-8")
    assert tomllib.loads(out)["plugins"] == ["own_world_plugin"]
    assert load_config(tmp_path / "written.toml").name_of("environment") == "own_world"


def test_a_wrong_plugin_of_a_command_is_one_line_and_what_to_do(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, _, err = output_of(capsys, "list", "--plugin", "nothing_here")
    assert status == 2
    assert "--plugin: there is no module 'nothing_here'" in " ".join(err.split())
    assert output_of(capsys, "init", "--nano", "--plugin", "nothing_here")[0] == 2


def test_every_registry_that_settings_name_from_can_forget_a_module():
    for registry, _ in NAMED_SECTIONS.values():
        before = registry.names()
        registry.forget("no.such.module")
        assert registry.names() == before
