"""The mathematics environment: settings, splits, evidence, rewards, and its place in the rollout loop."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from midcourse.config import load_config, resolved_toml
from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments import ENVIRONMENTS
from midcourse.environments.base import Task, Tool
from midcourse.environments.mathematics import MathematicsConfig, MathematicsEnvironment
from midcourse.errors import ConfigError, DataError
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, FailureKind, StopReason, ToolCall, ToolResult

pytest.importorskip("math_verify", reason="grading needs math-verify")
ROOT = Path(__file__).resolve().parents[2]
DATA_FOLDERS = [place / "shared" / "data" / "math" for place in (ROOT, ROOT.parent)]
BENCHMARKS = ("aime24", "aime25", "aime26", "hmmt25")


def benchmark_file(name: str) -> Path:
    """Return a benchmark's file, which the project does not ship; skip where there is none."""
    for folder in DATA_FOLDERS:
        if (folder / f"{name}.jsonl").is_file():
            return folder / f"{name}.jsonl"
    pytest.skip(f"{name}.jsonl is not in shared/data/math, in or beside the checkout")


@pytest.fixture(scope="module")
def problem_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"problem": "What is 6*7?", "answer": "42", "solution": "6*7 = 42"},
        {"problem": "What is half of one?", "answer": "\\frac{1}{2}"},
    ]
    path = tmp_path_factory.mktemp("mathematics") / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def environment(problem_file):
    made = MathematicsConfig(files=(f"train={problem_file}",)).build()
    yield made
    made.close()


def reward(environment: MathematicsEnvironment, task: Task, turn: str | AssistantTurn) -> float:
    episode = environment.start(task, seed=0)
    observation = episode.act(turn if isinstance(turn, AssistantTurn) else AssistantTurn(content=turn))
    assert observation.done
    return episode.score()


def wrong_answers(answer: str) -> list[str]:
    """Return answers near the right one: another value, its negation, hedges, and nothing."""
    nearby = [str(int(answer) + 1), f"-{answer}1"] if answer.isdecimal() else []
    return [
        *nearby,
        f"{answer}+1",
        f"-({answer})-1",
        f"{answer}, 123457",
        f"123457 or {answer}",
        f"2({answer})+1",
        "x",
        "",
    ]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_reference_answer_of_a_benchmark_is_accepted_and_no_wrong_one(name):
    environment = MathematicsConfig(files=(f"test={benchmark_file(name)}",), problem_field="prompt").build()
    tasks = environment.tasks("test")
    assert len(tasks) == 30
    answers = {task.task_id: task.evidence.facts["answer"] for task in tasks}
    for shown in ("{}", " {} ", "x = {}", "({})"):  # the last two reach math-verify whatever the answer is
        boxes = {task.task_id: shown.format(answers[task.task_id]) for task in tasks}
        refused = [
            boxes[task.task_id] for task in tasks if not reward(environment, task, f"\\boxed{{{boxes[task.task_id]}}}")
        ]
        assert refused == []
    wrong = [
        (answers[task.task_id], answer)
        for task in tasks
        for answer in wrong_answers(answers[task.task_id])
        if reward(environment, task, f"So \\boxed{{{answer}}}.") != 0.0
    ]
    assert wrong == []
    environment.close()


def test_it_is_registered_and_needs_no_tool(environment):
    assert ENVIRONMENTS["mathematics"] is MathematicsConfig
    assert environment.tools == ()
    assert environment.max_turns == 1
    assert "\\boxed{}" in environment.system_prompt


def test_tasks_keep_the_order_of_the_file_and_hide_the_reference(environment):
    first, second = environment.tasks("train")
    assert (first.query, first.split) == ("What is 6*7?", "train")
    assert first.evidence.facts == {"answer": "42", "solution": "6*7 = 42"}
    assert first.evidence.private_values == ("42",)
    assert first.evidence.text == "Reference answer: 42\nReference solution:\n6*7 = 42"
    assert second.evidence.text == "Reference answer: \\frac{1}{2}"
    assert first.task_id != second.task_id
    assert "42" not in repr(first)


def test_an_answer_that_need_not_be_concealed_is_not_private(problem_file):
    environment = MathematicsConfig(files=(f"train={problem_file}",), private_answer=False).build()
    assert environment.tasks("train")[0].evidence.private_values == ()


def test_splits_come_from_the_files_that_are_named(problem_file):
    environment = MathematicsConfig(files=(f"train={problem_file}", f"easy = {problem_file}")).build()
    assert len(environment.tasks("easy")) == 2
    assert {task.task_id for task in environment.tasks("easy")}.isdisjoint(
        task.task_id for task in environment.tasks("train")
    )
    with pytest.raises(ConfigError, match="unknown split 'test' of mathematics; known: easy, train"):
        environment.tasks("test")


def test_the_reward_is_one_for_the_right_answer_and_zero_otherwise(environment):
    first, second = environment.tasks("train")
    assert reward(environment, first, "6*7 is \\boxed{42}") == 1.0
    assert reward(environment, first, "6*7 is \\boxed{43}") == 0.0
    assert reward(environment, first, "6*7 is 42") == 0.0
    assert reward(environment, second, "\\boxed{0.5}") == 1.0
    assert reward(environment, first, AssistantTurn(reasoning="\\boxed{42}", content="done")) == 0.0


@pytest.mark.parametrize(
    ("policy", "response", "expected"),
    [
        ("last_number", "6*7 is 42.", 1.0),
        ("last_number", "\\boxed{42} and not 41", 0.0),
        ("boxed_then_last_number", "6*7 is 42.", 1.0),
        ("boxed_then_last_number", "\\boxed{42} and not 41", 1.0),
        ("tagged", "41 <answer>42</answer> 43", 1.0),
    ],
)
def test_the_answer_policy_says_where_the_answer_is(problem_file, policy, response, expected):
    environment = MathematicsConfig(files=(f"train={problem_file}",), answer_policy=policy).build()
    assert reward(environment, environment.tasks("train")[0], response) == expected
    environment.close()


def test_an_episode_forks_with_what_was_said(environment):
    task = environment.tasks("train")[0]
    fresh = environment.start(task, seed=0)
    twin = fresh.fork()
    fresh.act(AssistantTurn(content="\\boxed{42}"))
    assert (fresh.score(), fresh.fork().score(), twin.score()) == (1.0, 1.0, 0.0)


def test_only_the_first_turn_counts_and_a_tool_call_is_told_that_there_are_none(environment):
    episode = environment.start(environment.tasks("train")[0], seed=0)
    observation = episode.act(AssistantTurn(content="\\boxed{42}", tool_calls=(ToolCall("python", {}),)))
    assert observation.done
    assert observation.results == (ToolResult(name="python", content="there are no tools here", is_error=True),)
    assert episode.act(AssistantTurn(content="\\boxed{41}")).done
    assert episode.score() == 1.0


class LetterChat:
    """One token a character, `.` ends a turn: for rollouts without a tokenizer."""

    prompt_style = "nano"
    unknown_id = None
    stop_ids = (ord("."),)

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        assert tools == ()
        return self.encode(f"{system_prompt}|{query}|")

    def parse(self, turn_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> AssistantTurn:
        text = self.decode(turn_ids).removesuffix(".")
        return AssistantTurn(content=text, parse_error="cannot be read" if "?" in text else None)

    def observe(self, results: Any) -> list[int]:
        return self.encode("|")


def roll_out(environment: MathematicsEnvironment, response: str, **limits: Any) -> Any:
    chat: Any = LetterChat()
    task = environment.tasks("train")[0]
    return asyncio.run(
        run_episode(
            task,
            engine=ScriptedEngine([chat.encode(response)]),
            chat=chat,
            environment=environment,
            config=RolloutConfig(**limits),
            key=RolloutKey(seed=0, update=0, task_id=task.task_id, attempt=0),
        )
    )


def test_a_rollout_is_one_turn_and_ends_with_the_answer(environment):
    trajectory = roll_out(environment, "it is \\boxed{42}.")
    assert (trajectory.reward, trajectory.failure, trajectory.stop_reason) == (1.0, None, StopReason.DONE)
    assert len(trajectory.turns) == 1
    assert trajectory.turns[0].end == len(trajectory.token_ids)


@pytest.mark.parametrize(
    ("response", "limits", "stop_reason"),
    [
        ("it is \\boxed{42} and more.", {"max_turn_tokens": 20}, StopReason.TOKEN_LIMIT),
        ("? \\boxed{42}.", {}, StopReason.TURN_LIMIT),
    ],
)
def test_a_response_that_was_cut_short_or_cannot_be_read_scores_zero_and_is_no_failure(
    environment, response, limits, stop_reason
):
    trajectory = roll_out(environment, response, **limits)
    assert (trajectory.reward, trajectory.failure, trajectory.stop_reason) == (0.0, None, stop_reason)


def test_a_hostile_answer_scores_zero_and_the_rollout_goes_on(problem_file):
    grading: Any = {"cpu_seconds": 0.3, "processes": 1}
    environment = MathematicsConfig(files=(f"train={problem_file}",), grading=grading).build()
    assert roll_out(environment, "\\boxed{9^{9^{9^{9}}}}.").reward == 0.0
    assert roll_out(environment, "\\boxed{84/2}.").reward == 1.0
    environment.close()


def test_a_reference_that_cannot_be_graded_fails_the_rollout(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"problem": "?", "answer": "9^{9^{9^{9}}}"}))
    grading: Any = {"cpu_seconds": 0.3, "processes": 1}
    environment = MathematicsConfig(files=(f"train={path}",), grading=grading).build()
    trajectory = roll_out(environment, "\\boxed{1}.")
    assert (trajectory.reward, trajectory.failure) == (None, FailureKind.REWARD_ERROR)
    assert "cannot be graded" in trajectory.failure_message
    environment.close()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], 'source "files" needs environment.files'),
        (['environment.files=["train"]'], "'train': expected \"split=path\""),
        (['environment.files=["a=x", "a=y"]'], "split 'a' is named twice"),
        (['environment.files=["a=x"]', "environment.reasoning_gym.seed=3"], "reasoning_gym is not used with source"),
        (["environment.source=reasoning_gym"], "needs environment.reasoning_gym.dataset"),
        (
            ["environment.source=reasoning_gym", "environment.reasoning_gym.dataset=x", 'environment.files=["a=x"]'],
            "files is not used with source",
        ),
        (['environment.files=["a=x"]'], "nano profile alone; choose another policy.path with"),
    ],
)
def test_settings_that_do_not_fit_are_errors(overrides, message):
    with pytest.raises(ConfigError) as raised:
        load_config(None, ["environment.name=mathematics", *overrides])
    assert message in str(raised.value)


def test_the_settings_survive_the_run_folder(tmp_path):
    overrides = ["environment.name=mathematics", 'environment.files=["train=a.jsonl", "test=b.parquet"]']
    config = load_config(None, [*overrides, "policy.chat=chatml", "policy.path=model"])
    path = tmp_path / "config.toml"
    path.write_text(resolved_toml(config))
    assert load_config(path) == config


def test_a_file_that_is_missing_is_told_when_the_environment_is_built(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read"):
        MathematicsConfig(files=(f"train={tmp_path / 'none.jsonl'}",)).build()


def test_a_system_prompt_of_ones_own_replaces_the_default(problem_file):
    files = (f"train={problem_file}",)
    assert MathematicsConfig(files=files, system_prompt="").build().system_prompt == ""
    assert MathematicsConfig(files=files, system_prompt="Solve.").build().system_prompt == "Solve."
