"""README.md beside saved weights, in the form of the Hugging Face Hub: what they are, and how they came to be.

What a user or a file wrote is escaped, and places of the machine and of its network are left out: the card is published
with the weights.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit

from midcourse.evaluation.markdown import escape_text, markdown_table, percent
from midcourse.nano.package import BUILT_IN

CARD = "README.md"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
PLACE = re.compile(r"[/\\~.]|[A-Za-z]:[/\\]")  # how a path begins that means a place on this machine
UNPUBLISHED = "(not published)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What is known of saved weights."""

    base: str  # a path or name, as policy.path takes it
    is_adapter: bool
    update: int
    settings: Mapping[str, str] = field(default_factory=dict[str, str])  # key -> value, as TOML writes it
    evaluation: Mapping[str, Any] | None = (
        None  # scores of these very weights, as `EvaluationResult.to_dict` gives them
    )


def model_card(facts: CardFacts) -> str:
    """Return the text of the card."""
    base = published(facts.base)
    method, environment = (_text(facts.settings, f"{section}.name") for section in ("method", "environment"))
    title = " ".join(part for part in (base, "trained by", method or "reinforcement learning") if part)
    kind = "LoRA adapter on" if facts.is_adapter else "full weights, trained from"
    rows = [["base model", base], ["what this is", f"{kind} {base}"]]
    rows += [["method", method]] if method else []
    rows += [["environment", environment]] if environment else []
    rows += [["updates", str(facts.update)], ["trained with", "midcourse"]]
    parts = [_front_matter(facts, base), f"# {escape_text(title)}", markdown_table(["", ""], rows)]
    if facts.evaluation is not None and (scores := _scores(facts.evaluation)):
        parts += ["## Scores", scores]
    parts += ["## Loading", _loading(facts, base)]
    if facts.settings:
        lines = [f"{key} = {_published_toml(value)}" for key, value in facts.settings.items()]
        parts += ["## Settings of the run", "\n".join(["```toml", *lines, "```"])]
    return "\n\n".join(parts) + "\n"


def published(text: str) -> str:
    """Return a setting's text without what tells of the machine: of a path the last part, of a URL nothing."""
    if "://" in text:
        return UNPUBLISHED
    is_place = PLACE.match(text) is not None or (("/" in text or "\\" in text) and Path(text).exists())
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1] if is_place and ("/" in text or "\\" in text) else text


def _front_matter(facts: CardFacts, base: str) -> str:
    tags = ["midcourse", "reinforcement-learning", *(["lora"] if facts.is_adapter else [])]
    fields: dict[str, Any] = {
        **({"base_model": base} if HUB_NAME.fullmatch(base) else {}),
        "library_name": "peft" if facts.is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": tags,
    }
    # A JSON value is a YAML value.
    return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in fields.items()), "---"])


def _scores(evaluation: Mapping[str, Any]) -> str:
    """Return the table of pass rates; "" where a trainer's own evaluation has other scores."""
    splits = {name: sheet for name, sheet in evaluation.get("splits", {}).items() if "pass_at" in sheet}
    if not splits:
        return ""
    attempts = len(next(iter(splits.values()))["pass_at"])
    headings = ["split", *(f"pass@{k}" for k in range(1, attempts + 1)), f"pass^{attempts}"]
    rows = [
        [
            name,
            *(percent(sheet["pass_at"][str(k)]["value"]) for k in range(1, attempts + 1)),
            percent(sheet["pass_hat"][str(attempts)]["value"]),
        ]
        for name, sheet in splits.items()
    ]
    return markdown_table(headings, rows)


def _loading(facts: CardFacts, base: str) -> str:
    if base in BUILT_IN:
        chat = BUILT_IN[base].chat
        return f"The base is built into midcourse: `policy.path` names this folder, and `policy.chat` is {chat}."
    if not facts.is_adapter:
        lines = [
            "from transformers import AutoModelForCausalLM",
            "",
            "model = AutoModelForCausalLM.from_pretrained(FOLDER)",
        ]
    else:
        # Of a folder only its last part is published, which loads nothing.
        is_on_a_hub = HUB_NAME.fullmatch(base) is not None
        comment = [] if is_on_a_hub else ["# BASE: the folder of the base model that the table names"]
        lines = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM",
            "",
            *comment,
            f"base = AutoModelForCausalLM.from_pretrained({json.dumps(base) if is_on_a_hub else 'BASE'})",
            "model = PeftModel.from_pretrained(base, FOLDER)",
        ]
    return "\n".join(["```python", *lines, "```"])


def _text(settings: Mapping[str, str], key: str) -> str:
    return str(_value(settings[key])) if key in settings else ""


def _value(toml: str) -> Any:
    return tomllib.loads(f"value = {toml}")["value"]


def _published_toml(toml: str) -> str:
    def without_places(value: Any) -> Any:
        if isinstance(value, str):
            return published(value)
        if isinstance(value, list):
            return [without_places(item) for item in value]
        if isinstance(value, dict):
            return {key: without_places(item) for key, item in value.items()}
        return value

    # On one line, so that no value can end the block that it stands in.
    return tomlkit.item(without_places(_value(toml))).as_string().replace("\n", " ")
