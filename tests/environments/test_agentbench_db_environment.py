"""AgentBench-DB as an environment: settings, rewards, forks, and its place in the rollout loop."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from tests.environments.agentbench_db_tasks import (
    DELETE,
    INSERT,
    LIMITS,
    QUESTION,
    UPDATE,
    answer,
    sql,
    start,
    table,
    world,
    write_tasks,
)
from tests.environments.code_data import official

from midcourse.config import load_config, resolved_toml
from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments import ENVIRONMENTS
from midcourse.environments.agentbench_db import AgentBenchDBConfig, AgentBenchDBEnvironment, ServerConfig, TaskFile
from midcourse.environments.agentbench_db.answers import answer_matches
from midcourse.environments.agentbench_db.sqlite import SqliteDatabase
from midcourse.environments.base import ForkableEpisode
from midcourse.environments.replay import ReplayingEpisode, replayed
from midcourse.errors import ConfigError, EnvironmentFault
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, FailureKind, ToolCall, Turn

COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"

# Settings


def test_it_is_registered_and_built_from_settings(tmp_path):
    assert ENVIRONMENTS["agentbench_db"] is AgentBenchDBConfig
    overrides = [
        "environment.name=agentbench_db",
        f'environment.train.path="{write_tasks(tmp_path, QUESTION)}"',
        "environment.statement_seconds=2.5",
        "policy.chat=chatml",
    ]
    config = load_config(None, overrides)
    (tmp_path / "run.toml").write_text(resolved_toml(config))
    assert load_config(tmp_path / "run.toml").environment == config.environment
    environment = config.environment.build()
    assert [tool.name for tool in environment.tools] == ["sql_query", "answer_action"]
    assert "SQLite" in environment.system_prompt
    assert len(environment.tasks("train")) == 1
    with pytest.raises(ConfigError, match=r"environment\.test\.path must name a file"):
        environment.tasks("test")
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        environment.tasks("dev")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ([], "train.path or environment.test.path must name a file"),
        (["environment.backend=server"], r'backend "server" needs environment\.server\.url'),
        (['environment.mariadb.folder="x"'], r'environment\.mariadb is not used with backend "sqlite"'),
        (['environment.server.url="mysql://a@b"'], r'environment\.server is not used with backend "sqlite"'),
        (["environment.backend=server", 'environment.server.url="mysql://a:secret@b"'], "leave it out"),
        (["environment.backend=server", 'environment.server.url="postgres://a@b"'], "expected mysql://USER@HOST:PORT"),
        (["environment.backend=server", 'environment.server.url="mysql://b"'], "expected mysql://USER@HOST:PORT"),
        (["environment.backend=server", 'environment.server.url="mysql://a@b/d"'], "expected mysql://USER@HOST:PORT"),
        (["environment.backend=server", 'environment.server.url="mysql://a@b:x"'], "expected mysql://USER@HOST:PORT"),
        (["environment.statement_seconds=0"], "statement_seconds"),
        (["environment.train.sha256=0"], "sha256"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        load_config(None, ["environment.name=agentbench_db", *settings]).environment.build()


def test_a_server_is_found_by_its_url_and_the_password_by_its_variable(monkeypatch):
    pytest.importorskip("pymysql", reason="servers need PyMySQL")
    monkeypatch.setenv("DB", "se:cret")
    address = ServerConfig(url="mysql://us%40er@db.example:3307", password_variable="DB").build().address()
    assert (address.user, address.password, address.host, address.port) == ("us@er", "se:cret", "db.example", 3307)
    assert "se:cret" not in repr(address)
    address = ServerConfig(url="mariadb://root@localhost?unix_socket=/run/db.sock").build().address()
    assert (address.unix_socket, address.port, address.password) == ("/run/db.sock", 3306, "")


def test_without_the_driver_sqlite_works_and_a_server_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    assert len(world(tmp_path, QUESTION).tasks("train")) == 1
    with pytest.raises(ConfigError, match=r"need a driver: pip install -e '\.\[mysql\]'"):
        world(tmp_path, QUESTION, backend="mariadb")


# Rewards


def test_a_question_is_scored_by_its_answer(tmp_path):
    environment = world(tmp_path, QUESTION)
    episode = start(environment)
    seen = sql(episode, "SELECT `Mayor's name` FROM `City list` WHERE Name = 'bergen'")
    assert [result.content for result in seen.results] == ["[('Zoë',)]"]
    assert (seen.done, episode.score()) == (False, 0.0)
    assert answer(episode, "zoë").done
    assert episode.score() == 1.0
    wrong = start(environment)
    answer(wrong, "Ann")
    assert wrong.score() == 0.0


@pytest.mark.parametrize("record", [UPDATE, INSERT, DELETE])
@pytest.mark.parametrize("reference", ["recorded", "executed"])
def test_a_change_is_scored_by_the_state_it_leads_to(tmp_path, record, reference):
    environment = world(tmp_path, record, reference=reference)
    episode = start(environment)
    assert episode.score() == 0.0  # nothing was done yet
    sql(episode, record["label"][0])
    assert episode.score() == 1.0  # with no answer, too
    sql(episode, "INSERT INTO `City list` VALUES ('one', 'more')")
    assert episode.score() == 0.0
    sql(episode, "DELETE FROM `City list` WHERE Name = 'one'")
    answer(episode, "anything")
    assert episode.score() == 1.0


def test_another_statement_with_the_same_effect_is_right(tmp_path):
    episode = start(world(tmp_path, UPDATE))
    sql(
        episode,
        "DELETE FROM `City list` WHERE `Mayor's name` = 'Ann'",
        "INSERT INTO `City list` VALUES ('Oslo', 'Anna')",
    )
    assert episode.score() == 1.0


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE `City list`",
        "DELETE FROM `City list`",
        "ALTER TABLE `City list` RENAME COLUMN Name TO Nom",
        "CREATE TABLE other (a)",
    ],
)
def test_what_was_not_asked_for_is_worth_nothing_and_the_next_episode_starts_clean(tmp_path, statement):
    environment = world(tmp_path, UPDATE)
    episode = start(environment)
    sql(episode, statement)
    assert episode.score() == 0.0
    episode.close()
    fresh = start(environment)
    assert sql(fresh, "SELECT count(*), max(Name) FROM `City list`").results[0].content == "[(3, 'Oslo')]"


def test_a_reference_that_fails_or_does_nothing_is_the_tasks_fault(tmp_path):
    nothing = UPDATE | {"answer_md5": "", "label": ["UPDATE `City list` SET Name = 'x' WHERE Name = 'nowhere'"]}
    broken = UPDATE | {"answer_md5": "", "label": ["UPDATE nowhere SET a = 1"]}
    environment = world(tmp_path, nothing, broken)
    for position, reason in enumerate(("changes nothing", "cannot be run: no such table")):
        with pytest.raises(EnvironmentFault, match=reason):
            start(environment, position).score()


def test_the_recorded_hash_decides_unless_the_reference_is_to_be_executed(tmp_path):
    odd = UPDATE | {"label": ["UPDATE `City list` SET `Mayor's name` = 'Annika' WHERE `Mayor's name` = 'Ann'"]}
    for reference, right in (("recorded", "Anna"), ("executed", "Annika")):
        episode = start(world(tmp_path, odd, reference=reference))
        sql(episode, f"UPDATE `City list` SET `Mayor's name` = '{right}' WHERE `Mayor's name` = 'Ann'")
        assert episode.score() == 1.0


def test_all_tables_of_a_task_count(tmp_path):
    environment = world(tmp_path, INSERT | {"table": [table(), table("Other")]}, reference="executed")
    episode = start(environment)
    sql(episode, INSERT["label"][0])
    assert episode.score() == 1.0
    sql(episode, "DELETE FROM Other WHERE Name = 'Bergen'")
    assert episode.score() == 0.0


# Turns


def test_bad_calls_and_failing_statements_go_back_to_the_policy(tmp_path):
    episode = start(world(tmp_path, QUESTION))
    calls = (ToolCall("sql_query", {"query": "SELECT"}), ToolCall("nothing", {}), ToolCall("sql_query", {}))
    observation = episode.act(AssistantTurn(tool_calls=calls))
    assert [result.is_error for result in observation.results] == [True, True, True]
    assert [result.name for result in observation.results] == ["sql_query", "nothing", "sql_query"]
    assert observation.results[0].content == "Error: incomplete input"
    assert not observation.done


def test_nothing_runs_behind_the_answer_and_behind_the_last_turn(tmp_path):
    environment = world(tmp_path, UPDATE)
    episode = start(environment)
    calls = (ToolCall("answer_action", {"answer": "x"}), ToolCall("sql_query", {"query": UPDATE["label"][0]}))
    observation = episode.act(AssistantTurn(tool_calls=calls))
    assert (len(observation.results), observation.done) == (1, True)
    assert sql(episode, UPDATE["label"][0]).done
    assert episode.score() == 0.0
    long = start(environment)
    for _ in range(environment.max_turns):
        assert not sql(long, "SELECT 1").done
    assert sql(long, UPDATE["label"][0]).results == ()
    assert long.score() == 0.0


def test_a_turn_without_a_call_ends_the_episode_but_an_unreadable_one_does_not(tmp_path):
    episode = start(world(tmp_path, QUESTION))
    assert not episode.act(AssistantTurn(parse_error="no JSON")).done
    assert episode.act(AssistantTurn(content="Zoë")).done
    assert episode.score() == 0.0


# Forks


def test_an_episode_on_sqlite_forks_by_copying_and_its_replay_agrees(tmp_path):
    environment = world(tmp_path, UPDATE)
    episode = start(environment)
    assert isinstance(episode, ForkableEpisode)
    assert not isinstance(episode, ReplayingEpisode)
    statements = ["SELECT * FROM `City list`", "CREATE TABLE t (a)", "INSERT INTO t VALUES (1), (2)"]
    turns = [AssistantTurn(tool_calls=[ToolCall("sql_query", {"query": text})]) for text in statements]
    observations = [episode.act(turn) for turn in turns]
    own = episode.fork().fork()
    records = [
        Turn(start=0, end=0, message=turn, results=observation.results)
        for turn, observation in zip(turns, observations, strict=True)
    ]
    again = replayed(environment, environment.tasks("train")[0], seed=0, turns=records)
    episode.close()
    for twin in (own, again):
        assert sql(twin, "SELECT count(*) FROM t").results[0].content == "[(2,)]"
        sql(twin, UPDATE["label"][0])
        assert twin.score() == 1.0
        twin.close()


def test_a_fork_keeps_the_turns_that_are_left(tmp_path):
    environment = world(tmp_path, UPDATE)
    episode = start(environment)
    for _ in range(environment.max_turns - 1):
        sql(episode, "SELECT 1")
    twin = episode.fork()
    answer(episode, "x")
    assert not sql(twin, UPDATE["label"][0]).done
    assert (twin.score(), episode.score()) == (1.0, 0.0)
    assert sql(twin, "SELECT 1").done


def test_forks_are_played_in_threads_of_their_own(tmp_path):
    episode = start(world(tmp_path, UPDATE))
    sql(episode, "INSERT INTO `City list` VALUES ('one', 'more')")

    def play(twin) -> float:
        sql(twin, "DELETE FROM `City list` WHERE Name = 'one'", UPDATE["label"][0])
        return twin.score()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, [episode.fork() for _ in range(8)])) == [1.0] * 8
    assert episode.score() == 0.0


def test_a_replay_of_a_random_answer_is_refused(tmp_path):
    environment = world(tmp_path, QUESTION)
    turn = AssistantTurn(tool_calls=[ToolCall("sql_query", {"query": "SELECT hex(randomblob(16))"})])
    record = Turn(start=0, end=0, message=turn, results=start(environment).act(turn).results)
    episode = replayed(environment, environment.tasks("train")[0], seed=0, turns=[record])
    with pytest.raises(EnvironmentFault, match=r"cannot be forked by replay.*sql_query answered"):
        sql(episode, "SELECT 1")


# In the rollout loop


@dataclass
class CharacterChat:
    """A chat for scripts: token ids are code points, a turn is one call a line, `name argument`."""

    stop_ids: tuple[int, ...] = (0,)
    seen: list[str] = field(default_factory=list)

    def open(self, *, system_prompt, tools, query):
        return list(map(ord, query))

    def parse(self, token_ids, *, tools=()):
        lines = "".join(map(chr, token_ids)).rstrip("\0").split("\n")
        calls = [line.split(" ", 1) for line in lines]
        names = {"sql_query": "query", "answer_action": "answer"}
        return AssistantTurn(tool_calls=[ToolCall(name, {names[name]: text}) for name, text in calls])

    def observe(self, results):
        self.seen += [result.content for result in results]
        return list(map(ord, "\n".join(result.content for result in results)))


def roll(environment: AgentBenchDBEnvironment, *turns: str, timeout: float = 30.0, before_turn=lambda number: None):
    task = environment.tasks("train")[0]
    chat, remaining = CharacterChat(), list(turns)

    def write(prompt_ids, sampling):
        before_turn(len(turns) - len(remaining))
        return [*map(ord, remaining.pop(0)), 0]

    trajectory = asyncio.run(
        run_episode(
            task,
            engine=ScriptedEngine(write),
            chat=chat,  # type: ignore[arg-type]
            environment=environment,
            config=RolloutConfig(max_turn_tokens=4000, environment_timeout_seconds=timeout),
            key=RolloutKey(seed=0, update=0, task_id=task.task_id, attempt=0),
        )
    )
    return trajectory, chat.seen


def test_a_rollout_plays_it_from_prompt_to_reward(tmp_path):
    environment = world(tmp_path, QUESTION)
    trajectory, seen = roll(environment, "sql_query SELECT 1\nsql_query SELEC", "answer_action Zoë")
    assert (trajectory.reward, trajectory.failure) == (1.0, None)
    assert seen == ["[(1,)]", 'Error: near "SELEC": syntax error']


def test_a_statement_that_never_ends_is_told_and_the_rollout_goes_on(tmp_path):
    environment = world(tmp_path, UPDATE, statement_seconds=0.5)
    endless = f"sql_query {COUNT} SELECT count(*) FROM c"
    trajectory, seen = roll(environment, endless, f"sql_query {UPDATE['label'][0]}", "answer_action x")
    assert (trajectory.reward, trajectory.failure) == (1.0, None)
    assert seen[0] == "Error: the statement took longer than 0.5 s and was ended"


def test_a_turn_that_takes_longer_than_the_rollout_waits_is_a_timeout_and_the_next_is_clean(tmp_path):
    environment = world(tmp_path, UPDATE, statement_seconds=30.0)
    trajectory, _ = roll(environment, f"sql_query {COUNT} SELECT count(*) FROM c", timeout=1.0)
    assert (trajectory.reward, trajectory.failure) == (None, FailureKind.ENVIRONMENT_TIMEOUT)
    trajectory, _ = roll(environment, f"sql_query {UPDATE['label'][0]}", "answer_action x")
    assert trajectory.reward == 1.0


def test_a_database_that_goes_away_is_the_environments_failure_and_the_next_is_clean(tmp_path):
    made: list[SqliteDatabase] = []

    def open_database(tables):
        made.append(SqliteDatabase.with_tables(tables, LIMITS))
        return made[-1]

    problems = TaskFile(path=write_tasks(tmp_path, UPDATE)).read()
    environment = AgentBenchDBEnvironment({"train": problems}, open_database=open_database)

    def vanish(number: int) -> None:
        if number == 1:
            made[-1].close()

    change = f"sql_query {UPDATE['label'][0]}"
    trajectory, seen = roll(environment, change, "sql_query SELECT 1", before_turn=vanish)
    assert seen == ["ok, 1 row affected"]
    assert (trajectory.reward, trajectory.failure) == (None, FailureKind.ENVIRONMENT_ERROR)
    assert roll(environment, change, "answer_action x")[0].reward == 1.0


# The official tasks


@pytest.fixture(scope="module")
def standard():
    return AgentBenchDBConfig(test=TaskFile(path=official("agentbench_db/standard.jsonl"))).build()


def test_sqlite_leads_to_the_official_state_of_all_changes_but_one(standard):
    changes = [(place, task) for place, task in enumerate(standard.tasks("test")) if task.evidence.facts["statement"]]
    differing, worth = [], []
    for place, task in changes:
        episode = standard.start(task, seed=0)
        worth.append(episode.score())
        sql(episode, task.evidence.facts["statement"])
        differing += [place] if episode.score() != 1.0 else []
        episode.close()
    assert len(changes) == 200
    assert differing == [225]  # its hash is not what its statement does on any database
    assert worth == [0.0] * 200


def test_the_official_dev_file_loads_and_sqlite_leads_to_the_state_of_all_its_changes():
    environment = AgentBenchDBConfig(
        test=TaskFile(
            path=official("agentbench_db/dev.jsonl"),
            sha256="eb941c58a7a5651357b19e46aa05070f6cd5a7d83ce70cefd24aa3581e1e1130",
        )
    ).build()
    tasks = environment.tasks("test")
    questions = [task for task in tasks if "operation:select" in task.tags]
    assert (len(tasks), len(questions)) == (60, 20)
    for task in questions:
        values = task.evidence.facts["values"]
        assert answer_matches(list(values), values)
    for task in (task for task in tasks if task not in questions):
        episode = environment.start(task, seed=0)
        assert episode.score() == 0.0
        sql(episode, task.evidence.facts["statement"])
        assert episode.score() == 1.0, task.task_id
        episode.close()


def test_every_official_answer_is_accepted_and_no_other_tasks_answer(standard):
    labels = [task.evidence.facts["values"] for task in standard.tasks("test") if task.evidence.facts["values"]]
    assert len(labels) == 100
    for label in labels:
        assert answer_matches(list(label), label)
        assert answer_matches(str([(value,) for value in label]), label)
        assert not answer_matches([*label, "12345.5"], label)
        wrong = [other for other in labels if not same(other, label)]
        assert len(wrong) > 80
        assert not any(answer_matches(list(other), label) for other in wrong)


def same(one, other) -> bool:
    """Whether two references are the same by the plainest reading; "none" and 0 are, as AgentBench has it."""

    def plain(values):
        return {
            0.0 if value == "none" else float(value) if value.replace(".", "").isdigit() else value for value in values
        }

    return plain(one) == plain(other)
