"""What may be imported without torch."""

import subprocess
import sys

import midcourse


def modules_after(statement: str) -> set[str]:
    command = f"import sys; {statement}; print(' '.join(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_settings_and_methods_are_read_without_torch():
    loaded = modules_after("import midcourse, midcourse.config; midcourse.config.register_all()")
    assert "midcourse" in loaded
    assert not loaded & {"torch", "transformers", "matplotlib", "pyarrow", "pandas"}


def test_the_command_line_starts_without_torch():
    assert not modules_after("import midcourse.cli") & {"torch", "transformers", "matplotlib"}


def test_the_version_is_a_plain_release():
    assert all(part.isdigit() for part in midcourse.__version__.split("."))
