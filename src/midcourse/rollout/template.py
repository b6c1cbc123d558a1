"""Any Hugging Face chat template that can be used token-in token-out.

The template renders the opening of a conversation, and dummy conversations whose differences tell what it writes
between turns. A turn that the policy wrote is never rendered. That is right only if the template itself would write
the same tokens before every turn, so the constructor checks it and names what does not hold.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from midcourse.environments.base import Tool
from midcourse.errors import ChatTemplateError
from midcourse.rollout.call_forms import CallForm
from midcourse.rollout.call_forms.finding import KNOWN_FORMS, find_form
from midcourse.rollout.chatml import insert_before_ending
from midcourse.rollout.marked import MarkedTurns
from midcourse.rollout.marks import THINK_MARKS, Mark, split_marks
from midcourse.rollout.plain_text import PlainTextTokenizer, TextOrToken
from midcourse.rollout.template_rendering import (
    ANSWER,
    DUMMY_CALL,
    DUMMY_TOOL,
    NOTE,
    QUERY,
    REASONING,
    SYSTEM,
    Message,
    TemplateRenderer,
    after,
    call_turn,
    excerpt,
    find_writing,
    name_word,
    result_word,
    results,
    user,
)
from midcourse.rollout.tool_calls import read_turn, split_reasoning
from midcourse.types import ToolResult

END_OF_MESSAGE = "<|eom_id|>"  # ends a turn of Llama 3 that waits for a tool's answer, whatever the template writes


class TemplateFormat(MarkedTurns):
    """A model's own chat template, used for what stands around turns.

    The form of tool calls is found from a call that the template renders. What a template does to the text of
    messages (trimming, escaping) is found too and done likewise, so that what is put together here has the tokens of
    the template's own rendering.

    What the policy wrote stays in the history as sampled, also where the template would write it otherwise once the
    conversation is longer. Three such habits are known and accepted, since history is never rendered again:
    reasoning that is dropped once a further user message comes (Qwen 3; `with_message` keeps it), an empty think
    block of the generation prompt that is dropped from earlier turns (Qwen 3 without thinking), and text beside calls
    that is dropped (Hermes, Llama 3). So is white space alone that is written differently around earlier messages.

    Args:
        tokenizer: a Hugging Face tokenizer.
        template: a template in place of the tokenizer's own.
        enable_thinking: the template's variable of that name; None leaves it undefined.

    Raises:
        ChatTemplateError: there is no template; it fails on a conversation with system prompt, tools and tool
            answers; it does not render tools, or rewrites texts; it writes calls in an unknown form; a turn does not
            end in a special token; or the prefix property breaks (reasoning stripped between tool calls, text between
            generation prompt and turn, earlier messages rendered differently later). The message says which, with a
            short excerpt.
    """

    def __init__(self, tokenizer: Any, *, template: str | None = None, enable_thinking: bool | None = None) -> None:
        self._renderer = TemplateRenderer(tokenizer, template=template, enable_thinking=enable_thinking)
        self._plain = PlainTextTokenizer(tokenizer)
        opening = self._renderer.render([user(QUERY)], prompt=True)
        self._prompt_text = after(
            opening,
            self._renderer.render([user(QUERY)], prompt=False),
            "the generation prompt is not appended to the conversation",
        )
        if not self._prompt_text.strip():
            raise ChatTemplateError("the template has no generation prompt")
        self._header = split_marks(self._prompt_text, THINK_MARKS)[0]
        self._is_thinking = Mark.THINK_END.value not in self._prompt_text  # else the prompt has closed a think block
        opens_in_reasoning = self._prompt_text.rstrip("\n").endswith(Mark.THINK.value)
        self._check_tools_and_system()
        stop_id = self._find_stop()
        stop_ids = [stop_id, self._plain.special_id(END_OF_MESSAGE), tokenizer.eos_token_id]
        stop_ids = list(dict.fromkeys(token_id for token_id in stop_ids if token_id is not None))
        spellings = [re.escape(self._plain.decode([token_id])) for token_id in stop_ids]
        self._stop = re.compile("|".join(spellings))
        self._calls_stand_alone, self._max_calls = False, 2
        form, call_stop = self._find_form(opening, opens_in_reasoning)
        super().__init__(
            self._plain,
            stop_ids=stop_ids,
            call_stop_id=self._plain.special_id(call_stop),
            form=form,
            opens_in_reasoning=opens_in_reasoning,
        )
        self._answer_texts: dict[int, str] = {}
        self._check_turns(opening)
        self._message_text = self._find_message(opening)
        self._prompt_ids = self._plain.encode_pieces(self._plain.split_special(self._prompt_text))
        self._check_tokens(tokenizer)
        self._write_system = find_writing(
            lambda text: self._renderer.render([{"role": "system", "content": text}, user(QUERY)], prompt=True),
            "the system prompt",
        )
        self._write_user = find_writing(
            lambda text: self._renderer.render([user(text)], prompt=True), "a user's message"
        )
        self._write_result = find_writing(
            lambda text: self._renderer.render(
                [user(QUERY), self._turn(1), {**results(1)[0], "content": text}], prompt=True
            ),
            "a tool's answer",
        )

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        """Return the tokens of a conversation's start, generation prompt included."""
        messages = [user(QUERY)]
        if system_prompt:
            messages.insert(0, {"role": "system", "content": SYSTEM})
        text = self._renderer.render(messages, tools=tools, prompt=True)
        content = {SYSTEM: self._write_system(system_prompt), QUERY: self._write_user(query)}
        return self._plain.encode_pieces(self._filled(text, content))

    def observe(self, results: Sequence[ToolResult]) -> list[int]:
        """Return the tokens that follow a turn's stop token: tool answers, then the generation prompt."""
        content = {result_word(index): self._write_result(result.content) for index, result in enumerate(results)}
        names = {name_word(index): result.name for index, result in enumerate(results)}
        return self._plain.encode_pieces(self._filled(self._answer_text(len(results)), content | names))

    def with_message(self, history_ids: Sequence[int], text: str) -> list[int]:
        """Return `history_ids` with one user message put before its generation prompt.

        Raises:
            ValueError: the history does not end in the generation prompt.
        """
        message_ids = self._plain.encode_pieces(self._filled(self._message_text, {NOTE: self._write_user(text)}))
        return insert_before_ending(history_ids, message_ids, ending_ids=self._prompt_ids)

    def role_prompt(self, *, role: str, instructions: str, request: str) -> list[int]:
        """Return the tokens of a fresh conversation that asks a role for JSON; the role's name is not written."""
        return self.open(system_prompt=instructions, tools=(), query=request)

    def _filled(self, text: str, content: Mapping[str, str]) -> list[TextOrToken]:
        """Return the template's text with content for words; only the template's own spellings are special tokens."""
        pieces: list[TextOrToken] = []
        while found := [(position, word) for word in content if (position := text.find(word)) >= 0]:
            position, word = min(found)
            pieces += [*self._plain.split_special(text[:position]), content[word]]
            text = text[position + len(word) :]
        return [*pieces, *self._plain.split_special(text)]

    def _check_tools_and_system(self) -> None:
        conversation = [{"role": "system", "content": SYSTEM}, user(QUERY)]
        text = self._renderer.render(conversation, prompt=True)
        words = ((SYSTEM, "the system prompt"), (DUMMY_TOOL.name, "the tools"), (QUERY, "the query"))
        for word, what in words:
            if word not in text:
                raise ChatTemplateError(
                    f"the template does not render {what}: {excerpt(text, 0)}. policy.chat_template takes a template "
                    'of your own, or "gemma3"'
                )
        without_tools = self._renderer.render(conversation, tools=(), prompt=True)
        if not without_tools.endswith(self._prompt_text):
            raise ChatTemplateError(
                f"without tools the generation prompt is another: {excerpt(without_tools, len(without_tools))}"
            )

    def _find_stop(self) -> int:
        """Return the token that ends a turn without calls."""
        text = self._renderer.render([user(QUERY), {"role": "assistant", "content": ANSWER}], prompt=False)
        if ANSWER not in text:
            raise ChatTemplateError(f"the template does not write what an assistant said: {excerpt(text, 0)}")
        closing = text[text.index(ANSWER) + len(ANSWER) :]
        for piece in self._plain.split_special(closing):
            if isinstance(piece, int):
                return piece
            if piece:
                break
        raise ChatTemplateError(
            f"a turn must end in a special token right behind its text: the template writes {closing!r}"
        )

    def _find_form(self, opening: str, opens_in_reasoning: bool) -> tuple[CallForm, str]:
        """Return how the template writes calls, and the spelling of the token that ends a turn with calls."""
        turn_text, stop, _ = self._rendered_turn(opening, [user(QUERY), self._turn(1), *results(1)])
        if ANSWER not in turn_text and REASONING not in turn_text:
            self._calls_stand_alone = True
            self._check_reasoning_without_calls()
        try:
            two_text, _, _ = self._rendered_turn(opening, [user(QUERY), self._turn(2), *results(2)])
        except ChatTemplateError:
            self._max_calls, two_text = 1, None  # one call a turn, says Llama 3
        _, rest = split_reasoning(split_marks(turn_text, THINK_MARKS), opens_in_reasoning, [])
        form = find_form("".join(rest), two_text, call=DUMMY_CALL, content=ANSWER)
        if form is None:
            raise ChatTemplateError(
                f"the template has no known tool-call form ({KNOWN_FORMS}): "
                f"{excerpt(turn_text, max(0, turn_text.find(DUMMY_CALL.name)))}"
            )
        return form, stop

    def _check_reasoning_without_calls(self) -> None:
        """Check that reasoning is kept in a turn without calls, where turns with calls hold calls alone."""
        if not self._is_thinking:
            return
        said = {"role": "assistant", "content": self._reasoning() + ANSWER}
        text = self._renderer.render([user(QUERY), said], prompt=False)
        if REASONING not in text:
            raise _strips_reasoning(text, max(0, text.find(ANSWER)))

    def _check_turns(self, opening: str) -> None:
        """Check that a conversation only ever grows at its end, over two turns with calls, one of them without text."""
        messages, before, rest = [user(QUERY)], opening, ""
        for num_results, said in ((1, ANSWER), (2, "")):
            messages += [self._turn(num_results, said), *results(num_results)]
            complaint = f"what stands before turn {num_results} is rendered differently once the turn follows"
            turn_text, _, rest = self._rendered_turn(before, messages, complaint)
            self._check_turn(turn_text)
            before = self._renderer.render(messages, prompt=True)
            if not before.endswith(self._prompt_text):
                raise ChatTemplateError(
                    f"the generation prompt is missing behind tool answers: {excerpt(before, len(before))}"
                )
        # The answers' text is taken from a first turn; a later one must be answered with the same.
        if rest != self._answer_text(2):
            raise ChatTemplateError(f"tool answers look different behind a later turn: {excerpt(rest, 0)}")

    def _check_turn(self, turn_text: str) -> None:
        """Check that a turn is one that the policy could have written."""
        if turn_text[:1].isspace():
            raise ChatTemplateError(
                f"the template writes {turn_text[: len(turn_text) - len(turn_text.lstrip())]!r} between generation "
                f"prompt and turn, which the policy does not: {excerpt(turn_text, 0)}"
            )
        pieces = split_marks(turn_text, (*THINK_MARKS, *self._form.marks))
        turn = read_turn(pieces, form=self._form, tools=[DUMMY_TOOL], opens_in_reasoning=self._opens_in_reasoning)
        if turn.parse_error is not None or not turn.tool_calls or any(call != DUMMY_CALL for call in turn.tool_calls):
            raise ChatTemplateError(
                f"the template has no known tool-call form ({KNOWN_FORMS}): "
                f"{excerpt(turn_text, max(0, turn_text.find(DUMMY_CALL.name)))}"
            )
        expected = REASONING if self._is_thinking and not self._calls_stand_alone else ""
        if turn.reasoning.strip() != expected:
            raise ChatTemplateError(f"the template rewrites the reasoning: {excerpt(turn_text, 0)}")

    def _rendered_turn(
        self, before: str, messages: Sequence[Message], complaint: str = "the query is rendered differently later"
    ) -> tuple[str, str, str]:
        """Return the turn that the template writes behind `before`, its stop token, and what follows that.

        Args:
            before: the conversation up to the turn, generation prompt included.
            messages: the same conversation with the turn, and answers of tools.
            complaint: what is wrong if the template writes something else before the turn.
        """
        text = self._renderer.render(messages, prompt=True)
        rest = after(text, before.removesuffix(self._prompt_text), complaint)
        begun = self._prompt_text
        if not rest.startswith(begun) and rest.startswith(self._header):
            begun = self._header
            dropped, _, _ = self._split_stop(rest[len(begun) :])
            if self._is_thinking:
                raise _strips_reasoning(dropped, 0)
        turn_text, stop, rest = self._split_stop(after(rest, begun, complaint))
        if self._is_thinking and REASONING not in turn_text and ANSWER in turn_text:
            raise _strips_reasoning(turn_text, 0)
        return turn_text, stop, rest

    def _split_stop(self, text: str) -> tuple[str, str, str]:
        stop = self._stop.search(text)
        if stop is None:
            raise ChatTemplateError(f"a turn with calls does not end in a token that ends turns: {excerpt(text, 0)}")
        return text[: stop.start()], stop.group(), text[stop.end() :]

    def _turn(self, num_calls: int, said: str = ANSWER) -> Message:
        """Return a turn with text, calls as far as the template allows them, and reasoning unless it is off."""
        reasoning = self._reasoning() if self._is_thinking else ""
        return call_turn(reasoning + said, min(max(1, num_calls), self._max_calls))

    @staticmethod
    def _reasoning() -> str:
        return f"{Mark.THINK.value}\n{REASONING}\n{Mark.THINK_END.value}\n\n"

    def _answer_text(self, num_results: int) -> str:
        """Return what stands between a turn's stop token and the next turn."""
        if num_results not in self._answer_texts:
            opening = self._renderer.render([user(QUERY)], prompt=True)
            messages = [user(QUERY), self._turn(num_results), *results(num_results)]
            _, _, rest = self._rendered_turn(opening, messages)
            if any(result_word(index) not in rest for index in range(num_results)):
                raise ChatTemplateError(f"the template does not render tool answers: {excerpt(rest, 0)}")
            self._answer_texts[num_results] = rest
        return self._answer_texts[num_results]

    def _find_message(self, opening: str) -> str:
        """Return what a further user message adds before the generation prompt, NOTE being its text."""
        conversation = [user(QUERY), {"role": "assistant", "content": ANSWER}]
        without = self._renderer.render(conversation, prompt=False)
        noted = self._renderer.render([*conversation, user(NOTE)], prompt=True)
        complaint = "earlier messages are rendered differently once a user message follows"
        begun = after(noted, opening.removesuffix(self._prompt_text), complaint)
        said = after(begun, self._header, complaint)
        # A think block may stand before the answer, or may not any more; nothing else may differ.
        _, answer, behind = said.partition(ANSWER)
        _, _, closing = without.partition(ANSWER)
        if not answer or NOTE not in behind:
            raise ChatTemplateError(f"the template does not render a further user message: {excerpt(begun, 0)}")
        added = after(behind, closing, complaint)
        if not added.endswith(self._prompt_text):
            raise ChatTemplateError(f"the generation prompt is missing behind a user message: {excerpt(added, 0)}")
        return added.removesuffix(self._prompt_text)

    def _check_tokens(self, tokenizer: Any) -> None:
        """Check that a conversation made of parts has the tokens of the whole, and its end those of the prompt."""
        text = self._renderer.render([user(QUERY), self._turn(2), *results(2)], prompt=True)
        whole = list(tokenizer.encode(text, add_special_tokens=False))
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


def _strips_reasoning(text: str, position: int) -> ChatTemplateError:
    return ChatTemplateError(
        "the template strips the reasoning of earlier turns, which the policy wrote: " + excerpt(text, position)
    )
