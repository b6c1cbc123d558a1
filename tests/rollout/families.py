"""Small tokenizers and templates with the structure of real model families."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rollout.conftest import CHATML_SPECIALS, MARKS

from midcourse.rollout.templates import SHIPPED

TEMPLATES = Path(__file__).parent / "templates"
LLAMA_SPECIALS = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<|end_of_text|>",
)


@dataclass(frozen=True)
class Family:
    """What a family's tokenizer has as whole tokens, and how its template is known to behave."""

    template: Path
    specials: Sequence[str] = CHATML_SPECIALS
    marks: Sequence[str] = MARKS
    eos: str = "<|im_end|>"
    bos: str | None = None
    writes_text_beside_calls: bool = True
    max_calls: int = 2

    def text(self) -> str:
        return self.template.read_text(encoding="utf-8")

    def tokenizer(self, build_tokenizer: Callable[..., Any], template: str | dict[str, str] | None = None) -> Any:
        return build_tokenizer(
            marks=self.marks,
            chat_template=self.text() if template is None else template,
            specials=self.specials,
            eos=self.eos,
            bos=self.bos,
        )


GEMMA_SPECIALS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<pad>")
FAMILIES = {
    "qwen3": Family(TEMPLATES / "qwen3.jinja"),
    "qwen3_5": Family(TEMPLATES / "qwen3_5.jinja"),
    "hermes3": Family(TEMPLATES / "hermes3.jinja", writes_text_beside_calls=False),
    "llama3": Family(
        TEMPLATES / "llama3.jinja",
        specials=LLAMA_SPECIALS,
        marks=(),
        eos="<|eot_id|>",
        bos="<|begin_of_text|>",
        writes_text_beside_calls=False,
        max_calls=1,
    ),
    "gemma3": Family(SHIPPED["gemma3"], specials=GEMMA_SPECIALS, marks=("<b>", "</b>"), eos="<eos>", bos="<bos>"),
}
