"""Tiny random policies with an adapter."""

import torch
from letter_run import letter_policy
from training_building import tiny_policy

from midcourse.training.lora import LoraConfig, add_adapter
from midcourse.training.policy import Policy, PolicyConfig, keep_fewer_activations

LORA = LoraConfig(rank=4)


def lora_policy(seed=0, dtype=torch.float32, base="tiny", **settings):
    policy = tiny_policy(seed, dtype, lora=LORA, **settings)
    add_adapter(policy.model, LORA, base=base)
    if settings.get("gradient_checkpointing"):
        keep_fewer_activations(policy.model)
    return policy


def lora_letters(seed=0):
    policy = letter_policy(seed)
    add_adapter(policy.model, LORA, base="tiny")
    config = PolicyConfig(path="tiny", device="cpu", lora=LORA)
    return Policy(model=policy.model, tokenizer=None, chat=policy.chat, config=config)
