"""One answer, one turn: verdict in the record, reward, and failures that are no reward."""

import json

import pytest
from tests.environments.test_code_problems import HUMANEVAL, STDIN

from midcourse.config import load_config
from midcourse.environments import ENVIRONMENTS, code
from midcourse.environments.code import CodeConfig, CodeEnvironment, Grade, Verdict
from midcourse.environments.code.environment import ProblemFile
from midcourse.environments.sandbox import SandboxError
from midcourse.errors import ConfigError, EnvironmentFault
from midcourse.types import AssistantTurn

RIGHT = "```python\ndef root(x):\n    return math.sqrt(x)\n```"


class FixedGrader:
    """Gives every answer the same grade and remembers what was graded."""

    def __init__(self, grade: Grade) -> None:
        self.graded = []
        self._grade = grade

    def grade(self, source, tests) -> Grade:
        self.graded.append(source)
        return self._grade


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(HUMANEVAL))
    return str(path)


def environment(path, grade: Grade, answer_policy="block_or_text") -> tuple[CodeEnvironment, FixedGrader]:
    grader = FixedGrader(grade)
    problems = ProblemFile(path=path, format="humaneval").read()
    return CodeEnvironment({"train": problems}, grader=grader, answer_policy=answer_policy), grader


def test_it_is_registered_and_built_from_settings(path):
    assert ENVIRONMENTS["code"] is CodeConfig is code.CodeConfig
    config = load_config(
        None,
        [
            "environment.name=code",
            f'environment.train.path="{path}"',
            "environment.train.format=humaneval",
            "environment.sandbox.kind=process",
            "policy.chat=compact",
        ],
    )
    built = config.environment.build()
    (task,) = built.tasks("train")
    episode = built.start(task, seed=0)
    observation = episode.act(AssistantTurn(content=RIGHT))
    assert (observation.done, [result.content for result in observation.results]) == (True, ["passed"])
    assert episode.score() == 1.0


@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.FAILED, Verdict.TIMEOUT, Verdict.MEMORY])
def test_a_verdict_on_the_answer_is_a_reward_and_stands_in_the_record(path, verdict):
    world, grader = environment(path, Grade(verdict, "why"))
    episode = world.start(world.tasks("train")[0], seed=0)
    observation = episode.act(AssistantTurn(content=RIGHT))
    assert [result.content for result in observation.results] == [f"{verdict}: why"]
    assert episode.score() == float(verdict is Verdict.PASSED)
    assert episode.fork().score() == episode.score()
    episode.act(AssistantTurn(content="```\nother\n```"))
    assert grader.graded == ["def root(x):\n    return math.sqrt(x)\n"]


def test_a_sandbox_error_is_the_worlds_fault_and_no_reward(path):
    world, _ = environment(path, Grade(Verdict.SANDBOX_ERROR, "no box"))
    episode = world.start(world.tasks("train")[0], seed=0)
    with pytest.raises(SandboxError, match="no box"):
        episode.act(AssistantTurn(content=RIGHT))
    assert issubclass(SandboxError, EnvironmentFault)


def test_a_turn_without_a_block_fails_ungraded_where_a_block_is_asked_for(path):
    world, grader = environment(path, Grade(Verdict.PASSED), "block")
    episode = world.start(world.tasks("train")[0], seed=0)
    (result,) = episode.act(AssistantTurn(content="def root(x): return 1")).results
    assert (result.content, episode.score(), grader.graded) == ("failed: no code block", 0.0, [])


def test_no_answer_at_all_scores_nothing(path):
    world, _ = environment(path, Grade(Verdict.PASSED))
    assert world.start(world.tasks("train")[0], seed=0).score() == 0.0


def test_the_reference_is_evidence_and_the_tests_are_nowhere_in_a_task(path):
    world, _ = environment(path, Grade(Verdict.PASSED))
    (task,) = world.tasks("train")
    assert "return math.sqrt(x)" in task.evidence.text
    assert "return math.sqrt(x)" not in task.query + world.system_prompt
    assert "check(candidate)" not in repr(task) + task.evidence.text + str(task.evidence.facts)


def test_a_file_without_a_reference_says_so(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({key: value for key, value in STDIN.items() if key != "reference"}))
    world = CodeEnvironment(
        {"test": ProblemFile(path=str(path), format="livecodebench").read()}, grader=FixedGrader(Grade(Verdict.PASSED))
    )
    (task,) = world.tasks("test")
    assert (task.evidence.text, task.evidence.facts["reference"]) == ("No solution is known.", None)


def test_splits_are_known_and_need_a_file(path):
    world, _ = environment(path, Grade(Verdict.PASSED))
    with pytest.raises(ConfigError, match=r"environment.test.path must name a file"):
        world.tasks("test")
    with pytest.raises(ConfigError, match="unknown split 'ood' of code; known: test, train"):
        world.tasks("ood")
