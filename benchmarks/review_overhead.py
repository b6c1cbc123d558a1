"""Rollouts under review against plain ones of the same length, in one process, alternating. Ends in one line of JSON.

    python -m benchmarks.review_overhead

Pure orchestration: the judge is a script that answers at once. A random Qwen3 (hidden 128, 4 layers) that never ends a
turn writes responses to arithmetic tasks, 64 side by side, four groups of 16. A plain rollout is one request to the
engine, one under review is one request a chunk: "kept" lets every chunk stand, "revised" replaces the last 8 tokens of
the first and the third chunk by 4 of the judge. Every run starts from an empty prefix cache, as a wave of a training
does.

ratio: seconds under review over seconds of the plain rollouts run just before, the median over rounds.
cpu_ratio: the same for this process's processor time, which others on the machine disturb less.
computed: the same for tokens that ran through the model; those that a correction rejects did so for nothing.
computed_twice: tokens a rollout of prompts and corrections that ran through the model and had done so before: all that
ran, less those drawn, less those of prompts and corrections that no text had begun with until then.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from midcourse.engines.base import Completion, SamplingParams, TokenScores
from midcourse.engines.transformers import TransformersEngine, TransformersEngineConfig
from midcourse.environments.mathematics.arithmetic import ArithmeticConfig, ArithmeticEnvironment
from midcourse.interventions.judge import Correction, Judge, Passage, Verdict
from midcourse.interventions.review import ChunkWriter, ReviewConfig
from midcourse.methods.base import RolloutTools
from midcourse.nano.arithmetic.chat import VOCABULARY, ArithmeticChatFormat
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import Trajectory

GROUP_SIZE = 16
REVISED_CHUNKS = (0, 2)
REJECTED_TOKENS = 8
CORRECTION = "185;"
NEVER = -1e9  # logit


class KeepingJudge:
    """Lets every chunk stand."""

    async def review(self, passage: Passage) -> Verdict:
        """Return a verdict that keeps the chunk."""
        return Verdict(is_kept=True)

    async def correct(self, passage: Passage, *, num_kept: int, max_tokens: int) -> Correction | None:
        """Return nothing; nobody asks."""
        return None


class RevisingJudge:
    """Replaces the end of some chunks by the same few tokens."""

    def __init__(self, chat: ArithmeticChatFormat) -> None:
        self._chat = chat

    async def review(self, passage: Passage) -> Verdict:
        """Return a verdict that names the place where the last tokens of the chunk begin."""
        place = len(passage.chunk_ids) - REJECTED_TOKENS
        if passage.review_index not in REVISED_CHUNKS or place < 0:
            return Verdict(is_kept=True)
        return Verdict(is_kept=False, character=len(self._chat.decode(passage.chunk_ids[:place])))

    async def correct(self, passage: Passage, *, num_kept: int, max_tokens: int) -> Correction | None:
        """Return the tokens, as many as may be written."""
        return Correction(token_ids=tuple(self._chat.encode(CORRECTION)[:max_tokens]))


class NotingEngine(TransformersEngine):
    """An engine that notes what it has to compute."""

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        super().__init__(model, config=TransformersEngineConfig())
        self._prefixes: set[int] = set()
        self._num_due = 0

    @property
    def computed_twice(self) -> int:
        """Tokens of prompts and continuations that ran through the model again."""
        return self.usage().computed_tokens - self._num_due

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """See `Engine.sample`."""
        self._num_due += self._note(prompt_ids)
        completion = await super().sample(prompt_ids, sampling)
        fed_ids = completion.token_ids[:-1]  # the last token was drawn and not run
        self._note((*prompt_ids, *fed_ids))
        self._num_due += len(fed_ids)
        return completion

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int], **settings: Any) -> TokenScores:
        """See `Engine.score`."""
        self._num_due += self._note((*prompt_ids, *continuation_ids))
        return await super().score(prompt_ids, continuation_ids, **settings)

    def _note(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens end a prefix that was not there before."""
        num_before, prefix = len(self._prefixes), 0
        for token in token_ids:
            prefix = hash((prefix, token))
            self._prefixes.add(prefix)
        return len(self._prefixes) - num_before


class World:
    """The same rollouts on any engine, plain or under review."""

    def __init__(self, *, num_rollouts: int, response_tokens: int) -> None:
        self.chat = ArithmeticChatFormat()
        self.environment = ArithmeticEnvironment(ArithmeticConfig(train_tasks=num_rollouts, test_tasks=1))
        self.num_groups = num_rollouts // GROUP_SIZE
        self.rollout = RolloutConfig(temperature=1.0, max_turn_tokens=response_tokens)

    def model(self) -> Qwen3ForCausalLM:
        """Return random weights whose output never ends a turn."""
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=len(VOCABULARY),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
        )
        model = Qwen3ForCausalLM(config)
        head = nn.Linear(config.hidden_size, config.vocab_size)
        with torch.no_grad():
            head.weight.copy_(model.lm_head.weight)
            head.bias.zero_()
            head.bias[list(self.chat.stop_ids)] = NEVER
        model.lm_head = head
        return model.eval()

    def roll_out(
        self, engine: TransformersEngine, *, judge: Judge | None = None, chunk_tokens: int = 1
    ) -> list[Trajectory]:
        """Return the rollouts; without a judge each is one request."""
        tools = RolloutTools(engine=engine, chat=self.chat, environment=self.environment, rollout=self.rollout)
        config = ReviewConfig(chunk_tokens=chunk_tokens, max_reviews=1000, max_intervention_tokens=len(CORRECTION))
        writer = None
        if judge is not None:
            writer = ChunkWriter(tools, config=config, engine=engine, scorer=engine, judge=judge)

        async def all_of_them() -> list[Trajectory]:
            await engine.update_weights(None, 0)  # drops every cached prefix
            return await asyncio.gather(
                *(
                    run_episode(
                        task,
                        engine=engine,
                        chat=self.chat,
                        environment=self.environment,
                        config=self.rollout,
                        key=RolloutKey(seed=0, update=0, task_id=task.task_id, attempt=attempt),
                        turn_writer=writer,
                    )
                    for task in self.environment.tasks("train")[: self.num_groups]
                    for attempt in range(GROUP_SIZE)
                )
            )

        return asyncio.run(all_of_them())


def measure(
    world: World, engine: TransformersEngine, *, judge: Judge, chunk_tokens: int, rounds: int
) -> dict[str, Any]:
    """Return the figures of one judge and one length of chunks."""
    ratios: dict[str, list[float]] = {"ratio": [], "cpu_ratio": [], "computed": []}
    for _ in range(rounds):
        costs: list[tuple[float, ...]] = []
        for reviewer in (None, judge):
            before = (time.perf_counter(), time.process_time(), engine.usage().computed_tokens)
            trajectories = world.roll_out(engine, judge=reviewer, chunk_tokens=chunk_tokens)
            after = (time.perf_counter(), time.process_time(), engine.usage().computed_tokens)
            costs.append(tuple(end - begin for begin, end in zip(before, after, strict=True)))
            lengths = {len(item.token_ids) - item.prompt_length for item in trajectories}
            if lengths != {world.rollout.max_turn_tokens}:
                raise RuntimeError(f"rollouts must all have {world.rollout.max_turn_tokens} tokens: got {lengths}")
        for name, plain, reviewed in zip(ratios, *costs, strict=True):
            ratios[name].append(reviewed / plain)
    noting = NotingEngine(world.model())
    trajectories = world.roll_out(noting, judge=judge, chunk_tokens=chunk_tokens)
    return {
        **{name: round(statistics.median(values), 3) for name, values in ratios.items()},
        "revisions": sum(review.cut is not None for item in trajectories for review in item.reviews)
        / len(trajectories),
        "computed_twice": noting.computed_twice / len(trajectories),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=64, help=f"a multiple of {GROUP_SIZE}")
    parser.add_argument("--response-tokens", type=int, default=224)
    parser.add_argument("--chunk-tokens", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    world = World(num_rollouts=options.rollouts, response_tokens=options.response_tokens)
    engine = TransformersEngine(world.model(), config=TransformersEngineConfig())
    world.roll_out(engine)  # warms both sides up
    judges: dict[str, Judge] = {"kept": KeepingJudge(), "revised": RevisingJudge(world.chat)}
    results = {
        f"{name}_{chunk_tokens}": measure(world, engine, judge=judge, chunk_tokens=chunk_tokens, rounds=options.rounds)
        for chunk_tokens in options.chunk_tokens
        for name, judge in judges.items()
    }
    print(json.dumps({"rollouts": options.rollouts, "response_tokens": options.response_tokens, **results}))


if __name__ == "__main__":
    main()
