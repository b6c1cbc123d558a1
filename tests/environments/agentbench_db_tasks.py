"""Tasks in AgentBench's form for tests, made up."""

import json
from pathlib import Path
from typing import Any

from midcourse.environments.agentbench_db import AgentBenchDBConfig, AgentBenchDBEnvironment, TaskFile
from midcourse.environments.agentbench_db.database import Limits
from midcourse.environments.agentbench_db.tables import Table
from midcourse.environments.base import Episode, Observation
from midcourse.types import AssistantTurn, ToolCall

LIMITS = Limits(statement_seconds=5.0, result_characters=800)
CITIES = Table(
    name="City list", columns=("Name", "Mayor's name"), rows=(("Oslo", "Ann"), ("Bergen", "Zoë"), ("Oslo", "b"))
)


def table(name: str = "City list") -> dict[str, Any]:
    return {
        "table_name": name,
        "table_info": {
            "columns": [{"name": "Name", "type": "TEXT"}, {"name": "Mayor's name", "type": "INT"}],
            "rows": [["Oslo", "Ann"], ["Bergen", "Zoë"], ["Oslo", "b"]],
        },
    }


QUESTION = {
    "description": "Who is the mayor of Bergen?",
    "add_description": "The name of this table is City list.",
    "type": ["other"],
    "label": ["Zoë"],
    "table": table(),
}
UPDATE = {
    "description": "Ann is now called Anna.",
    "type": ["UPDATE"],
    "label": ["UPDATE `City list` SET `Mayor's name` = 'Anna' WHERE `Mayor's name` = 'ann'"],
    # As MariaDB computes it after that statement.
    "answer_md5": "[('5a2a54c13792467810d9f5a3a8d15ce5',)]",
    "table": table(),
}
INSERT = {
    "description": "Add Bodo with mayor Eve.",
    "type": ["INSERT"],
    "label": ["INSERT INTO `City list` VALUES ('Bodo', 'Eve')"],
    "table": table(),
}
DELETE = {
    "description": "Take out Bergen.",
    "type": ["DELETE"],
    "label": ["DELETE FROM `City list` WHERE Name = 'Bergen'"],
    "table": table(),
}


def write_tasks(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


def world(folder: Path, *records: dict[str, Any], **settings: Any) -> AgentBenchDBEnvironment:
    return AgentBenchDBConfig(train=TaskFile(path=write_tasks(folder, *records)), **settings).build()


def start(environment: AgentBenchDBEnvironment, position: int = 0) -> Any:
    return environment.start(environment.tasks("train")[position], seed=0)


def sql(episode: Episode, *statements: str) -> Observation:
    return episode.act(AssistantTurn(tool_calls=[ToolCall("sql_query", {"query": text}) for text in statements]))


def answer(episode: Episode, value: Any) -> Observation:
    return episode.act(AssistantTurn(tool_calls=[ToolCall("answer_action", {"answer": value})]))
