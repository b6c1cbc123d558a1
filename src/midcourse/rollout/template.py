"""Any Hugging Face chat template that can be used token-in token-out.

The template renders the opening of a conversation, and dummy conversations whose differences tell what it writes
between turns. A turn that the policy wrote is never rendered. That is right only if the template itself would write
the same tokens before every turn, so the constructor checks it and names what does not hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from midcourse.environments.base import Tool
from midcourse.errors import ChatTemplateError
from midcourse.rollout.chatml import insert_before_ending, tool_schema
from midcourse.rollout.marked import MarkedTurns
from midcourse.rollout.plain_text import PlainTextTokenizer, TextOrToken
from midcourse.rollout.tool_calls import Mark, read_turn, split_marks
from midcourse.types import ToolCall, ToolResult

Message = Mapping[str, Any]

# Words that stand for content in the dummy conversations. No template writes them, no white space can be trimmed off.
SYSTEM, QUERY, NOTE, ANSWER, REASONING = "QsystemQ", "QqueryQ", "QnoteQ", "QanswerQ", "QreasoningQ"
TOOL_NAME, ARGUMENT = "qtoolq", "QargumentQ"
DUMMY_TOOL = Tool(
    name=TOOL_NAME,
    description="QdescriptionQ",
    parameters={"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
)
EXCERPT_CHARACTERS = 40


class TemplateFormat(MarkedTurns):
    """A model's own chat template, used for what stands around turns.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template that writes tool calls as JSON between `<tool_call>`
            marks.

    Raises:
        ChatTemplateError: there is no template; it fails on a conversation with system prompt, tools and tool
            answers; it does not render tools; it writes calls in another form; a turn does not end in a special
            token; or the prefix property breaks (reasoning stripped from history, text between generation prompt and
            turn, earlier messages rendered differently later). The message says which, with a short excerpt.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._template = tokenizer
        self._plain = PlainTextTokenizer(tokenizer)
        query = {"role": "user", "content": QUERY}
        opening = self._render([query], prompt=True)
        self._prompt_text = _after(
            opening, self._render([query], prompt=False), "the generation prompt is not appended to the conversation"
        )
        if not self._prompt_text.strip():
            raise ChatTemplateError("the template has no generation prompt")
        self._stop_text, stop_id = self._find_stop(opening)
        opens_in_reasoning = self._prompt_text.rstrip("\n").endswith(Mark.THINK.value)
        stop_ids = [stop_id]
        if tokenizer.eos_token_id is not None and tokenizer.eos_token_id != stop_id:
            stop_ids.append(tokenizer.eos_token_id)
        super().__init__(self._plain, stop_ids=stop_ids, opens_in_reasoning=opens_in_reasoning)
        self._answer_texts: dict[int, str] = {}
        self._prompt_ids = self._plain.encode_pieces(self._plain.split_special(self._prompt_text))
        self._check_tools_and_system()
        self._check_turns(opening)
        self._message_text = self._find_message()
        self._check_tokens()

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        """Return the tokens of a conversation's start, generation prompt included."""
        messages = [{"role": "user", "content": QUERY}]
        if system_prompt:
            messages.insert(0, {"role": "system", "content": SYSTEM})
        text = self._render(messages, tools=tools, prompt=True)
        return self._plain.encode_pieces(self._filled(text, {SYSTEM: system_prompt, QUERY: query}))

    def observe(self, results: Sequence[ToolResult]) -> list[int]:
        """Return the tokens that follow a turn's stop token: tool answers, then the generation prompt."""
        content = {_result_word(index): result.content for index, result in enumerate(results)}
        names = {_name_word(index): result.name for index, result in enumerate(results)}
        return self._plain.encode_pieces(self._filled(self._answer_text(len(results)), content | names))

    def with_message(self, history_ids: Sequence[int], text: str) -> list[int]:
        """Return `history_ids` with one user message put before its generation prompt.

        Raises:
            ValueError: the history does not end in the generation prompt.
        """
        message_ids = self._plain.encode_pieces(self._filled(self._message_text, {NOTE: text}))
        return insert_before_ending(history_ids, message_ids, ending_ids=self._prompt_ids)

    def role_prompt(self, *, role: str, instructions: str, request: str) -> list[int]:
        """Return the tokens of a fresh conversation that asks a role for JSON; the role's name is not written."""
        return self.open(system_prompt=instructions, tools=(), query=request)

    def _render(self, messages: Sequence[Message], *, prompt: bool, tools: Sequence[Tool] = ()) -> str:
        from jinja2.exceptions import TemplateError

        try:
            return self._template.apply_chat_template(
                list(messages),
                tools=[tool_schema(tool) for tool in tools] or None,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except (TemplateError, ValueError, TypeError, LookupError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ChatTemplateError(f"the template cannot render a conversation of {roles}: {error}") from error

    def _filled(self, text: str, content: Mapping[str, str]) -> list[TextOrToken]:
        """Return the template's text with content for words; only the template's own spellings are special tokens."""
        pieces: list[TextOrToken] = []
        while found := [(position, word) for word in content if (position := text.find(word)) >= 0]:
            position, word = min(found)
            pieces += [*self._plain.split_special(text[:position]), content[word]]
            text = text[position + len(word) :]
        return [*pieces, *self._plain.split_special(text)]

    def _find_stop(self, opening: str) -> tuple[str, int]:
        """Return spelling and id of the token that ends a turn."""
        conversation = [{"role": "user", "content": QUERY}, {"role": "assistant", "content": ANSWER}]
        text = self._render(conversation, prompt=False)
        if ANSWER not in text:
            raise ChatTemplateError(f"the template does not write what an assistant said: {_excerpt(text, 0)}")
        closing = text[text.index(ANSWER) + len(ANSWER) :]
        for piece in self._plain.split_special(closing):
            if isinstance(piece, int):
                return self._plain.decode([piece]), piece
            if piece:
                break
        raise ChatTemplateError(
            f"a turn must end in a special token right behind its text: the template writes {closing!r}"
        )

    def _check_tools_and_system(self) -> None:
        text = self._render(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUERY}],
            tools=[DUMMY_TOOL],
            prompt=True,
        )
        for word, what in ((SYSTEM, "the system prompt"), (TOOL_NAME, "the tools"), (QUERY, "the query")):
            if word not in text:
                raise ChatTemplateError(f"the template does not render {what}: {_excerpt(text, 0)}")

    def _check_turns(self, opening: str) -> None:
        """Check that a conversation only ever grows at its end, over two turns with reasoning and calls."""
        messages: list[Message] = [{"role": "user", "content": QUERY}]
        before = opening
        for num_results in (1, 2):
            messages += self._exchange(num_results)
            grown = self._render(messages, prompt=True)
            turn_and_rest = _after(
                grown, before, f"what stands before turn {num_results} is rendered differently once the turn follows"
            )
            self._check_turn(turn_and_rest)
            if not grown.endswith(self._prompt_text):
                raise ChatTemplateError(
                    f"the generation prompt is missing behind tool answers: {_excerpt(grown, len(grown))}"
                )
            before = grown
        # The answers' text is taken from a first turn; a later one must be answered with the same.
        _, _, rest = turn_and_rest.partition(self._stop_text)
        if rest != self._answer_text(2):
            raise ChatTemplateError(f"tool answers look different behind a later turn: {_excerpt(rest, 0)}")

    def _check_turn(self, text: str) -> None:
        """Check that the turn at the start of `text` is one that the policy could have written."""
        turn_text, stop, _ = text.partition(self._stop_text)
        if not stop:
            raise ChatTemplateError(f"a turn with calls does not end in {self._stop_text}: {_excerpt(text, 0)}")
        if REASONING not in turn_text:
            raise ChatTemplateError(
                f"the template strips the reasoning of earlier turns, which the policy wrote: {_excerpt(turn_text, 0)}"
            )
        if turn_text[0].isspace():
            raise ChatTemplateError(
                f"the template writes {turn_text[: len(turn_text) - len(turn_text.lstrip())]!r} between generation "
                f"prompt and turn, which the policy does not: {_excerpt(turn_text, 0)}"
            )
        turn = read_turn(split_marks(turn_text, Mark), opens_in_reasoning=self._opens_in_reasoning)
        expected = ToolCall(TOOL_NAME, {"key": ARGUMENT})
        if turn.parse_error is not None or not turn.tool_calls or any(call != expected for call in turn.tool_calls):
            raise ChatTemplateError(
                f"the template has no known tool-call form (JSON between {Mark.CALL.value} marks): "
                f"{_excerpt(turn_text, max(0, turn_text.find(TOOL_NAME)))}"
            )
        if turn.reasoning.strip() != REASONING:
            raise ChatTemplateError(f"the template rewrites the reasoning: {_excerpt(turn_text, 0)}")

    def _exchange(self, num_results: int) -> list[Message]:
        """Return a turn with reasoning and one call a result, and the results."""
        calls = [
            {
                "type": "function",
                "id": f"call{index:05d}",
                "function": {"name": TOOL_NAME, "arguments": {"key": ARGUMENT}},
            }
            for index in range(max(1, num_results))
        ]
        content = f"{Mark.THINK.value}\n{REASONING}\n{Mark.THINK_END.value}\n\n"
        results = [
            {
                "role": "tool",
                "name": _name_word(index),
                "tool_call_id": f"call{index:05d}",
                "content": _result_word(index),
            }
            for index in range(num_results)
        ]
        return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]

    def _answer_text(self, num_results: int) -> str:
        """Return what stands between a turn's stop token and the next turn."""
        if num_results not in self._answer_texts:
            query = {"role": "user", "content": QUERY}
            text = self._render([query, *self._exchange(num_results)], prompt=True)
            opening = self._render([query], prompt=True)
            _, stop, rest = _after(text, opening, "the query is rendered differently later").partition(self._stop_text)
            missing = [index for index in range(num_results) if _result_word(index) not in rest]
            if not stop or missing:
                raise ChatTemplateError(f"the template does not render tool answers: {_excerpt(rest or text, 0)}")
            self._answer_texts[num_results] = rest
        return self._answer_texts[num_results]

    def _find_message(self) -> str:
        """Return what a further user message adds before the generation prompt, NOTE being its text."""
        conversation = [{"role": "user", "content": QUERY}, {"role": "assistant", "content": ANSWER}]
        without = self._render(conversation, prompt=False)
        noted = self._render([*conversation, {"role": "user", "content": NOTE}], prompt=True)
        added = _after(noted, without, "earlier messages are rendered differently once a user message follows")
        if NOTE not in added or not added.endswith(self._prompt_text):
            raise ChatTemplateError(f"the template does not render a further user message: {_excerpt(added, 0)}")
        return added.removesuffix(self._prompt_text)

    def _check_tokens(self) -> None:
        """Check that a conversation made of parts has the tokens of the whole, and its end those of the prompt."""
        text = self._render([{"role": "user", "content": QUERY}, *self._exchange(2)], prompt=True)
        whole = list(self._template.encode(text, add_special_tokens=False))
        parts = self._plain.encode_pieces(self._plain.split_special(text))
        if whole != parts:
            position = next(
                (index for index, (left, right) in enumerate(zip(whole, parts, strict=False)) if left != right),
                min(len(whole), len(parts)),
            )
            raise ChatTemplateError(
                "the tokenizer gives other tokens for a conversation than for its parts, from "
                f"{self._plain.decode(whole[max(0, position - 3) : position + 3])!r} on"
            )
        if parts[len(parts) - len(self._prompt_ids) :] != self._prompt_ids:
            raise ChatTemplateError(
                f"the generation prompt {self._prompt_text!r} has other tokens alone than behind a conversation"
            )


def _result_word(index: int) -> str:
    return f"Qresult{index}Q"


def _name_word(index: int) -> str:
    return f"Qname{index}Q"


def _after(text: str, beginning: str, complaint: str) -> str:
    """Return what follows `beginning` in `text`. Raises ChatTemplateError with the place where they part."""
    if text.startswith(beginning):
        return text[len(beginning) :]
    position = next(
        (index for index, (left, right) in enumerate(zip(text, beginning, strict=False)) if left != right), len(text)
    )
    raise ChatTemplateError(
        f"the template breaks the prefix property: {complaint}: at character {position} it writes "
        f"{_excerpt(text, position)} in place of {_excerpt(beginning, position)}"
    )


def _excerpt(text: str, position: int) -> str:
    start = max(0, position - EXCERPT_CHARACTERS // 4)
    return repr(text[start : start + 2 * EXCERPT_CHARACTERS])
