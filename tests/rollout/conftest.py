import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.rollout.counting_world import CONFIG, KEY, TASK, CountingWorld, script

from midcourse.engines.scripted import Hang, ScriptedEngine
from midcourse.environments.base import Environment
from midcourse.rollout.chat import ChatMLFormat
from midcourse.rollout.episode import run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, Trajectory

CHATML_SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEXTS = (
    "system user assistant\ntool You have tools",
    '{"name": "search", "arguments": {"query": "Oslo", "key": "value"}}',
    "the answer is in the north of the city, where the river is",
)

BuildTokenizer = Callable[..., Any]


@pytest.fixture(scope="session")
def build_tokenizer() -> BuildTokenizer:
    """Return a builder of small byte-level tokenizers, as the Qwen family has them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def build(
        marks: Sequence[str] = MARKS,
        chat_template: str | dict[str, str] | None = None,
        specials: Sequence[str] = CHATML_SPECIALS,
        eos: str = "<|im_end|>",
        bos: str | None = None,
    ) -> PreTrainedTokenizerFast:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=330,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=list(specials),
            show_progress=False,
        )
        backend.train_from_iterator(TEXTS, trainer)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, eos_token=eos, bos_token=bos, pad_token=specials[-1]
        )
        tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
        tokenizer.chat_template = chat_template
        return tokenizer

    return build


@pytest.fixture(scope="session")
def tokenizer(build_tokenizer: BuildTokenizer) -> Any:
    return build_tokenizer()


@pytest.fixture(scope="module")
def chat(tokenizer):
    return ChatMLFormat(tokenizer)


@pytest.fixture
def roll(chat):
    """Return a function that rolls out scripted turns: AssistantTurns, texts as sampled, exceptions."""

    def run(
        turns: Sequence[AssistantTurn | str | Exception | Hang],
        *,
        world: Environment | None = None,
        config: RolloutConfig = CONFIG,
        engine: ScriptedEngine | None = None,
        **options: Any,
    ) -> Trajectory:
        engine = engine or ScriptedEngine(script(chat, turns))
        world = world or CountingWorld()
        arguments = {"engine": engine, "chat": chat, "environment": world, "config": config, "key": KEY} | options
        trajectory = asyncio.run(run_episode(TASK, **arguments))
        assert engine.num_participants == 0
        return trajectory

    return run
