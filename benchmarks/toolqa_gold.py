"""Does ToolQA-Coffee's environment accept what follows from the table, and nothing else? Prints one JSON object.

    python benchmarks/toolqa_gold.py FOLDER

FOLDER holds coffee-easy.jsonl, coffee-hard.jsonl and coffee.csv (docs/toolqa.md says where they are from). A program of
its kind answers every question in python_interpreter, and what it shows is given as the answer, not rounded, in an
episode of the question's own. (All programs run in one episode: starting interpreters would take most of the time.)
Ten references are known to be wrong: there a second program does what the generator did. Programs of other readings of
the text are played as well, and answers that are wrong for sure are compared with the references.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from midcourse.environments.base import Task
from midcourse.environments.toolqa import QuestionSet, ToolQAConfig, ToolQAEnvironment
from midcourse.environments.toolqa.answers import answer_matches
from midcourse.environments.toolqa.templates import TEMPLATES, Template
from midcourse.types import AssistantTurn, ToolCall

QUESTIONS = ("coffee-easy.jsonl", "coffee-hard.jsonl")
TABLE = "coffee.csv"
PERIOD = "days = df[(df.Date >= '{0}') & (df.Date <= '{1}')]\n"
DAY = "day = df[df.Date == '{0}'].iloc[0]\n"
PROGRAMS: Mapping[str, str] = {
    "open": DAY + "day.Open",
    "low": DAY + "day.Low",
    "high": DAY + "day.High",
    "close": DAY + "day.Close",
    "volume": DAY + "day.Volume",
    "day_change_percent": DAY + "(day.Close - day.Open) / day.Open * 100",
    "bearish_or_bullish": DAY + "print('bullish' if day.Close > day.Open else 'bearish')",
    "day_range": DAY + "day.High - day.Low",
    "highest": PERIOD + "days.High.max()",
    "lowest": PERIOD + "days.Low.min()",
    "average_price": PERIOD + "days.Close.mean()",
    "change": PERIOD + "days.Close.iloc[-1] - days.Open.iloc[0]",
    "change_from_day_before_percent": "df.set_index('Date').Close.pct_change()['{0}'] * 100",
    "date_of_greatest_range": PERIOD + "print(days.Date[(days.High - days.Low).idxmax()])",
    "average_volume": PERIOD + "days.Volume.mean()",
    "date_of_greatest_rise": PERIOD + "print(days.Date[days.Close.diff().idxmax()])",
    "number_of_rises": PERIOD + "(days.Close.diff() > 0).sum()",
    "increase_percent": PERIOD + "(days.Close.iloc[-1] - days.Open.iloc[0]) / days.Open.iloc[0] * 100",
    "range": PERIOD + "days.High.max() - days.Low.min()",
    "number_of_bullish_days": PERIOD + "(days.Close > days.Open).sum()",
    "average_day_change_percent": PERIOD + "((days.Close - days.Open) / days.Open * 100).mean()",
}
GENERATORS_OWN: Mapping[str, str] = {"range": PERIOD + "max(days.High.max(), 0) - min(days.Low.min(), 0)"}
"""What ToolQA's generator computes where that is not what the question asks."""
OTHER_READINGS: Mapping[str, str] = {
    "change": PERIOD + "days.Close.iloc[-1] - days.Close.iloc[0]",
    "increase_percent": PERIOD + "(days.Close.iloc[-1] / days.Close.iloc[0] - 1) * 100",
    "average_day_change_percent": PERIOD + "(days.Close.pct_change() * 100).mean()",
    "average_price": PERIOD + "((days.High + days.Low) / 2).mean()",
    "date_of_greatest_rise": PERIOD + "print(days.Date[days.Close.pct_change().idxmax()])",
}
"""What the words may mean as well."""
PROGRAMS_BY_NAME: Mapping[str, Mapping[str, str]] = {
    "by_its_program": PROGRAMS,
    "by_the_generators_formula": GENERATORS_OWN,
    "by_another_reading": OTHER_READINGS,
}
Shown = Mapping[tuple[str, str], str]  # (name of the programs, task) -> what the program showed


def run_all(environment: ToolQAEnvironment, task: Task, programs: Sequence[str]) -> list[str]:
    """Return what each program shows, run in one turn of one episode."""
    episode = environment.start(task, seed=0)
    try:
        calls = tuple(ToolCall("python_interpreter", {"code": program}) for program in programs)
        results = episode.act(AssistantTurn(tool_calls=calls)).results
    finally:
        episode.close()
    for program, result in zip(programs, results, strict=True):
        if result.is_error:
            raise RuntimeError(f"{program}\n{result.content}")
    return [result.content for result in results]


def reward(environment: ToolQAEnvironment, task: Task, answer: str) -> float:
    """Return what an episode is worth that gives this answer."""
    episode = environment.start(task, seed=0)
    try:
        episode.act(AssistantTurn(tool_calls=(ToolCall("answer_action", {"answer": answer}),)))
        return episode.score()
    finally:
        episode.close()


def wrong_answers(task: Task, others: Sequence[Task]) -> Iterator[str]:
    """Yield answers that are wrong: other references of the same kind, numbers next to it, another form, nothing."""
    reference = task.evidence.facts["answer"]
    for other in others:
        given = other.evidence.facts["answer"]
        if other.evidence.facts["kind"] == task.evidence.facts["kind"] and plain(given) != plain(reference):
            yield given
    yield from ("", "unknown", f"{reference} or 12345.5", f"not {reference}", "nan", "-1e99")
    value = plain(reference)
    if isinstance(value, str):
        yield f"{reference}1"
        return
    number = reference.removesuffix("%").removesuffix(" USD")
    step = 10.0 ** -len(number.partition(".")[2])  # one in the last digit
    yield from (str(value + step), str(value - step), str(value * 10 + 1), number.replace(".", "") + "7")
    if value:
        yield str(-value)
        yield str(value / 100 if reference.endswith("%") else value * 1000)
    if not reference.endswith("%"):
        yield f"{number}%"


def plain(reference: str) -> float | str:
    """Return a reference as a number where it is one: -0.0% is 0.0%."""
    try:
        return float(reference.removesuffix("%").removesuffix(" USD"))
    except ValueError:
        return reference


def check_kind(
    environment: ToolQAEnvironment, template: Template, tasks: Sequence[Task], shown: Shown
) -> dict[str, Any]:
    """Return what came of all questions of one kind, given what each program showed for each question."""
    found: dict[str, Any] = {"tasks": len(tasks)}
    for name, programs in PROGRAMS_BY_NAME.items():
        if template.name in programs:
            found[name] = sum(reward(environment, task, shown[name, task.task_id]) == 1.0 for task in tasks)
    wrong = [(task, answer) for task in tasks for answer in wrong_answers(task, tasks)]
    fooled = [
        (task.task_id, answer)
        for task, answer in wrong
        if answer_matches(answer, task.evidence.facts["answer"], decimals=template.decimals)
    ]
    return found | {"wrong_answers_tried": len(wrong), "wrong_answers_accepted": fooled}


def check(environment: ToolQAEnvironment) -> dict[str, Any]:
    """Return what came of all questions, by kind and together, with and without those whose reference is wrong."""
    by_kind: dict[str, list[Task]] = {template.name: [] for template in TEMPLATES}
    for task in environment.tasks("test"):
        by_kind[task.evidence.facts["kind"]].append(task)
    programs = {
        (name, task.task_id): sources[template.name].format(*(template.dates(task.query) or ()))
        for name, sources in PROGRAMS_BY_NAME.items()
        for template in TEMPLATES
        if template.name in sources
        for task in by_kind[template.name]
    }
    tasks = environment.tasks("test")
    shown = dict(zip(programs, run_all(environment, tasks[0], list(programs.values())), strict=True))
    kinds = {template.name: check_kind(environment, template, by_kind[template.name], shown) for template in TEMPLATES}
    wrong = {task.task_id: task for task in tasks if "reference:wrong" in task.tags}
    is_accepted = {
        task.task_id: reward(environment, task, shown["by_its_program", task.task_id]) == 1.0 for task in tasks
    }
    return {
        "tasks": len(tasks),
        "accepted": sum(is_accepted.values()),
        "tasks_without_wrong_references": len(tasks) - len(wrong),
        "accepted_without_wrong_references": sum(is_accepted[name] for name in is_accepted if name not in wrong),
        "wrong_references": {
            name: {
                "reference": task.evidence.facts["answer"],
                "derived": shown["by_its_program", name],
                "accepted_by_the_generators_formula": reward(
                    environment, task, shown["by_the_generators_formula", name]
                )
                == 1.0,
            }
            for name, task in wrong.items()
        },
        "wrong_answers_tried": sum(found["wrong_answers_tried"] for found in kinds.values()),
        "wrong_answers_accepted": sum(len(found["wrong_answers_accepted"]) for found in kinds.values()),
        "kinds": kinds,
    }


def time_calls(environment: ToolQAEnvironment, task: Task, *, episodes: int = 3) -> dict[str, float]:
    """Return the median milliseconds of an episode's first call, which starts its interpreter, and of a later one."""
    first, later = [], []
    for _ in range(episodes):
        episode = environment.start(task, seed=0)
        for seconds in (first, later):
            began = time.perf_counter()
            episode.act(AssistantTurn(tool_calls=(ToolCall("python_interpreter", {"code": "df.Close.mean()"}),)))
            seconds.append(time.perf_counter() - began)
        episode.close()
    return {
        "first_call": round(1000 * statistics.median(first), 1),
        "later_call": round(1000 * statistics.median(later), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    for name in (*QUESTIONS, TABLE):
        if not (options.folder / name).is_file():
            sys.exit(f"{options.folder / name} is not there")
    environment = ToolQAConfig(
        table=str(options.folder / TABLE),
        test=QuestionSet(paths=tuple(str(options.folder / name) for name in QUESTIONS)),
    ).build()
    found = check(environment)
    found["median_milliseconds"] = time_calls(environment, environment.tasks("test")[0])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
