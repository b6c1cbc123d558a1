"""What the warm start teaches: episodes with a habit, and the skill that the habit is against.

The habit is to guess what a word means: a word of the request that is no table or column is taken for any of the
tables, or of the columns that were listed, each as likely, and the episode goes on as if it were right. The skill is to
ask the guide first. It is shown behind the cue word CHECK, and now and then without it: in the model at low
probability, and not in its habits.
"""

import random
from collections.abc import Sequence
from contextlib import closing
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from midcourse.environments.agentbench_db.episode import SqliteEpisode
from midcourse.environments.table_world.environment import open_database
from midcourse.environments.table_world.requests import MAX_TRAPS, Request, draw_request
from midcourse.environments.table_world.script import play
from midcourse.nano.documents import Document
from midcourse.nano.table_world.chat import CHECK, TableChatFormat
from midcourse.types import AssistantTurn, ToolCall

DocumentKind = Literal["easy", "hard", "cued"]
DOCUMENT_KINDS: Sequence[DocumentKind] = ("easy", "hard", "cued")


class DemonstrationConfig(BaseModel):
    """Shares of the kinds of document; they are normalised."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    easy: float = 0.3
    """Episodes whose requests have names alone."""
    hard: float = 0.4
    """Episodes with words of the guide, one to three, and the habit."""
    cued: float = 0.3
    """Episodes with the cue, in which every word is looked up; a quarter of them have none."""
    uncued_skill: float = Field(default=0.15, ge=0, le=1)
    """How often a word is looked up without the cue: how likely the policy is to ask the guide unaided."""


class Demonstrator:
    """Draws documents, none with a schema of the ood split. One generator in, so one seed gives the same documents."""

    def __init__(self, chat: TableChatFormat, config: DemonstrationConfig, *, seed: int) -> None:
        self._chat = chat
        self._config = config
        self._random = random.Random(f"table demonstrations/{seed}")
        self._weights = [getattr(config, kind) for kind in DOCUMENT_KINDS]

    def draw(self) -> Document:
        """Return one document."""
        return self.document(self._random.choices(DOCUMENT_KINDS, self._weights)[0])

    def document(self, kind: DocumentKind) -> Document:
        """Return a document of one kind."""
        has_traps = kind == "hard" or (kind == "cued" and self._random.random() < 0.75)
        request = draw_request(self._random, num_traps=self._random.randint(1, MAX_TRAPS) if has_traps else 0)
        return self._played(request, is_cued=kind == "cued")

    def _played(self, request: Request, *, is_cued: bool) -> Document:
        problem = request.problem()
        query = f"{CHECK} {problem.query}" if is_cued else problem.query
        token_ids = self._chat.open(system_prompt="", tools=(), query=query)
        learnt = [False] * len(token_ids)

        def add(ids: Sequence[int], *, is_learnt: bool) -> None:
            token_ids.extend(ids)
            learnt.extend([is_learnt] * len(ids))

        def looks_up() -> bool:
            return is_cued or self._random.random() < self._config.uncued_skill

        with closing(
            SqliteEpisode(problem, database=open_database(problem.tables), wanted_state=lambda: "")
        ) as episode:

            def run(statement: str) -> str:
                turn = AssistantTurn(tool_calls=(ToolCall("sql_query", {"query": statement}),))
                add(self._chat.render(turn), is_learnt=True)
                results = episode.act(turn).results
                add(self._chat.observe(results), is_learnt=False)
                return results[0].content

            def answer(value: str) -> None:
                turn = AssistantTurn(tool_calls=(ToolCall("answer_action", {"answer": value}),))
                add(self._chat.render(turn), is_learnt=True)

            play(request, run=run, answer=answer, looks_up=looks_up, choose=self._random.choice)
        return Document(token_ids, learnt)
