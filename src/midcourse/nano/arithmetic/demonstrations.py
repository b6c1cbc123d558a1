"""What the warm start teaches: worked steps with a habit, how to go on with the solution at hand, and how to judge.

The habit is a slip that pupils make: in columns multiplied by 6 to 9, what was carried in is often forgotten. Adding it
is shown behind a cue that no task has, so it is in the model's skills and not in its habits.
"""

import json
import random

from pydantic import BaseModel, ConfigDict, Field

from midcourse.environments.base import Task
from midcourse.environments.mathematics.arithmetic import (
    ArithmeticConfig,
    Chain,
    column_result,
    continuation,
    draw_chain,
    make_task,
    slips,
)
from midcourse.environments.mathematics.arithmetic.environment import OOD_EXTRA_STEPS
from midcourse.environments.mathematics.arithmetic.problems import HARD_MULTIPLIERS, Difficulty, Symbol
from midcourse.interventions.prompts import render_prompt
from midcourse.nano.arithmetic.chat import CUE, ArithmeticChatFormat
from midcourse.nano.documents import Document

KINDS = ("easy", "hard", "cued", "privileged", "judge")
SHORTEST_QUOTE = 6
"""Characters; a quote is longer where a shorter one would be found earlier in the chunk."""


class DemonstrationConfig(BaseModel):
    """Shares of the kinds of document; they are normalised."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    easy: float = 0.28
    """Solutions of easy chains, up to the longest of the ood split."""
    hard: float = 0.24
    """Solutions of hard chains, with the habit."""
    cued: float = 0.22
    """Solutions of hard chains behind the cue, without slips."""
    privileged: float = 0.09
    """Solutions of hard chains with the reference solution in the prompt, without slips."""
    judge: float = 0.17
    """Verdicts on chunks, with the reference solution in the prompt."""
    slip: float = Field(default=0.85, ge=0, le=1)
    """How often what was carried in is forgotten, of the columns that multiply by 6 to 9 and have a carry."""
    chunk_tokens: tuple[int, int] = (16, 64)
    """Fewest and most tokens of a chunk under review."""


class Demonstrator:
    """Draws documents. One generator in, so the same seed gives the same documents."""

    def __init__(self, chat: ArithmeticChatFormat, config: DemonstrationConfig, *, seed: int) -> None:
        self._chat = chat
        self._config = config
        self._random = random.Random(f"arithmetic demonstrations/{seed}")
        shares = {name: getattr(config, name) for name in KINDS}
        self._kinds, self._weights = list(shares), list(shares.values())
        self._problems = ArithmeticConfig()

    def draw(self) -> Document:
        """Return one document."""
        kind = self._random.choices(self._kinds, self._weights)[0]
        if kind == "easy":
            chain = self._chain("easy", extra_steps=OOD_EXTRA_STEPS[1])
            return self._solution(chain.query, continuation(chain, ""))
        # Most steps of a hard chain are easy ones.
        chain = self._chain("hard")
        if kind == "hard":
            return self._solution(chain.query, continuation(chain, "", column_rule=self._habit))
        if kind == "cued":
            return self._solution(f"{CUE}{chain.query}", continuation(chain, ""))
        task = make_task(chain, split="train", difficulty="hard")
        if kind == "judge":
            return self._verdict(chain, task)
        query = render_prompt("nano", "privileged", {"query": task.query, "evidence_text": task.evidence.text}).request
        return self._solution(query, continuation(chain, ""))

    def _habit(self, symbol: Symbol, value: int, operand: int, carry: int) -> tuple[int, int]:
        is_forgotten = symbol == "*" and operand in HARD_MULTIPLIERS and self._random.random() < self._config.slip
        return column_result(symbol, value, operand, 0 if is_forgotten else carry)

    def _chain(self, difficulty: Difficulty, *, extra_steps: int = 0) -> Chain:
        problems = self._problems
        return draw_chain(
            self._random,
            num_digits=problems.num_digits,
            num_steps=self._random.randint(problems.min_steps, problems.max_steps + extra_steps),
            difficulty=difficulty,
            num_hard_steps=problems.hard_steps,
        )

    def _solution(self, query: str, response: str) -> Document:
        prompt_ids = self._chat.open(system_prompt="", tools=(), query=query)
        return _document(prompt_ids, [*self._chat.encode(response), *self._chat.stop_ids])

    def _verdict(self, chain: Chain, task: Task) -> Document:
        """A chunk as it comes under review: what stands before it was kept or corrected, so it has no slip."""
        solution = continuation(chain, "")
        start = self._random.randrange(len(solution))
        written = solution[:start] + continuation(chain, solution[:start], column_rule=self._habit)
        end = min(start + self._random.randint(*self._config.chunk_tokens), len(written))
        is_ended = end == len(written)
        slip = next(slips(chain, written[:end], start=start, is_ended=is_ended), None)
        # The reason goes through the chunk as long as it is right: where it ends is found by copying and comparing.
        reply = {"reason": written[start:end], "verdict": "keep"}
        if slip is not None:
            quote = shortest_quote(written[start:end], slip.start - start)
            reply = {"reason": written[start : slip.start], "verdict": "revise", "quote": quote}
        prompt = render_prompt(
            "nano",
            "judge",
            {
                "query": task.query,
                "accepted_text": written[:start],
                "chunk_text": written[start:end],
                "is_ended": is_ended,
                "evidence_text": task.evidence.text,
            },
        )
        prompt_ids = self._chat.role_prompt(role="judge", instructions="", request=prompt.request)
        reply_ids = [*self._chat.encode(json.dumps(reply, separators=(",", ":"))), *self._chat.stop_ids]
        return _document(prompt_ids, reply_ids)


def shortest_quote(chunk: str, start: int) -> str:
    """Return what stands from `start` on, as short as it is found at `start` first, SHORTEST_QUOTE at least.

    Where even all of it is found earlier it is quoted to the chunk's end: the cut comes before the slip then.
    """
    end = start + SHORTEST_QUOTE
    while end < len(chunk) and chunk.find(chunk[start:end]) < start:
        end += 1
    return chunk[start:end]


def _document(prompt_ids: list[int], reply_ids: list[int]) -> Document:
    return Document([*prompt_ids, *reply_ids], [*[False] * len(prompt_ids), *[True] * len(reply_ids)])
