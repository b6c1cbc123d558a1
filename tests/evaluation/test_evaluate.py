import asyncio
import json

import pytest
from tests.evaluation.synthetic_run import make_task, make_trajectory

from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments.base import Observation
from midcourse.errors import EngineError
from midcourse.evaluation.evaluate import evaluate_policy, evaluation_seed, summarize
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, FailureKind, StopReason


def failed(task_id):
    trajectory = make_trajectory(task_id, 0.0, 1)
    fields = {name: getattr(trajectory, name) for name in trajectory.__dataclass_fields__}
    return type(trajectory)(
        **{**fields, "reward": None, "failure": FailureKind.ENGINE_ERROR, "stop_reason": StopReason.FAILED}
    )


def scores(done, attempts=2):
    return summarize(done, attempts=attempts, temperature=0.8, seconds=1.0, seed=0, bootstrap_resamples=50)


def test_scores_are_kept_apart_by_split_and_tag():
    easy, hard, other = make_task(0, "test"), make_task(1, "test"), make_task(0, "ood")
    done = [(task, make_trajectory(task.task_id, float(task is easy), 2)) for task in (easy, hard, other) for _ in "ab"]
    result = scores(done)
    assert result.splits["test"].pass_at["1"].value == 0.5
    assert result.splits["ood"].pass_at["1"].value == 0.0
    assert result.tags["test/easy"].pass_at["2"].value == 1.0
    assert result.tags["test/hard"].pass_hat["2"].value == 0.0


def test_a_failed_rollout_is_no_attempt_and_is_counted_by_kind():
    task = make_task(0, "test")
    sheet = scores([(task, make_trajectory(task.task_id, 1.0, 2)), (task, failed(task.task_id))]).splits["test"]
    assert (sheet.num_attempts, sheet.num_scored, dict(sheet.failures)) == (2, 1, {"engine_error": 1})
    assert sheet.pass_at["1"].value == 1.0
    assert (sheet.pass_at["2"].value, sheet.pass_at["2"].num_short_tasks) == (None, 1)
    assert sheet.pass_at_mean is None
    assert sheet.turns == {"2": 1}


def test_the_mean_over_k_matches_hand_computation():
    # one task, 1 success in 2 attempts: pass@1 1/2, pass@2 1; pass^1 1/2, pass^2 0
    task = make_task(0, "test")
    sheet = scores([(task, make_trajectory(task.task_id, reward, 1)) for reward in (1.0, 0.0)]).splits["test"]
    assert sheet.pass_at_mean == pytest.approx(0.75)
    assert sheet.pass_hat_mean == pytest.approx(0.25)


def test_a_result_is_strict_json():
    task = make_task(0, "test")
    result = scores([(task, failed(task.task_id))])
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["splits"]["test"]["reward_mean"] is None


def test_evaluation_draws_are_those_of_no_training_seed_nearby():
    seeds = [evaluation_seed(seed) for seed in range(100)]
    assert len(set(seeds)) == 100
    assert all(100 <= seed < 2**63 for seed in seeds)


class DigitChat:
    """A prompt is the query's length; a turn is read as its token ids; 2 ends it."""

    stop_ids = (2,)

    def open(self, *, system_prompt, tools, query):
        return [len(query)]

    def parse(self, turn_ids, *, tools=()):
        return AssistantTurn(content=" ".join(map(str, turn_ids)))

    def observe(self, results):
        return [3]


class SayNine:
    """Reward 1 for a turn that holds token 9."""

    name, system_prompt, tools, max_turns, role_guide = "say_nine", "", (), 1, None

    def start(self, task, *, seed):
        return SayNineEpisode()


class SayNineEpisode:
    said = ""

    def act(self, turn):
        self.said = turn.content
        return Observation(done=True)

    def score(self):
        return float("9" in self.said)

    def close(self):
        pass


def evaluate(engine, tasks, **changes):
    return asyncio.run(
        evaluate_policy(SayNine(), engine, DigitChat(), RolloutConfig(), tasks, **{"attempts": 2, "seed": 1, **changes})
    )


def test_a_policy_is_scored_by_its_plain_rollouts():
    engine = ScriptedEngine([[9, 2], [8, 2], EngineError("down"), [8, 2]])
    sheet = evaluate(engine, [make_task(0, "test"), make_task(1, "test")], rollouts_per_wave=1).splits["test"]
    assert (sheet.pass_at["1"].value, sheet.pass_at["2"].value) == (0.25, 1.0)
    assert dict(sheet.failures) == {"engine_error": 1}
    assert sheet.tokens["policy"] == 6


def test_the_temperature_of_evaluation_takes_the_place_of_the_rollouts_own():
    engine = ScriptedEngine([[9, 2]] * 2)
    assert evaluate(engine, [make_task(0, "test")], temperature=0.25).temperature == 0.25
    assert {request.sampling.temperature for request in engine.requests} == {0.25}


def test_every_finished_rollout_is_told():
    told = []
    engine = ScriptedEngine([[9, 2]] * 4)
    tasks = [make_task(0, "test"), make_task(1, "test")]
    evaluate(engine, tasks, rollouts_per_wave=3, finished=lambda *counts: told.append(counts))
    assert told == [(done, 4) for done in range(5)]


def test_two_evaluations_ask_for_the_same_draws():
    engines = [ScriptedEngine([[9, 2]] * 2) for _ in range(2)]
    for engine in engines:
        evaluate(engine, [make_task(0, "test")])
    # Sorted: episodes start in threads, so a scripted engine is asked in any order.
    first, second = (sorted(request.sampling.seed for request in engine.requests) for engine in engines)
    assert first == second
    assert len(set(first)) == 2
