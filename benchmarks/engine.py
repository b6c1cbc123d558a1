"""The embedded engine against model.generate(), in one process, both sides alternating. Prints one JSON object.

    python -m benchmarks.engine

single_turn: 64 different prompts of 64 tokens, one completion of 48 tokens each. groups: the same with 8 prompts of 8
completions each, as a group's rollouts start; the engine computes each prompt once. episodes: 4 turns from a 300-token
prompt; each turn adds a completion and a tool answer, and generate() gets the whole history again. branches: 12
continuations of 32 tokens from a 200-token prefix that a rollout has just computed; reprefill_ratio is against the same
engine where each continuation has a prefix of its own, branches_ratio against generate(). Ratios are
generate's seconds over the engine's for the same number of tokens: above 1 the engine is faster. Each ratio is the
median over rounds.
max_logprob_difference: sampled log-probabilities against one full forward of the model.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time

import torch
from benchmarks.models import VOCABULARY, random_model
from transformers import Qwen3ForCausalLM

from midcourse.engines.base import Completion, SamplingParams
from midcourse.engines.transformers import TransformersEngine, TransformersEngineConfig

ANSWER_TOKENS = 24


def _prompts(count: int, length: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (count, length), generator=generator).tolist()


def _generate(model: Qwen3ForCausalLM, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    ids = torch.tensor(prompts)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        temperature=0.8,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        pad_token_id=0,
    )
    return output[:, ids.shape[1] :].tolist()


def _sample(engine: TransformersEngine, prompts: list[list[int]], new_tokens: int) -> list[Completion]:
    async def ask() -> list[Completion]:
        return await asyncio.gather(
            *(
                engine.sample(prompt, SamplingParams(max_tokens=new_tokens, temperature=0.8, seed=index))
                for index, prompt in enumerate(prompts)
            )
        )

    return asyncio.run(ask())


def _seconds_single(
    model, engine, *, batch: int, new_tokens: int, seed: int, group_size: int = 1
) -> tuple[float, float]:
    prompts = [prompt for prompt in _prompts(batch // group_size, 64, seed) for _ in range(group_size)]
    started = time.perf_counter()
    _generate(model, prompts, new_tokens)
    middle = time.perf_counter()
    _sample(engine, prompts, new_tokens)
    return middle - started, time.perf_counter() - middle


def _seconds_episodes(model, engine, *, batch: int, turns: int, new_tokens: int, seed: int) -> tuple[float, float]:
    answers = [_prompts(batch, ANSWER_TOKENS, seed + 1 + turn) for turn in range(turns)]
    histories = _prompts(batch, 300, seed)
    started = time.perf_counter()
    for turn in range(turns):
        replies = _generate(model, histories, new_tokens)
        histories = [h + r + a for h, r, a in zip(histories, replies, answers[turn], strict=True)]
    middle = time.perf_counter()
    histories = _prompts(batch, 300, seed)
    for turn in range(turns):
        replies = [list(completion.token_ids) for completion in _sample(engine, histories, new_tokens)]
        histories = [h + r + a for h, r, a in zip(histories, replies, answers[turn], strict=True)]
    return middle - started, time.perf_counter() - middle


def _seconds_branches(model, engine, *, branches: int, length: int, new_tokens: int, seed: int) -> tuple[float, ...]:
    """Return the seconds of generate(), of the engine where every prefix is another, and of it where all share one."""
    (prefix,) = _prompts(1, length, seed)
    others = _prompts(branches, length, seed + 1)
    _sample(engine, [prefix], 1)  # the rollout that is branched
    times = [time.perf_counter()]
    _generate(model, [prefix] * branches, new_tokens)
    times.append(time.perf_counter())
    _sample(engine, others, new_tokens)
    times.append(time.perf_counter())
    _sample(engine, [prefix] * branches, new_tokens)
    times.append(time.perf_counter())
    return tuple(end - begin for begin, end in itertools.pairwise(times))


def _max_difference(model: Qwen3ForCausalLM, engine: TransformersEngine) -> float:
    prompts = [prompt[: 20 + index] for index, prompt in enumerate(_prompts(8, 64, 99))]
    worst = 0.0
    for prompt, completion in zip(prompts, _sample(engine, prompts, 24), strict=True):
        tokens = torch.tensor([[*prompt, *completion.token_ids]])
        with torch.no_grad():
            logprobs = (model(tokens).logits[0, len(prompt) - 1 : -1].float() / 0.8).log_softmax(dim=-1)
        full = logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        worst = max(worst, (full - torch.tensor(completion.logprobs)).abs().max().item())
    return worst


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episode-batch", type=int, default=16)
    parser.add_argument("--episode-tokens", type=int, default=24, help="completion tokens of one turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = random_model(options.hidden_size).to(getattr(torch, options.dtype))
    engine = TransformersEngine(model, config=TransformersEngineConfig())
    _seconds_single(model, engine, batch=64, new_tokens=2, seed=7)  # warm both sides up
    single, groups, episodes, branches = [], [], [], []
    for seed in range(options.rounds):
        engine.drop_cache()
        single.append(_seconds_single(model, engine, batch=64, new_tokens=48, seed=100 * seed))
        engine.drop_cache()
        groups.append(_seconds_single(model, engine, batch=64, new_tokens=48, seed=100 * seed + 50, group_size=8))
        engine.drop_cache()
        episodes.append(
            _seconds_episodes(
                model,
                engine,
                batch=options.episode_batch,
                turns=4,
                new_tokens=options.episode_tokens,
                seed=1000 + 100 * seed,
            )
        )
        engine.drop_cache()
        branches += [
            _seconds_branches(model, engine, branches=12, length=200, new_tokens=32, seed=2000 + 100 * seed + again)
            for again in range(5)
        ]
    median = statistics.median
    result = {
        "hidden_size": options.hidden_size,
        "dtype": options.dtype,
        "rounds": options.rounds,
        "single_turn_ratio": round(median(theirs / ours for theirs, ours in single), 2),
        "single_turn_tokens_per_second": round(64 * 48 / median(ours for _, ours in single)),
        "groups_ratio": round(median(theirs / ours for theirs, ours in groups), 2),
        "episodes_ratio": round(median(theirs / ours for theirs, ours in episodes), 2),
        "episodes_tokens_per_second": round(
            options.episode_batch * 4 * options.episode_tokens / median(ours for _, ours in episodes)
        ),
        "branches_ratio": round(median(theirs / ours for theirs, _, ours in branches), 2),
        "reprefill_ratio": round(median(again / ours for _, again, ours in branches), 2),
        "max_logprob_difference": _max_difference(model, engine),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
