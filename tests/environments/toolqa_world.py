"""A price table of five days, questions about it, and a stand-in for pandas that starts at once."""

import json
import threading
from pathlib import Path
from typing import Any

from midcourse.environments.base import Episode, Observation
from midcourse.environments.sandbox import SandboxConfig
from midcourse.environments.toolqa.interpreter import Workshop
from midcourse.environments.toolqa.table import PriceTable
from midcourse.types import AssistantTurn, ToolCall

PRICES = """Date,Open,High,Low,Close,Volume,Currency
2020-01-02,100.0,110.0,90.0,105.0,10,USD
2020-01-03,104.0,108.0,100.0,104.0,20,USD
2020-01-06,106.0,125.5,101.0,120.0,40,USD
2020-01-07,121.0,122.0,95.0,96.0,5,USD
2020-01-08,96.0,99.0,80.0,99.0,25,USD
"""
EASY = {"qid": "easy-1", "question": "What was the opening price of coffee on 2020-01-03?", "answer": "104.0"}
HARD = {
    "qid": "hard-1",
    "question": "What was the average coffee price from 2020-01-02 to 2020-01-08?",
    "answer": "104.8 USD",
}
WRONG = {
    "qid": "hard-2",
    "question": "What was the coffee price range from 2020-01-02 to 2020-01-08?",
    "answer": "125.5 USD",  # as ToolQA's generator has it: the lowest price begins at 0
}
STAND_IN = {
    "pandas.py": "def read_csv(file): return file.read().split()\ndef set_option(*arguments): pass\n",
    "numpy.py": "class random:\n    seed = staticmethod(lambda seed: None)\ndef set_printoptions(**settings): pass\n",
}


def price_file(folder: Path, text: str = PRICES) -> Path:
    path = folder / "prices.csv"
    path.write_text(text)
    return path


def prices(folder: Path) -> PriceTable:
    return PriceTable.read(price_file(folder))


def question_file(folder: Path, *records: Any, name: str = "questions.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def quick_workshop(folder: Path, *, output_characters: int = 200, places: int = 1, **settings: Any) -> Workshop:
    """Return a workshop whose pandas is a stand-in; `df` is the list of the table's lines there.

    Raises:
        ConfigError: this machine has no working sandbox of that kind.
    """
    packages = folder / "packages"
    packages.mkdir()
    for name, source in STAND_IN.items():
        (packages / name).write_text(source)
    sandbox = SandboxConfig(readable=(str(packages),), start_seconds=120.0, **settings).build()
    return Workshop(
        sandbox=sandbox,
        packages=(str(packages),),
        table=PRICES,
        output_characters=output_characters,
        places=threading.BoundedSemaphore(places),
    )


def call(name: str, **arguments: Any) -> AssistantTurn:
    return AssistantTurn(tool_calls=(ToolCall(name, arguments),))


def python(episode: Episode, code: str) -> Observation:
    return episode.act(call("python_interpreter", code=code))


def answer(episode: Episode, given: Any) -> Observation:
    return episode.act(call("answer_action", answer=given))
