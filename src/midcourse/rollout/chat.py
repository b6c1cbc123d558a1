"""Turns <-> tokens. History is never rendered again: each turn appends only its own new tokens.

Formats: ChatMLFormat (chatml.py), TemplateFormat (template.py), and the built-in policy's in nano/navigation/chat.py.
"""

from collections.abc import Sequence
from typing import Protocol

from midcourse.environments.base import Tool
from midcourse.rollout.chatml import ChatMLFormat
from midcourse.rollout.template import TemplateFormat
from midcourse.types import AssistantTurn, ToolResult

__all__ = ["ChatFormat", "ChatMLFormat", "TemplateFormat"]


class ChatFormat(Protocol):
    """How one model family writes a conversation. All prompts end in the generation prompt."""

    @property
    def prompt_style(self) -> str:
        """The folder of interventions/prompts whose role prompts a policy of this format can read."""
        ...

    @property
    def stop_ids(self) -> Sequence[int]:
        """Tokens that end a turn; the turn's last token where it ended by itself."""
        ...

    @property
    def unknown_id(self) -> int | None:
        """Token of what the vocabulary does not hold; None where it holds every text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokenise text as plain content: special-token spellings in it do not become special tokens.

        A closed vocabulary has no other way to write them: there they are unknown, as is all that it does not hold.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens spelled out."""
        ...

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        """Return the tokens of a conversation's start, generation prompt included."""
        ...

    def parse(self, turn_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> AssistantTurn:
        """Read a turn. Never raises: what cannot be read is named in `parse_error`.

        Where a family writes every argument as text, the schemas of `tools` say what it stands for.
        """
        ...

    def render(self, turn: AssistantTurn) -> list[int]:
        """Return the tokens of a turn as the policy would write it, stop token included (for corrections)."""
        ...

    def observe(self, results: Sequence[ToolResult]) -> list[int]:
        """Return the tokens that follow a turn's stop token: tool answers, then the generation prompt."""
        ...

    def with_message(self, history_ids: Sequence[int], text: str) -> list[int]:
        """Return `history_ids` (ending in the generation prompt) with one user message put before it."""
        ...

    def role_prompt(self, *, role: str, instructions: str, request: str) -> list[int]:
        """Return the tokens of a fresh conversation that asks a role for JSON."""
        ...
