"""Questions from ToolQA's files, or made from the table after the same templates."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from midcourse.environments.base import Evidence, Task
from midcourse.environments.records import read_records
from midcourse.environments.toolqa.answers import answer_matches
from midcourse.environments.toolqa.table import PriceTable
from midcourse.environments.toolqa.templates import TEMPLATES, Template, template_of
from midcourse.errors import DataError

FIELDS = ("qid", "question", "answer")
MAX_DRAWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with what its reward knows."""

    task_id: str
    text: str
    reference: str = field(repr=False)
    template: Template | None  # None: none of ToolQA's
    derived: str | None = field(repr=False)  # what the table gives; None where it cannot be told

    @property
    def is_reference_wrong(self) -> bool:
        """Whether the table says otherwise than the reference, which decides all the same."""
        return self.derived is not None and not self.accepts(self.derived)

    def accepts(self, answer: str) -> bool:
        """Return whether an answer is right by the reference."""
        return answer_matches(
            answer, self.reference, decimals=None if self.template is None else self.template.decimals
        )

    def task(self, split: str) -> Task:
        """Return the task as a rollout gets it."""
        tags = ["other"] if self.template is None else [self.template.level, f"kind:{self.template.name}"]
        if self.derived is not None:
            tags.append("reference:wrong" if self.is_reference_wrong else "reference:right")
        # The number alone is as telling as the number with its unit.
        private = dict.fromkeys((self.reference, self.reference.removesuffix("%").removesuffix(" USD")))
        return Task(
            task_id=self.task_id,
            split=split,
            query=self.text,
            tags=tuple(tags),
            evidence=Evidence(
                text=f"Reference answer: {self.reference}",
                private_values=tuple(private),
                facts={
                    "answer": self.reference,
                    "derived": self.derived,
                    "kind": None if self.template is None else self.template.name,
                },
            ),
        )


def read_questions(path: Path, table: PriceTable, *, sha256: str | None = None) -> list[Question]:
    """Return the questions of a file, in its order.

    Raises:
        DataError: the file cannot be read, has another digest, holds no question, or a record is none.
    """
    questions: dict[str, Question] = {}
    for where, record in read_records(path, sha256=sha256):
        question = _question(where, record, table)
        if question.task_id in questions:
            raise DataError(f"{where}: an earlier record has the same qid, {question.task_id}")
        questions[question.task_id] = question
    if not questions:
        raise DataError(f"{path} holds no question")
    return list(questions.values())


def _question(where: str, record: Mapping[str, Any], table: PriceTable) -> Question:
    for name in FIELDS:
        value = record.get(name)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}, field {name!r}: expected text, got {str(value)[:80]!r}")
    text, reference = record["question"].strip(), record["answer"].strip()
    template, derived = None, None
    if (found := template_of(text)) is not None:
        template, dates = found
        rows = template.rows(table, dates)
        derived = template.answer(rows) if rows else None
    return Question(task_id=record["qid"], text=text, reference=reference, template=template, derived=derived)


def make_questions(
    table: PriceTable, count: int, *, level: Literal["easy", "hard", "both"], seed: int, taken: Collection[str]
) -> list[Question]:
    """Return questions with references from the table, as evenly over the templates as `count` allows.

    Days are drawn as ToolQA draws them: the first uniformly, the last uniformly behind it. Differs from ToolQA: in two
    of its templates the first is always the table's first day.

    Args:
        table: what is asked about.
        count: how many.
        level: from which templates.
        seed: of the draws.
        taken: texts of questions that must not be asked again.

    Raises:
        DataError: the table is too small for so many different questions.
    """
    templates = [template for template in TEMPLATES if level in (template.level, "both")]
    draws = random.Random(f"toolqa:{seed}")
    asked = set(taken)
    questions = []
    for number in range(count):
        template = templates[number % len(templates)]
        for _ in range(MAX_DRAWS):
            dates = _draw_dates(table, template, draws)
            text = template.text.format(*dates)
            if text not in asked:
                break
        else:
            raise DataError(f"the table of {len(table.days)} days gives no {count} different questions")
        asked.add(text)
        answer = template.answer(template.rows(table, dates))
        questions.append(
            Question(
                task_id=f"made-{template.level}-coffee-{seed}-{number:04d}",
                text=text,
                reference=answer,
                template=template,
                derived=answer,
            )
        )
    return questions


def _draw_dates(table: PriceTable, template: Template, draws: random.Random) -> Sequence[str]:
    if template.span == "day":
        return (draws.choice(table.days).date,)
    if template.span == "day_before":
        return (draws.choice(table.days[1:]).date,)
    first = draws.randrange(len(table.days) - 1)
    last = draws.randrange(first + 1, len(table.days))
    return table.days[first].date, table.days[last].date
