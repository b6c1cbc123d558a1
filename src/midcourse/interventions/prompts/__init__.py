"""Role prompts as package data: `<style>/<role>.j2`.

A template may hold the blocks `instructions` (the system part) and `request`; one without them is all request.
Every template is given the same variables: query, tools, turns, draft, corrected, history_text, draft_text,
corrected_text, evidence_text, guide, feedback, conceal. One that is misspelt is an error, not an empty string.

For the judge of chunks: `judge` (query, tools, accepted_text, chunk_text, is_ended, evidence_text, guide, domain),
`privileged` (query, evidence_text: what the query becomes for a model that writes on with evidence) and `continue`
(query, accepted_text, evidence_text, end_mark: for a server that gives text).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, Template

from midcourse.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a role is told: who it is, and what it is asked."""

    instructions: str
    request: str


def styles() -> list[str]:
    """Return the prompt styles that are installed, sorted."""
    root = resources.files(__name__)
    return sorted(entry.name for entry in root.iterdir() if entry.joinpath("validator.j2").is_file())


def render_prompt(style: str, name: str, variables: Mapping[str, Any]) -> Prompt:
    """Return the prompt of one role.

    Args:
        style: a name of `styles()`.
        name: "validator", "corrector", "verifier", "feedback", "judge", "privileged" or "continue".
        variables: all the variables that the module's docstring lists for it.

    Raises:
        ConfigError: no such style.
        jinja2.UndefinedError: the template uses a variable that does not exist.
    """
    template = _template(style, name)
    if "request" not in template.blocks:
        return Prompt("", template.render(variables).strip())
    parts = {
        block: "".join(template.blocks[block](template.new_context(dict(variables)))).strip()
        for block in ("instructions", "request")
        if block in template.blocks
    }
    return Prompt(parts.get("instructions", ""), parts["request"])


@cache
def _template(style: str, name: str) -> Template:
    if style not in styles():
        raise ConfigError(f"unknown prompt style {style!r}. Known: {', '.join(styles())}")
    source = resources.files(__name__).joinpath(style, f"{name}.j2").read_text(encoding="utf-8")
    # Prompts are text for a model, not HTML; values are inserted and never compiled.
    environment = Environment(loader=BaseLoader(), undefined=StrictUndefined, autoescape=False, trim_blocks=False)
    return environment.from_string(source)
