"""The arithmetic environment: settings, splits, rewards, and its scripted judge and roles."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.config import load_config
from midcourse.environments import ENVIRONMENTS
from midcourse.environments.mathematics.arithmetic import (
    ARITHMETIC_VOCABULARY,
    ArithmeticConfig,
    draw_chain,
    make_task,
    read_chain,
)
from midcourse.environments.mathematics.arithmetic.judge import ArithmeticJudge
from midcourse.environments.mathematics.arithmetic.roles import ArithmeticRoles
from midcourse.errors import ConfigError
from midcourse.interventions.judge import OffersJudgeScript
from midcourse.interventions.roles import OffersScriptedRoles
from midcourse.types import AssistantTurn

TASK = make_task(read_chain("047+138-029*7"), split="train", difficulty="hard")
SOLUTION: str = TASK.evidence.facts["solution"]
JUDGE, ROLES = ArithmeticJudge(), ArithmeticRoles()


@pytest.fixture(scope="module")
def environment():
    return ArithmeticConfig(train_tasks=60, test_tasks=30).build()


def reward(environment: Any, task: Any, content: str) -> float:
    episode = environment.start(task, seed=0)
    assert episode.act(AssistantTurn(content=content)).done
    return episode.score()


def test_it_is_registered_and_its_defaults_fit_the_built_in_policys_profile():
    assert ENVIRONMENTS["arithmetic"] is ArithmeticConfig
    assert load_config(None, ["environment.name=arithmetic"]).environment == ArithmeticConfig()


def test_every_response_has_at_least_160_characters_of_a_closed_vocabulary(environment):
    for split in ("train", "test", "ood"):
        for task in environment.tasks(split):
            solution = task.evidence.facts["solution"]
            assert len(solution) >= 160
            assert set(solution + task.query) <= set(ARITHMETIC_VOCABULARY)


def test_splits_have_their_sizes_share_no_chain_and_are_the_same_every_time(environment):
    queries = {split: [task.query for task in environment.tasks(split)] for split in ("train", "test", "ood")}
    assert [len(found) for found in queries.values()] == [60, 30, 30]
    assert len({query for found in queries.values() for query in found}) == 120
    again = ArithmeticConfig(train_tasks=60, test_tasks=30).build()
    assert [task.query for task in again.tasks("test")] == queries["test"]
    assert [
        task.query for task in ArithmeticConfig(seed=1, train_tasks=1, test_tasks=30).build().tasks("test")
    ] != queries["test"]
    with pytest.raises(ConfigError, match="unknown split 'dev' of arithmetic; known: train, test, ood"):
        environment.tasks("dev")


def test_the_ood_split_has_more_steps_than_training(environment):
    steps = {split: {len(read_chain(task.query).operations) for task in environment.tasks(split)} for split in
             ("train", "test", "ood")}  # fmt: skip
    assert steps["train"] | steps["test"] <= {6, 7, 8}
    assert steps["ood"] <= {9, 10, 11}


@pytest.mark.parametrize(("fraction", "tag"), [(0.0, "easy"), (1.0, "hard")])
def test_the_share_of_hard_chains_is_as_set(fraction, tag):
    tasks = ArithmeticConfig(train_tasks=20, test_tasks=1, hard_fraction=fraction).build().tasks("train")
    assert {task.tags[0] for task in tasks} == {tag}


def test_the_reference_solution_is_evidence_and_is_rewarded(environment):
    for task in environment.tasks("test"):
        facts = task.evidence.facts
        assert facts["solution"].endswith(f"#{facts['answer']}")
        assert task.evidence.private_values == (facts["answer"],)
        assert facts["solution"] in task.evidence.text
        assert reward(environment, task, facts["solution"]) == 1.0
        wrong = f"{(int(facts['answer']) + 1) % 1000:03d}"
        assert reward(environment, task, facts["solution"][:-3] + wrong) == 0.0
        assert reward(environment, task, "") == 0.0


def test_the_answer_need_not_be_private():
    task = ArithmeticConfig(train_tasks=1, test_tasks=1, private_answer=False).build().tasks("train")[0]
    assert task.evidence.private_values == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_steps": 5}, "responses may have as few as 144 characters, expected at least 160"),
        ({"min_steps": 7, "max_steps": 6}, "max_steps = 6: expected at least min_steps = 7"),
        ({"num_digits": 6, "min_steps": 3, "max_steps": 3, "hard_steps": 4}, "hard_steps = 4: expected at most"),
    ],
)
def test_settings_that_do_not_fit_are_errors(values, message):
    with pytest.raises(ValueError, match=message):
        ArithmeticConfig(**values)


def test_the_environment_offers_its_judge_and_its_roles(environment):
    assert isinstance(environment, OffersJudgeScript)
    assert isinstance(environment, OffersScriptedRoles)
    assert isinstance(environment.judge_script(), ArithmeticJudge)
    assert isinstance(environment.scripted_roles(), ArithmeticRoles)


def test_the_judge_names_the_earliest_slip_of_the_chunk():
    # 43180 is written as 43190: the fourth character of the column is wrong.
    wrong = SOLUTION.replace("43180", "43190")
    place = SOLUTION.index("43180") + 3
    assert JUDGE.review(TASK, accepted="", chunk=wrong[:30], is_ended=False) == place
    assert JUDGE.review(TASK, accepted=wrong[:10], chunk=wrong[10:30], is_ended=False) == place - 10
    assert JUDGE.review(TASK, accepted=SOLUTION[:10], chunk=SOLUTION[10:30], is_ended=False) is None
    assert JUDGE.correct(TASK, accepted=wrong[:place]).text.startswith("80,01010=185;")


def test_the_judge_lets_the_consequences_of_an_earlier_slip_stand():
    wrong = SOLUTION[: SOLUTION.index("=185") + 3] + "6;"  # 186 for 185
    rest = JUDGE.correct(TASK, accepted=wrong).text
    assert JUDGE.review(TASK, accepted=wrong, chunk=rest, is_ended=True) is None


def test_a_response_that_ends_too_early_is_reopened_at_its_last_character():
    assert JUDGE.review(TASK, accepted=SOLUTION[:20], chunk=SOLUTION[20:40], is_ended=True) == 19
    assert JUDGE.review(TASK, accepted=SOLUTION[:20], chunk="", is_ended=True) is None


def test_a_response_that_goes_on_behind_its_end_is_ended():
    assert JUDGE.review(TASK, accepted=SOLUTION[:-2], chunk=SOLUTION[-2:] + "00", is_ended=False) == 2
    ending = JUDGE.correct(TASK, accepted=SOLUTION)
    assert (ending.text, ending.is_ended) == ("", True)


@given(
    seed=st.integers(0, 2**32),
    slip_rate=st.floats(0.0, 0.2),
    chunk_size=st.integers(1, 50),
    num_written=st.integers(1, 6),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_policy_that_slips_and_is_corrected_every_time_reaches_the_right_answer(
    seed, slip_rate, chunk_size, num_written
):
    rng = random.Random(seed)
    chain = draw_chain(rng, num_digits=3, num_steps=6, difficulty="hard")
    task = make_task(chain, split="train", difficulty="hard")
    solution = task.evidence.facts["solution"]
    response = ""
    while response != solution:
        chunk = "".join(
            rng.choice(ARITHMETIC_VOCABULARY) if rng.random() < slip_rate else token
            for token in solution[len(response) : len(response) + chunk_size]
        )
        place = JUDGE.review(task, accepted=response, chunk=chunk, is_ended=False)
        if place is None:
            response += chunk
        else:
            response += chunk[:place]
            response += JUDGE.correct(task, accepted=response).text[:num_written]
        assert solution.startswith(response)


def step_with(content: str) -> Any:
    return SimpleNamespace(task=TASK, draft=AssistantTurn(content=content))


def test_the_roles_keep_a_right_draft_and_write_a_wrong_one_on_from_its_slip():
    assert ROLES.validate(step_with(SOLUTION)).is_valid
    assert ROLES.correct(step_with(SOLUTION), ROLES.validate(step_with(SOLUTION))) is None
    step = step_with(SOLUTION.replace("43180", "43190")[:60])
    verdict = ROLES.validate(step)
    assert (verdict.is_valid, tuple(verdict.error_types)) == (False, ("wrong_calculation",))
    assert verdict.diagnosis == "step 1 goes wrong at character 18"
    assert verdict.suggest_next == "write 8 there"
    corrected = ROLES.correct(step, verdict)
    assert corrected == AssistantTurn(content=SOLUTION)
    assert ROLES.verify(step, corrected).ok
    assert not ROLES.verify(step, AssistantTurn(content=SOLUTION[:-1] + "3")).ok


def test_the_roles_end_a_draft_that_goes_on_too_long():
    step = step_with(SOLUTION + "0")
    verdict = ROLES.validate(step)
    assert (tuple(verdict.error_types), verdict.suggest_next) == (("wrong_form",), "end the response there")
    assert ROLES.correct(step, verdict) == AssistantTurn(content=SOLUTION)
