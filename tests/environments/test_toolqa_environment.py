"""ToolQA-Coffee as an environment: settings, rewards, forks, and its place in the rollout loop."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from tests.environments.code_data import official
from tests.environments.toolqa_world import (
    EASY,
    HARD,
    PRICES,
    WRONG,
    answer,
    call,
    price_file,
    prices,
    python,
    question_file,
    quick_workshop,
)

from midcourse.config import load_config, resolved_toml
from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments import ENVIRONMENTS
from midcourse.environments.base import ForkableEpisode
from midcourse.environments.toolqa import QuestionSet, ToolQAConfig, ToolQAEnvironment
from midcourse.environments.toolqa.guide import system_prompt
from midcourse.environments.toolqa.packages import pandas_packages
from midcourse.environments.toolqa.questions import read_questions
from midcourse.errors import ConfigError, DataError, ReplayMismatchError
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, FailureKind, ToolCall

# Settings


def test_it_is_registered_and_its_settings_survive_a_file(tmp_path):
    assert ENVIRONMENTS["toolqa"] is ToolQAConfig
    overrides = [
        "environment.name=toolqa",
        f'environment.table="{price_file(tmp_path)}"',
        f'environment.test.paths=["{question_file(tmp_path, EASY, HARD)}"]',
        "environment.train.made=5",
        "environment.sandbox.wall_seconds=3.5",
        "policy.chat=chatml",
    ]
    config = load_config(None, overrides)
    assert (config.environment.sandbox.wall_seconds, config.environment.sandbox.cpu_seconds) == (3.5, 60)
    (tmp_path / "run.toml").write_text(resolved_toml(config))
    assert load_config(tmp_path / "run.toml").environment == config.environment


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"table": ""}, ConfigError, "environment.table must name the CSV file"),
        ({"test": QuestionSet()}, ConfigError, "must have questions"),
        ({"table": "/absent.csv"}, DataError, "cannot be read"),
        ({"table_sha256": "0" * 64}, DataError, "has sha256"),
        ({"test": QuestionSet(paths=("/absent.jsonl",))}, DataError, "cannot be read"),
        ({"test": QuestionSet(made=20_000)}, DataError, "gives no 20000 different questions"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_starts(settings, error, reason, tmp_path):
    given = {"table": str(price_file(tmp_path)), "test": QuestionSet(made=1)} | settings
    with pytest.raises(error, match=reason):
        ToolQAConfig(**given).build()


def test_digests_are_one_a_file():
    with pytest.raises(ValueError, match="expected one for each of 1 paths"):
        QuestionSet(paths=("a",), sha256=("0" * 64, "1" * 64))


def test_a_split_takes_each_so_many_of_its_files_and_then_what_is_made(tmp_path):
    table = prices(tmp_path)
    records = [{**EASY, "qid": str(number)} for number in range(7)]
    path = str(question_file(tmp_path, *records))

    def chosen(**settings):
        questions = QuestionSet(paths=(path,), **settings)
        return [question.task_id for question in questions.chosen(questions.read(table), table, taken=())]

    assert chosen() == list("0123456")
    assert chosen(first=1, every=3) == ["1", "4"]
    assert chosen(first=1, every=3, count=1) == ["1"]
    assert chosen(every=2, count=3) == ["0", "2", "4"]
    assert chosen(first=6, made=1) == ["6", "made-hard-coffee-0-0000"]
    with pytest.raises(DataError, match="of 7 questions none is left from 7 on"):
        chosen(first=7)


def test_two_files_may_not_have_a_question_of_the_same_name(tmp_path):
    paths = tuple(str(question_file(tmp_path, EASY, name=name)) for name in ("a.jsonl", "b.jsonl"))
    with pytest.raises(DataError, match=r"b\.jsonl: an earlier file has the same qid, easy-1"):
        QuestionSet(paths=paths).read(prices(tmp_path))


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("midcourse.environments.toolqa.packages.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pandas is not installed: pip install .*\[toolqa\]"):
        pandas_packages()


# Episodes


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toolqa")
    try:
        workshop = quick_workshop(folder, output_characters=2000)
    except ConfigError as error:
        pytest.skip(str(error))
    table = prices(folder)
    questions = read_questions(question_file(folder, EASY, HARD, WRONG), table)
    return ToolQAEnvironment({"test": questions}, workshop=workshop, system_prompt=system_prompt(table))


def begin(world: ToolQAEnvironment, number: int = 0) -> ForkableEpisode:
    return world.start(world.tasks("test")[number], seed=0)


def test_splits_are_those_that_have_questions(world):
    assert [task.task_id for task in world.tasks("test")] == ["easy-1", "hard-1", "hard-2"]
    with pytest.raises(ConfigError, match=r"environment\.train must have paths or made"):
        world.tasks("train")
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        world.tasks("dev")


def test_the_policy_is_told_of_the_table_and_of_no_answer(world):
    assert "2020-01-02 to 2020-01-08" in world.system_prompt
    assert "6 turns" in world.system_prompt
    told = world.system_prompt + "".join(task.query for task in world.tasks("test"))
    assert "104" not in told


@pytest.mark.parametrize(
    ("number", "given", "reward"),
    [(0, "104", 1.0), (0, 104.0, 1.0), (0, "104.05", 0.0), (1, "$104.84", 1.0), (2, "45.5", 0.0), (2, "125.5", 1.0)],
)
def test_an_answer_is_scored_by_the_reference_even_a_wrong_one(number, given, reward, world):
    episode = begin(world, number)
    observation = answer(episode, given)
    assert (observation.done, [result.content for result in observation.results]) == (True, ["ok"])
    assert episode.score() == reward
    episode.close()


def test_code_runs_between_answers_and_nothing_runs_after_one(world):
    episode = begin(world)
    try:
        both = AssistantTurn(
            tool_calls=(
                ToolCall("python_interpreter", {"code": "x = len(df)"}),
                ToolCall("python_interpreter", {"code": "x"}),
                ToolCall("answer_action", {"answer": "104"}),
                ToolCall("python_interpreter", {"code": "x"}),
            )
        )
        observation = episode.act(both)
        assert [result.content for result in observation.results] == [
            "(no output: print what you want to see)",
            str(len(PRICES.split())),
            "ok",
        ]
        assert observation.done
        assert answer(episode, "1").results == ()
        assert episode.score() == 1.0
    finally:
        episode.close()


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        (call("python", code="1"), "unknown tool 'python'; expected one of python_interpreter, answer_action"),
        (call("python_interpreter", query="1"), "expects the argument code and no other: got query"),
        (call("python_interpreter"), "got none"),
        (call("python_interpreter", code=" "), "expects code to be text"),
        (call("python_interpreter", code=["1"]), "expects code to be text"),
        (call("python_interpreter", code="1" * 50_001), "the code has 50001 characters; expected at most 50000"),
        (call("answer_action", answer=None), "expects answer to be text"),
        (call("answer_action", answer=True), "expects answer to be text"),
        (call("answer_action", answer=["104"]), "expects answer to be text"),
    ],
)
def test_a_call_that_cannot_be_run_is_told_so_and_ends_nothing(turn, told, world):
    episode = begin(world)
    observation = episode.act(turn)
    (result,) = observation.results
    assert told in result.content
    assert (result.is_error, observation.done, episode.score()) == (True, False, 0.0)
    episode.close()


def test_a_turn_without_a_call_ends_the_episode_and_one_that_cannot_be_read_does_not(world):
    episode = begin(world)
    assert not episode.act(AssistantTurn(parse_error="no JSON")).done
    assert episode.act(AssistantTurn(content="104")).done
    assert episode.score() == 0.0
    episode.close()


def test_after_six_turns_nothing_more_is_done(world):
    episode = begin(world)
    for _ in range(world.max_turns):
        assert not episode.act(call("python")).done
    assert answer(episode, "104").done
    assert (world.max_turns, episode.score()) == (6, 0.0)
    episode.close()


# Forks


def test_a_fork_has_the_names_of_its_parent_and_none_of_its_later_ones(world):
    episode = begin(world)
    python(episode, "x = 1")
    fork = episode.fork()
    assert isinstance(fork, ForkableEpisode)
    try:
        python(episode, "x = 2; y = 3")
        assert python(fork, "print(x, 'y' in dir())").results[0].content == "1 False"
        answer(fork, "104")
        assert (fork.score(), episode.score()) == (1.0, 0.0)
    finally:
        episode.close()
        fork.close()


def test_code_that_draws_at_random_can_be_forked_where_the_seed_is_the_interpreters(world):
    episode = begin(world)
    shown = python(episode, "import random; print(random.random(), hash('a'), object())").results
    fork = episode.fork()
    try:
        assert python(fork, "1").results[0].content == "1"
        assert "0x..." in shown[0].content
    finally:
        episode.close()
        fork.close()


def test_code_that_shows_the_time_cannot_be_forked(world):
    episode = begin(world)
    python(episode, "import time; time.time_ns()")
    fork = episode.fork()
    try:
        with pytest.raises(ReplayMismatchError, match="at turn 1 of 1 python_interpreter answered"):
            python(fork, "1")
    finally:
        episode.close()
        fork.close()


# In the rollout loop


@dataclass
class CharacterChat:
    """A chat for scripts: token ids are code points, a turn is one call, `name argument`."""

    stop_ids: tuple[int, ...] = (0,)
    seen: list[str] = field(default_factory=list)

    def open(self, *, system_prompt, tools, query):
        return list(map(ord, query))

    def parse(self, token_ids, *, tools=()):
        name, text = "".join(map(chr, token_ids)).rstrip("\0").split(" ", 1)
        return call(name, **{{"python_interpreter": "code", "answer_action": "answer"}[name]: text})

    def observe(self, results):
        self.seen += [result.content for result in results]
        return list(map(ord, "\n".join(result.content for result in results)))


def roll(environment: ToolQAEnvironment, *turns: str, timeout: float = 120.0):
    task = environment.tasks("test")[0]
    chat, remaining = CharacterChat(), list(turns)
    trajectory = asyncio.run(
        run_episode(
            task,
            engine=ScriptedEngine(lambda prompt_ids, sampling: [*map(ord, remaining.pop(0)), 0]),
            chat=chat,  # type: ignore[arg-type]
            environment=environment,
            config=RolloutConfig(max_turn_tokens=4000, environment_timeout_seconds=timeout),
            key=RolloutKey(seed=0, update=0, task_id=task.task_id, attempt=0),
        )
    )
    return trajectory, chat.seen


def test_a_rollout_plays_it_from_prompt_to_reward(world):
    trajectory, seen = roll(world, "python_interpreter x = 104", "python_interpreter x", "answer_action 104.0")
    assert (trajectory.reward, trajectory.failure) == (1.0, None)
    assert seen == ["(no output: print what you want to see)", "104"]


def test_a_rollout_that_ends_its_interpreter_goes_on(world):
    kill = "python_interpreter import os; os.kill(os.getpid(), 9)"
    trajectory, seen = roll(world, kill, "python_interpreter 1", "answer_action 104.0")
    assert (trajectory.reward, trajectory.failure) == (1.0, None)
    assert seen[0].startswith("Error: the interpreter ended with status 137")
    assert seen[1] == "1"


def test_a_turn_that_takes_longer_than_the_rollout_waits_is_a_failure_and_the_next_rollout_is_clean(world):
    trajectory, _ = roll(world, "python_interpreter import time; time.sleep(3)", timeout=1.0)
    assert (trajectory.reward, trajectory.failure) == (None, FailureKind.ENVIRONMENT_TIMEOUT)
    assert roll(world, "python_interpreter 1", "answer_action 104.0")[0].reward == 1.0


def test_an_interpreter_that_does_not_start_is_the_environments_failure(world, tmp_path):
    workshop = quick_workshop(tmp_path)
    (tmp_path / "packages" / "pandas.py").write_text("raise ImportError")
    questions = read_questions(question_file(tmp_path, EASY), prices(tmp_path))
    broken = ToolQAEnvironment({"test": questions}, workshop=workshop, system_prompt="")
    trajectory, _ = roll(broken, "python_interpreter 1")
    assert (trajectory.reward, trajectory.failure) == (None, FailureKind.ENVIRONMENT_ERROR)


# The official questions


def test_official_questions_are_answered_with_pandas_in_the_box():
    environment = ToolQAConfig(
        table=official("toolqa/coffee.csv"),
        table_sha256="c998215bd197900aaa3ff75fa4b16dff314202cabd9e91f13baeff781a56703d",
        test=QuestionSet(paths=(official("toolqa/coffee-easy.jsonl"), official("toolqa/coffee-hard.jsonl"))),
        train=QuestionSet(made=600),
    ).build()
    tasks = environment.tasks("test")
    tags = Counter(tag for task in tasks for tag in task.tags)
    assert (tags["easy"], tags["hard"], tags["reference:right"], tags["reference:wrong"]) == (100, 130, 220, 10)
    asked = {task.query for task in tasks}
    assert len({task.query for task in environment.tasks("train")} - asked) == 600
    task = next(
        task for task in tasks if task.query == "What was the highest coffee price from 2009-12-23 to 2019-05-10?"
    )
    episode = environment.start(task, seed=0)
    try:
        code = "days = df[(df.Date >= '2009-12-23') & (df.Date <= '2019-05-10')]\ndf['High'] = 0\ndays.High.max()"
        (shown,) = python(episode, code).results
        (fresh,) = python(episode, "print(df.shape, df.High.max(), np.round(pd.Series([1.25]).mean(), 1))").results
        answer(episode, shown.content)
        assert (shown.content, fresh.content, episode.score()) == ("306.25", "(5741, 7) 306.25 1.2", 1.0)
    finally:
        episode.close()
