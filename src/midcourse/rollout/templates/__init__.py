"""Chat templates that are shipped, for models whose own cannot be used; and how a template is named in a run."""

from pathlib import Path

from midcourse.errors import ConfigError

SHIPPED = {"gemma3": Path(__file__).parent / "gemma3.jinja"}


def load_template(name: str) -> str | None:
    """Return the text of a template: of a shipped one, or of a file; None where no name is given.

    Raises:
        ConfigError: there is no such template.
    """
    if not name:
        return None
    path = SHIPPED.get(name, Path(name))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"policy.chat_template = {name!r}: expected a template's file or one of {', '.join(SHIPPED)}: {error}"
        ) from error
