"""How model families write tool calls: one file a form, and finding.py, which recognises a template's.

| form        | families                     | a call                                                        |
|-------------|------------------------------|---------------------------------------------------------------|
| marked JSON | Hermes, Qwen 2.5, Qwen 3     | <tool_call> {"name": ..., "arguments": {...}} </tool_call>    |
| marked XML  | Qwen3-Coder, Qwen 3.5        | <tool_call> <function=name> <parameter=key> ... </tool_call>  |
| bare JSON   | Llama 3.1, 3.2, 3.3          | {"name": ..., "parameters": {...}} as the whole turn          |

A call of the policy is read strictly in its own form. A repaired call would train the policy on what it did not
write, so one that cannot be read goes back to it with the reason.
"""

from collections.abc import Sequence
from typing import Protocol

from midcourse.environments.base import Tool
from midcourse.rollout.marks import Mark, Piece
from midcourse.types import ToolCall


class CallForm(Protocol):
    """How one family writes what stands behind the reasoning of a turn: text and calls."""

    @property
    def marks(self) -> Sequence[Mark]:
        """The marks that structure it; what else spells a mark is text."""
        ...

    def read(self, pieces: Sequence[Piece], *, tools: Sequence[Tool], errors: list[str]) -> tuple[str, list[ToolCall]]:
        """Return text and readable calls; what cannot be read is added to `errors`. Never raises.

        Args:
            pieces: what stands behind the reasoning; no two texts in a row.
            tools: their schemas say of which type an argument is, where the form itself does not.
            errors: written for a language model.
        """
        ...

    def write(self, content: str, calls: Sequence[ToolCall]) -> list[Piece]:
        """Return text and calls as the family writes them; `read` reads back the same.

        Raises:
            ValueError: an argument is no JSON, or the form cannot hold this text or call.
        """
        ...
