"""Supervised training of a built-in policy: `python -m midcourse.nano.warm_start POLICY --output DIR`."""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM

from midcourse.nano.documents import Batches, Document, DocumentSource
from midcourse.nano.induction import wire_induction
from midcourse.nano.package import BUILT_IN, BuiltIn
from midcourse.training.policy import token_logprobs


class WarmStartConfig(BaseModel):
    """Size of the model and of its training."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed: int = 0
    """Weights and documents."""
    vocabulary_size: int = Field(ge=2)
    """Tokens; the first is padding."""
    context: int = 512
    """Most tokens of a document."""
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


def build_model(config: WarmStartConfig) -> Qwen3ForCausalLM:
    """Return a nano policy with random weights but for its induction heads."""
    torch.manual_seed(config.seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=config.vocabulary_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.hidden_size // config.head_size,
            num_key_value_heads=config.hidden_size // config.head_size // 2,
            head_dim=config.head_size,
            max_position_embeddings=config.context,
            tie_word_embeddings=False,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue] (the base class takes it)
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    wire_induction(model, generator=torch.Generator().manual_seed(config.seed))
    return model


def warm_start(
    config: WarmStartConfig,
    source: DocumentSource,
    *,
    report: Callable[[int, float, float], None],
) -> Qwen3ForCausalLM:
    """Return the trained model.

    Args:
        config: with `source`, all that the result depends on (and the number of threads, in the last bits).
        source: of documents, as drawn by the seed.
        report: told the step, the mean loss in nats a token since the last report, and seconds.
    """
    model = build_model(config)
    model.train()
    batches = Batches(source, batch_tokens=config.batch_tokens, seed=config.seed)
    # A process of its own draws the documents: the checks of their tasks take as long as a third of a step.
    loader = iter(DataLoader(batches, batch_size=None, num_workers=1, prefetch_factor=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    started, losses = time.monotonic(), []
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * schedule(step / config.steps)
        loss = supervised_loss(model, next(loader))
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


def supervised_loss(model: Any, batch: Sequence[Document]) -> torch.Tensor:
    """Return the mean negative log-likelihood of the learnt tokens, in nats."""
    rows = [document.token_ids for document in batch]
    wanted = [document.learnt for document in batch]
    scores = token_logprobs(model, rows, wanted=wanted, temperatures=[1.0] * len(rows), chunk_tokens=1 << 20)
    return -scores.logprobs_BT.sum() / sum(sum(flags) for flags in wanted)


def recipe(policy: BuiltIn, **changes: Any) -> tuple[WarmStartConfig, DocumentSource]:
    """Return how a built-in policy was trained: settings, with `changes`, and the source of its documents."""
    config = WarmStartConfig(**{"vocabulary_size": len(policy.vocabulary), **policy.training, **changes})
    return config, policy.demonstrations(config.seed)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description="Train a built-in policy on scripted documents.")
    parser.add_argument("policy", choices=BUILT_IN, help="which one, by its policy.path")
    parser.add_argument("--output", type=Path, required=True, help="folder for the weights and warm_start.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="default: as the weights of the package were trained")
    parser.add_argument("--learning-rate", type=float, help="default: the same")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    changes = {name: getattr(arguments, name) for name in ("seed", "steps", "learning_rate")}
    config, source = recipe(
        BUILT_IN[arguments.policy], **{name: value for name, value in changes.items() if value is not None}
    )
    started = time.monotonic()
    model = warm_start(
        config,
        source,
        report=lambda step, loss, seconds: print(f"step {step} loss {loss:.4f} seconds {seconds:.0f}", flush=True),
    )
    model.save_pretrained(arguments.output)
    facts = {"policy": arguments.policy, "config": config.model_dump(), "seconds": time.monotonic() - started}
    (arguments.output / "warm_start.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
