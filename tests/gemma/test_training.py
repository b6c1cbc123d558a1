"""One step of training on a real model, by hand-made rollouts: what is rewarded becomes more likely."""

import math

import pytest
import torch

from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.training.config import TrainingConfig
from midcourse.training.lora import LoraConfig
from midcourse.training.policy import PolicyConfig, load_policy, token_logprobs
from midcourse.training.update import Updater
from midcourse.types import Group, Member, TokenSource, Trajectory

pytestmark = pytest.mark.gemma


def logprobs_of(policy, prompt, answers) -> torch.Tensor:
    """[G] nats of whole answers."""
    rows = [[*prompt, *answer] for answer in answers]
    wanted = [[False] * len(prompt) + [True] * len(answer) for answer in answers]
    with torch.no_grad():
        found = token_logprobs(policy.model, rows, wanted=wanted, temperatures=[1.0] * len(rows), chunk_tokens=64)
    return found.logprobs_BT.sum(1)


def test_a_step_makes_the_rewarded_answer_more_likely(gemma_settings):
    policy = load_policy(PolicyConfig(**gemma_settings, lora=LoraConfig(rank=4), logprob_chunk_tokens=64))
    prompt = policy.tokenizer.encode("The capital of France is")
    answers = [policy.tokenizer.encode(text, add_special_tokens=False) for text in (" Paris.", " a large city.")]
    before = logprobs_of(policy, prompt, answers)
    members = []
    for answer, reward in zip(answers, (1.0, 0.0), strict=True):
        flags = [False] * len(prompt) + [True] * len(answer)
        members.append(
            Member(
                trajectory=Trajectory(
                    task_id="capital",
                    token_ids=(*prompt, *answer),
                    sources=tuple(TokenSource.POLICY if flag else TokenSource.PROMPT for flag in flags),
                    behavior_logprobs=tuple(-1.0 if flag else None for flag in flags),
                    policy_versions=tuple(0 if flag else None for flag in flags),
                    weights=(1.0,) * len(flags),
                    calibration_logprobs=(None,) * len(flags),
                    reward=reward,
                    temperature=1.0,
                )
            )
        )
    group = Group(group_id="capital-0", task_id="capital", members=tuple(members))
    updater = Updater(policy, ClippedObjective(ClippedConfig()), TrainingConfig(learning_rate=1e-3))
    assert not updater.shares_prefixes  # its layers have windows
    metrics = updater.update([group], [[1.0, -1.0]])
    assert metrics["objective/optimizer_steps"] == 1.0
    assert math.isfinite(metrics["objective/loss"])
    assert metrics["objective/grad_norm"] > 0
    after = logprobs_of(policy, prompt, answers)
    assert after[0] > before[0]
    assert after[1] < before[1]
