"""Turns of the arithmetic policy: `<|user|>047+138*7<|end|><|assistant|>047+138:...;#295<|end|>`, a token a character.

A turn is its content. System prompt and instructions are not rendered: they are what the warm start taught.
"""

from collections.abc import Sequence

from midcourse.environments.base import Tool
from midcourse.environments.mathematics.arithmetic import ARITHMETIC_VOCABULARY
from midcourse.nano.tokenizer import PAD, UNKNOWN, ClosedTokenizer
from midcourse.types import AssistantTurn, ToolResult

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
EVIDENCE, DRAFT, CHUNK, JUDGE = "<|evidence|>", "<|draft|>", "<|chunk|>", "<|judge|>"
CUE = "#"
"""A query that begins with it asks for what the policy can do and does not do by habit: adding what was carried."""
JSON_PIECES = ('{"reason":"', '","verdict":"keep"}', '","verdict":"revise","quote":"', '"}')
EVIDENCE_PIECES = ("Reference", "answer:", "solution:")

MARKS = (PAD, UNKNOWN, USER, ASSISTANT, END, EVIDENCE, DRAFT, CHUNK, JUDGE)

VOCABULARY = (
    *MARKS,
    *ARITHMETIC_VOCABULARY,
    *JSON_PIECES,
    *EVIDENCE_PIECES,
)


class ArithmeticChatFormat:
    """Turns <-> tokens of the arithmetic policy. The judge of chunks is the only role that it can be asked to play."""

    prompt_style = "nano"

    def __init__(self) -> None:
        self.tokenizer = ClosedTokenizer(VOCABULARY, marks=MARKS)
        self._user, self._assistant, self._end = (self.tokenizer.ids[mark] for mark in (USER, ASSISTANT, END))
        self.stop_ids = (self._end,)
        self.unknown_id = self.tokenizer.unknown_id

    def encode(self, text: str) -> list[int]:
        """Tokenise text; white space is dropped, and a mark that it spells is unknown."""
        return self.tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens spelled out."""
        return self.tokenizer.decode(token_ids)

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        """Return the tokens of a conversation's start, generation prompt included."""
        # A query that shows evidence has it behind a mark.
        return self.tokenizer.encode_marked(f"{USER}{query}{END}{ASSISTANT}")

    def parse(self, turn_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> AssistantTurn:
        """Read a turn: all of it is content."""
        return AssistantTurn(content=self.decode(turn_ids).removesuffix(END))

    def render(self, turn: AssistantTurn) -> list[int]:
        """Return the tokens of a turn as the policy would write it, stop token included."""
        return [*self.encode(turn.content), self._end]

    def observe(self, results: Sequence[ToolResult]) -> list[int]:
        """Return the generation prompt: there are no tools, and the policy was never shown an answer of one."""
        return [self._assistant]

    def with_message(self, history_ids: Sequence[int], text: str) -> list[int]:
        """Return `history_ids` (ending in the generation prompt) with one user message put before it."""
        return [*history_ids[:-1], self._user, *self.encode(text), self._end, self._assistant]

    def role_prompt(self, *, role: str, instructions: str, request: str) -> list[int]:
        """Return the request, then the role's own generation prompt; roles that were not taught are unknown tokens."""
        return self.tokenizer.encode_marked(f"{request}<|{role}|>")
