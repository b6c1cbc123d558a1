"""Supervised training of the nano policy on scripted documents: `python -m midcourse.nano.warm_start --output DIR`."""

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.utils.data import DataLoader, IterableDataset
from transformers import Qwen3Config, Qwen3ForCausalLM

from midcourse.nano.chat import CompactChatFormat
from midcourse.nano.demonstrations import DemonstrationConfig, Demonstrator, Document
from midcourse.nano.induction import wire_induction
from midcourse.nano.tokenizer import PAD, VOCABULARY, NanoTokenizer
from midcourse.training.policy import token_logprobs


class WarmStartConfig(BaseModel):
    """Size of the model and of its training."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int = 0
    """Weights and documents."""
    hidden_size: int = 128
    """Width."""
    head_size: int = 32
    """Width of a head; there are hidden_size / head_size of them, half as many for keys."""
    layers: int = 4
    """Depth."""
    intermediate_size: int = 512
    """Width inside the feed-forward part."""
    steps: int = Field(default=2800, ge=1)
    """Optimizer steps."""
    batch_tokens: int = Field(default=1024, ge=1)
    """Padded tokens a step."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak of the schedule: linear up over 5 % of the steps, cosine to a tenth."""
    demonstrations: DemonstrationConfig = DemonstrationConfig()
    """What is shown."""


def build_model(config: WarmStartConfig) -> Qwen3ForCausalLM:
    """Return a nano policy with random weights but for its induction heads."""
    torch.manual_seed(config.seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(VOCABULARY),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.hidden_size // config.head_size,
            num_key_value_heads=config.hidden_size // config.head_size // 2,
            head_dim=config.head_size,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue] (the base class takes it)
            pad_token_id=VOCABULARY.index(PAD),
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    wire_induction(model, generator=torch.Generator().manual_seed(config.seed))
    return model


def warm_start(
    config: WarmStartConfig,
    *,
    report: Callable[[int, float, float], None],
) -> Qwen3ForCausalLM:
    """Return the trained model.

    Args:
        config: all that the result depends on (and the number of threads, in the last bits).
        report: told the step, the mean loss in nats a token since the last report, and seconds.
    """
    model = build_model(config)
    model.train()
    # A process of its own draws the documents: the checks of their tasks take as long as a third of a step.
    batches = iter(DataLoader(Batches(config), batch_size=None, num_workers=1, prefetch_factor=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    started, losses = time.monotonic(), []
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * schedule(step / config.steps)
        loss = supervised_loss(model, next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            report(step + 1, sum(losses) / len(losses), time.monotonic() - started)
            losses.clear()
    return model.eval()


def schedule(progress: float) -> float:
    """Return the factor on the learning rate at `progress` in [0, 1)."""
    warmup = 0.05
    if progress < warmup:
        return (progress + 1e-3) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


class Batches(IterableDataset[list[Document]]):
    """Documents of similar length together, to pad little, the batches in random order; endless."""

    def __init__(self, config: WarmStartConfig) -> None:
        self._config = config

    def __iter__(self) -> Iterator[list[Document]]:
        config = self._config
        chat = CompactChatFormat(NanoTokenizer())
        demonstrator = Demonstrator(chat, config.demonstrations, seed=config.seed)
        shuffle = random.Random(f"batches/{config.seed}").shuffle
        while True:
            documents = sorted((demonstrator.draw() for _ in range(256)), key=lambda document: len(document.token_ids))
            batches: list[list[Document]] = [[]]
            for document in documents:
                if batches[-1] and len(document.token_ids) * (len(batches[-1]) + 1) > config.batch_tokens:
                    batches.append([])
                batches[-1].append(document)
            shuffle(batches)
            yield from batches


def supervised_loss(model: Any, batch: Sequence[Document]) -> torch.Tensor:
    """Return the mean negative log-likelihood of the learnt tokens, in nats."""
    rows = [document.token_ids for document in batch]
    wanted = [document.learnt for document in batch]
    scores = token_logprobs(model, rows, wanted=wanted, temperatures=[1.0] * len(rows), chunk_tokens=1 << 20)
    return -scores.logprobs_BT.sum() / sum(sum(flags) for flags in wanted)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description="Train the nano policy on scripted episodes and role turns.")
    parser.add_argument("--output", type=Path, required=True, help="folder for the weights and warm_start.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=WarmStartConfig.model_fields["steps"].default)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--atlases", type=int, default=DemonstrationConfig.model_fields["atlases"].default)
    parser.add_argument("--learning-rate", type=float, default=WarmStartConfig.model_fields["learning_rate"].default)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = WarmStartConfig(
        seed=arguments.seed,
        steps=arguments.steps,
        learning_rate=arguments.learning_rate,
        demonstrations=DemonstrationConfig(atlases=arguments.atlases),
    )
    started = time.monotonic()
    model = warm_start(
        config,
        report=lambda step, loss, seconds: print(f"step {step} loss {loss:.4f} seconds {seconds:.0f}", flush=True),
    )
    model.save_pretrained(arguments.output)
    facts = {"config": config.model_dump(), "seconds": time.monotonic() - started}
    (arguments.output / "warm_start.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
