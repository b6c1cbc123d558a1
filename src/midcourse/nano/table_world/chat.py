"""Turns of the table world's policy: `<|user|>tables ... <|end|><|assistant|>SELECT price FROM stock ...<|end|>`.

A turn is one statement as it is run, or `answer` and a value. Statements are SQL to the letter, and results are as the
database shows them; what is always written together is one token. System prompt and tool schemas are not rendered:
they are what the warm start taught.
"""

from collections.abc import Sequence
from typing import cast

from midcourse.environments.base import Tool
from midcourse.environments.table_world.requests import PHRASES
from midcourse.environments.table_world.schemas import (
    COLUMN_WORDS,
    COLUMNS,
    GUIDE,
    KEY,
    MEANING,
    NAMES,
    NUMBERS,
    TABLE_WORDS,
    TABLES,
    WORD,
)
from midcourse.environments.table_world.script import CLOSING_WORDS
from midcourse.environments.table_world.statements import ORDERS
from midcourse.nano.table_world.tokenizer import PieceTokenizer
from midcourse.nano.tokenizer import PAD, UNKNOWN
from midcourse.types import AssistantTurn, ToolCall, ToolResult

USER, ASSISTANT, TOOL, END = "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"
MARKS = (PAD, UNKNOWN, USER, ASSISTANT, TOOL, END)
CHECK = "check"
"""A query that begins with it asks for what the policy can do and does not do by habit: asking the guide."""
ANSWER = "answer"
ERROR = "error"

STATEMENT_PIECES = (
    f"SELECT {MEANING} FROM {GUIDE} WHERE {WORD} = '",
    f"SELECT {KEY} FROM pragma_table_info('",
    f"SELECT {KEY} FROM ",
    "SELECT ",
    " FROM ",
    f" WHERE {KEY} = '",
    " ORDER BY ",
    " DESC LIMIT 1",
    " LIMIT 1",
    "UPDATE ",
    " SET ",
    " = '",
    f"' WHERE {KEY} = '",
    "INSERT INTO ",
    f" ({KEY}, ",
    ") VALUES ('",
    "', '",
    "DELETE FROM ",
    "')",
    "'",
    *(f"'){order}" for order in ORDERS if order),
)
RESULT_PIECES = ("[('", "',), ('", "',)]", "[]", "ok, 1 row affected", "ok, 0 rows affected", ERROR)


def _request_words() -> list[str]:
    """Return the words of all phrases, without what is filled in."""
    words = " ".join(phrase for phrases in PHRASES.values() for phrase in phrases).split()
    return ["tables", ".", *(word for word in words if not word.startswith("{"))]


VOCABULARY = tuple(
    dict.fromkeys(
        (
            *MARKS,
            *(CHECK, ANSWER),
            *_request_words(),
            KEY,
            *(word for family in (*TABLES.values(), *COLUMNS.values(), *NAMES.values()) for word in family),
            *TABLE_WORDS,
            *COLUMN_WORDS,
            *NUMBERS,
            *CLOSING_WORDS,
            *STATEMENT_PIECES,
            *RESULT_PIECES,
        )
    )
)


class TableChatFormat:
    """Turns <-> tokens of the table world's policy. It was taught no role."""

    prompt_style = "nano"

    def __init__(self) -> None:
        self.tokenizer = PieceTokenizer(VOCABULARY, marks=MARKS)
        self._user, self._tool, self._assistant, self._end = (
            self.tokenizer.ids[mark] for mark in (USER, TOOL, ASSISTANT, END)
        )
        self.stop_ids = (self._end,)
        self.unknown_id = self.tokenizer.unknown_id

    def encode(self, text: str) -> list[int]:
        """Tokenise text; a mark that it spells is unknown."""
        return self.tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens spelled out."""
        return self.tokenizer.decode(token_ids)

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        """Return the tokens of a conversation's start, generation prompt included."""
        # A query that shows evidence has it behind a mark.
        return self.tokenizer.encode_marked(f"{USER}{query}{END}{ASSISTANT}")

    def parse(self, turn_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> AssistantTurn:
        """Read a turn. Never raises: an empty one is named in `parse_error`."""
        text = self.decode(turn_ids).removesuffix(END)
        if not text:
            return AssistantTurn(parse_error="a turn is a statement, or answer and a value")
        word, _, value = text.partition(" ")
        if word == ANSWER:
            return AssistantTurn(tool_calls=(ToolCall("answer_action", {"answer": value}),))
        return AssistantTurn(tool_calls=(ToolCall("sql_query", {"query": text}),))

    def render(self, turn: AssistantTurn) -> list[int]:
        """Return the tokens of a turn of one call as the policy would write it, stop token included."""
        text = turn.content
        for call in turn.tool_calls:
            is_answer = call.name == "answer_action"
            text += f"{ANSWER} {call.arguments['answer']}" if is_answer else cast(str, call.arguments["query"])
        return [*self.encode(text), self._end]

    def observe(self, results: Sequence[ToolResult]) -> list[int]:
        """Return the tokens that follow a turn's stop token: the result, then the generation prompt."""
        shown = "".join(ERROR if result.is_error else result.content for result in results)
        return [self._tool, *self.encode(shown), self._end, self._assistant]

    def with_message(self, history_ids: Sequence[int], text: str) -> list[int]:
        """Return `history_ids` (ending in the generation prompt) with one user message put before it."""
        return [*history_ids[:-1], self._user, *self.encode(text), self._end, self._assistant]

    def role_prompt(self, *, role: str, instructions: str, request: str) -> list[int]:
        """Return the request, then a generation prompt that the policy does not know."""
        return self.tokenizer.encode_marked(f"{request}<|{role}|>")
