"""Problems of reasoning-gym: splits, its own scorers, and their limits."""

import threading
from typing import Any

import pytest

from midcourse.environments.mathematics import MathematicsConfig, MathematicsEnvironment
from midcourse.environments.mathematics import puzzles as puzzles_module
from midcourse.environments.mathematics.grading import GradingConfig
from midcourse.environments.mathematics.puzzles import PuzzleGrader, ReasoningGymConfig, generate_puzzles
from midcourse.errors import ConfigError, EnvironmentFault
from midcourse.types import AssistantTurn


@pytest.fixture(scope="module", autouse=True)
def _needs_the_package():
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym", exc_type=ImportError)


def build(dataset: str, **settings: Any) -> MathematicsEnvironment:
    chosen: Any = {"dataset": dataset, "train_size": 4, "test_size": 3, **settings}
    grading: Any = {"cpu_seconds": 1.0, "processes": 1}
    return MathematicsConfig(
        source="reasoning_gym", answer_policy="tagged", reasoning_gym=chosen, grading=grading
    ).build()


@pytest.fixture(scope="module")
def countdown():
    made = build("countdown")
    yield made
    made.close()


def reward(environment: MathematicsEnvironment, index: int, answer: str) -> float:
    episode = environment.start(environment.tasks("train")[index], seed=0)
    episode.act(AssistantTurn(content=f"Thus <answer>{answer}</answer>"))
    return episode.score()


def test_splits_have_the_sizes_asked_for_and_share_no_problem(countdown):
    train, test = countdown.tasks("train"), countdown.tasks("test")
    assert (len(train), len(test)) == (4, 3)
    assert {task.query for task in train}.isdisjoint(task.query for task in test)
    assert len({task.task_id for task in (*train, *test)}) == 7
    assert train[0].tags == ("dataset:countdown",)


def test_the_same_seed_draws_the_same_problems_and_another_seed_others():
    config = ReasoningGymConfig(dataset="chain_sum", train_size=4, test_size=2)
    assert generate_puzzles(config) == generate_puzzles(config)
    assert generate_puzzles(config) != generate_puzzles(config.model_copy(update={"seed": 1}))


def test_the_datasets_own_scorer_gives_the_reward(countdown):
    answers = [task.evidence.facts["answer"] for task in countdown.tasks("train")]
    assert [reward(countdown, index, answer) for index, answer in enumerate(answers)] == [1.0] * 4
    assert [reward(countdown, index, "1 + 1") for index in range(4)] == [0.0] * 4


def test_credit_below_one_counts_where_it_is_asked_for():
    generous = build("countdown", partial_credit=True)
    assert 0.0 < reward(generous, 0, "1 + 1") < 1.0
    assert reward(generous, 0, generous.tasks("train")[0].evidence.facts["answer"]) == 1.0
    generous.close()


def test_an_answer_that_computes_for_ever_scores_zero_and_the_next_is_graded(countdown):
    assert reward(countdown, 0, "9**9**9**9") == 0.0
    assert reward(countdown, 0, countdown.tasks("train")[0].evidence.facts["answer"]) == 1.0


def test_an_answer_that_the_scorer_cannot_take_scores_zero(countdown):
    for answer in ("", "(((", "\x00", "import os", "]" * 900, "1" * 5000):
        assert reward(countdown, 0, answer) == 0.0


def test_threads_may_score(countdown):
    answer = countdown.tasks("train")[1].evidence.facts["answer"]
    rewards: list[float] = []
    threads = [threading.Thread(target=lambda: rewards.append(reward(countdown, 1, answer))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert rewards == [1.0] * 8


def test_a_grader_whose_problem_is_another_is_a_fault(countdown):
    grader = PuzzleGrader(countdown.config.reasoning_gym, GradingConfig(processes=1))
    with pytest.raises(EnvironmentFault, match="generates another problem 0"):
        grader.score("1", index=0, question="another question")
    grader.pool.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "countdwn"}, "no dataset of that name; did you mean 'countdown'"),
        ({"dataset": None}, "needs environment.reasoning_gym.dataset"),
    ],
)
def test_a_name_that_is_none_is_an_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        generate_puzzles(ReasoningGymConfig(**settings))


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(puzzles_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"\.\[reasoning-gym\]"):
        generate_puzzles(ReasoningGymConfig(dataset="countdown"))
