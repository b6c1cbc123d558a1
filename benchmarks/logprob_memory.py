"""Peak memory of log-probabilities and entropies over a large vocabulary, forward and backward. Prints one JSON object.

    python -m benchmarks.logprob_memory

Every case is a process of its own: a random Qwen3 of one layer with the vocabulary of Qwen3's tokenizer and tied
embeddings, one row of tokens, all but the first of which are scored, gradient of their sum. `added_mib` is the most
resident memory minus what was resident before the pass; the gradient of the embedding (`gradient_mib`) is in it in
every case. chunk: policy.logprob_chunk_tokens; "all": the whole row in one piece; "plain": logits of the whole row,
log-softmax and entropy by torch, everything kept for the backward pass. Seconds are the thread's processor time.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from midcourse.training.policy import token_logprobs

VOCABULARY = 151_936
PLAIN, ALL = "plain", "all"
CHUNKS = ("64", "256", "1024", ALL, PLAIN)


def _model(hidden_size: int, num_tokens: int) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=hidden_size // 2,
        max_position_embeddings=num_tokens,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def _plain(model: Qwen3ForCausalLM, row: Sequence[int]) -> tuple[Tensor, Tensor]:
    log_softmax = torch.log_softmax(model(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1], dim=-1)
    with torch.no_grad():
        entropies = -(log_softmax.exp() * log_softmax).sum(-1)
    return log_softmax.gather(-1, torch.tensor(row[1:])[:, None]).sum(), entropies.sum()


def _memory_mib(field: str) -> float:
    """Return VmRSS (resident now) or VmHWM (most that ever was) of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1]) / 1024


def measure(hidden_size: int, num_tokens: int, chunk: str) -> dict[str, Any]:
    """Return memory, seconds and what came out of one case; to be run in a process that has done nothing else."""
    model = _model(hidden_size, num_tokens)
    row = torch.randint(VOCABULARY, (num_tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    before, started = _memory_mib("VmRSS"), time.thread_time()
    if chunk == PLAIN:
        logprob_sum, entropy_sum = _plain(model, row)
    else:
        size = num_tokens if chunk == ALL else int(chunk)
        wanted = [[False] + [True] * (num_tokens - 1)]
        found = token_logprobs(model, [row], wanted=wanted, temperatures=[1.0], chunk_tokens=size)
        logprob_sum, entropy_sum = found.logprobs_BT.sum(), found.entropies_BT.sum()
    logprob_sum.backward()
    embedding = model.get_input_embeddings().weight
    assert embedding.grad is not None
    return {
        "hidden": hidden_size,
        "chunk": chunk,
        "added_mib": round(_memory_mib("VmHWM") - before, 1),
        "gradient_mib": round(embedding.grad.numel() * embedding.grad.element_size() / 2**20, 1),
        "seconds": round(time.thread_time() - started, 2),
        "logprob_mean": float(logprob_sum.detach()) / (num_tokens - 1),
        "entropy_mean": float(entropy_sum) / (num_tokens - 1),
        "gradient_norm": float(embedding.grad.norm()),
    }


def measure_apart(hidden_size: int, num_tokens: int, chunk: str) -> dict[str, Any]:
    """Return `measure` of a process of its own, forked from this one, which has computed nothing."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(measure, (hidden_size, num_tokens, chunk))
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--chunk", nargs="+", choices=CHUNKS, default=CHUNKS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [measure_apart(hidden, arguments.tokens, chunk) for hidden in arguments.hidden for chunk in arguments.chunk]
    print(json.dumps({"vocabulary": VOCABULARY, "tokens": arguments.tokens, "cases": cases}, indent=1))


if __name__ == "__main__":
    main()
