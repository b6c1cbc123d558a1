"""A policy that learns on one real server beside its frozen judge on another, put together as the command line does."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engines.vllm.conftest import ONE_THREAD, PYTHON
from tests.training.letter_run import Notes

from midcourse.assembly import assembled
from midcourse.config import build_config
from midcourse.engines.vllm import keeper
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.interventions.reading import read_review
from midcourse.nano.settings import world_settings
from midcourse.training.policy import load_policy
from midcourse.training.trainer import TrainingParts, train_async
from midcourse.types import ReviewOutcome

pytestmark = pytest.mark.vllm
TOLERANCE = 1e-4  # nats, float32
UPDATES = 2
REPLY_TOKENS = 64  # of a verdict; corrections are shorter


class Noted(MeteredEngine):
    """An engine that keeps what it was asked and what it said."""

    def __init__(self, engine):
        super().__init__(engine, purpose="judge", ledger=CostLedger())
        self.answered = []

    async def sample(self, prompt_ids, sampling):
        completion = await super().sample(prompt_ids, sampling)
        self.answered.append((list(prompt_ids), sampling, completion))
        return completion


def mintrl_config(folder: Path):
    """Tasks of which it solves a part, so that rewards differ within groups, and steps so long that two show."""
    values = world_settings("mintrl")("mintrl", seed=0, updates=UPDATES, folder=folder)
    server = {"python": PYTHON, "environment": ONE_THREAD, "arguments": ["--enforce-eager"], "start_seconds": 1800.0}
    values["engine"] = {"name": "vllm", "server": server}
    values["training"] |= {"tasks_per_update": 3, "learning_rate": 3e-3, "checkpoint_every": UPDATES}
    values["environment"] |= {"hard_fraction": 1.0, "hard_steps": 1}
    values["method"] |= {
        "on_policy_rollouts": 2,
        "semi_on_policy_rollouts": 4,
        "max_reviews": 2,
        "intervention_updates": UPDATES,
        "judge": {"played_by": "frozen", "max_tokens": REPLY_TOKENS, "timeout_seconds": 1800.0},
    }
    return build_config(values)


def told(model, prompt_ids, token_ids, temperature):
    """[N] log-probabilities of a forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt_ids, *token_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1)[range(len(token_ids)), list(token_ids)].tolist()


def test_a_policy_learns_on_one_server_under_the_review_of_its_frozen_self_on_another(tmp_path):
    config, notes, text = mintrl_config(tmp_path), Notes(), ([1, 2, 3], [4, 5, 6])
    torch.set_num_threads(1)

    async def run():
        async with assembled(config) as parts:
            policy, judge = parts.tools.engine, Noted(parts.tools.judge.engine)
            servers = [policy.server, parts.tools.judge.engine.server]
            sessions = [server._process.pid for server in servers]
            places = [place for server in servers for place in (server.folder, server._scratch)]
            assert servers[0].url != servers[1].url
            before = [await engine.score(*text) for engine in (policy, judge)]
            tools = replace(parts.tools, judge=replace(parts.tools.judge, engine=judge))
            await train_async(
                TrainingParts(
                    policy=parts.policy,
                    tools=tools,
                    method=parts.method,
                    recorder=notes,
                    tasks=tools.environment.tasks("train"),
                ),
                config.training,
                seed=config.seed,
                folder=config.output_folder,
            )
            now = [await engine.score(*text) for engine in (policy, judge)]
            assert all(keeper._members(session) for session in sessions)
            assert [server.restarts for server in servers] == [0, 0]
            return before, now, judge.answered, sessions, places

    before, now, answered, sessions, places = asyncio.run(run())
    assert not any(keeper._members(session) for session in sessions)
    assert not any(place.exists() for place in places)

    assert before[0].logprobs == pytest.approx(before[1].logprobs, abs=TOLERANCE)
    assert now[1].logprobs == pytest.approx(before[1].logprobs, abs=TOLERANCE)
    assert max(abs(a - b) for a, b in zip(now[0].logprobs, before[0].logprobs, strict=True)) > 100 * TOLERANCE
    assert [scores.policy_version for scores in now] == [UPDATES, 0]
    assert all(metrics["objective/optimizer_steps"] > 0 for metrics in notes.metrics.values())

    start = load_policy(config.policy)
    for prompt_ids, sampling, completion in answered:
        assert completion.policy_version == 0
        expected = told(start.model, prompt_ids, completion.token_ids, sampling.temperature)
        assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)

    verdicts = [
        read_review(start.chat.decode([token for token in completion.token_ids if token not in start.chat.stop_ids]))
        for _, sampling, completion in answered
        if sampling.max_tokens == REPLY_TOKENS
    ]
    said = sorted((found[1][0] if found[1] else "", found[0].reason) for found in verdicts if found is not None)
    reviews = {
        update: [
            review
            for group in groups
            for member in group.members
            for turn in member.trajectory.turns
            for review in turn.reviews
        ]
        for update, groups in notes.groups.items()
    }
    assert all(ReviewOutcome.REVISED in {review.outcome for review in reviews[update]} for update in (1, UPDATES))
    written = [review for update in reviews for review in reviews[update]]
    assert ReviewOutcome.JUDGE_FAILED not in {review.outcome for review in written}
    assert len(verdicts) == len(written)
    readable = [review for review in written if review.outcome is not ReviewOutcome.UNREADABLE]
    assert said == sorted((review.quote, review.reason) for review in readable)
