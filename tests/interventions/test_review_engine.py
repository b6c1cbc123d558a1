"""Reviews on the embedded engine with a small random model: draws, caches, the barrier, another tokenizer."""

import asyncio
import random
from dataclasses import replace

import pytest
import torch
from tests.interventions.review_world import KEY, TASK, SpellWorld, write
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from midcourse.engines.scripted import ScriptedEngine
from midcourse.engines.transformers import TransformersEngine, TransformersEngineConfig
from midcourse.interventions.judge import Correction, JudgeConfig, Verdict
from midcourse.methods.base import RolloutTools, Speaker
from midcourse.rollout.chat import ChatMLFormat
from midcourse.rollout.episode import run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import FailureKind, ReviewOutcome, TokenSource

KEEP = '{"verdict": "keep"}'


def build_chat(vocabulary_size: int) -> ChatMLFormat:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(["the sum of the numbers is twelve and the rest is three"] * 3, trainer)
    return ChatMLFormat(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>"))


CHAT, OTHER_CHAT = build_chat(300), build_chat(270)


def build_model(seed: int = 0, vocabulary_size: int = 300) -> Qwen3ForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def make_tools(*, judge=None, max_turn_tokens=48, model=None, **rest) -> RolloutTools:
    engine = TransformersEngine(model or build_model(), config=TransformersEngineConfig(barrier_timeout_seconds=30.0))
    return RolloutTools(
        engine=engine,
        chat=CHAT,
        environment=SpellWorld(),
        rollout=RolloutConfig(temperature=0.9, max_turn_tokens=max_turn_tokens),
        judge=judge,
        **rest,
    )


class Dice:
    """Revises at places that the key decides, with tokens that the key decides."""

    def __init__(self, *, odds: float = 0.6) -> None:
        self.odds = odds

    def draw(self, passage):
        return random.Random(passage.key.turn_seed(passage.review_index, "dice"))

    async def review(self, passage):
        dice = self.draw(passage)
        if not passage.text.shown or dice.random() > self.odds:
            return Verdict(is_kept=True)
        return Verdict(is_kept=False, character=dice.randrange(len(passage.text.shown)))

    async def correct(self, passage, *, num_kept, max_tokens):
        dice = self.draw(passage)
        return Correction(token_ids=tuple(dice.randrange(2, 290) for _ in range(max_tokens)))


def plain(tools, key=KEY):
    return asyncio.run(
        run_episode(TASK, engine=tools.engine, chat=CHAT, environment=SpellWorld(), config=tools.rollout, key=key)
    )


@pytest.mark.parametrize("attempt", range(3))
def test_chunks_draw_what_one_request_draws(attempt):
    key = replace(KEY, attempt=attempt)
    whole = plain(make_tools(), key)
    chunked = asyncio.run(write(make_tools(), judge=None, key=key, chunk_tokens=7))
    reviewed = asyncio.run(write(make_tools(), judge=Dice(odds=0.0), key=key, chunk_tokens=7))
    assert whole.count(TokenSource.POLICY) > 20
    assert chunked.token_ids == reviewed.token_ids == whole.token_ids
    for found in (chunked, reviewed):
        assert found.behavior_logprobs[whole.prompt_length :] == pytest.approx(
            whole.behavior_logprobs[whole.prompt_length :], abs=1e-5
        )
    assert {review.outcome for review in reviewed.reviews} == {ReviewOutcome.KEPT}


@pytest.mark.parametrize("attempt", range(8))
def test_every_token_has_its_author_and_the_policys_own_log_probability(attempt):
    model = build_model()
    trajectory = asyncio.run(
        write(
            make_tools(model=model),
            judge=Dice(),
            key=replace(KEY, attempt=attempt),
            chunk_tokens=9,
            max_intervention_tokens=3,
        )
    )
    ids = torch.tensor([trajectory.token_ids])
    with torch.no_grad():
        logits = model(ids).logits[0] / 0.9
    expected = torch.log_softmax(logits, -1)[:-1].gather(-1, ids[0, 1:, None])[:, 0].tolist()
    start = trajectory.prompt_length
    assert trajectory.behavior_logprobs[start:] == pytest.approx(expected[start - 1 :], abs=1e-4)
    written = {
        position
        for review in trajectory.reviews
        if review.cut is not None
        for position in range(review.cut, review.cut + review.correction_tokens)
    }
    assert written == {i for i, source in enumerate(trajectory.sources) if source is TokenSource.INTERVENTION}
    assert len(trajectory.token_ids) - start <= 48
    for review in trajectory.reviews:
        assert review.start <= (review.cut if review.cut is not None else review.start) < review.end


def test_the_same_key_writes_the_same_tokens_whoever_is_beside():
    def rollouts(attempts):
        tools = make_tools()

        async def all_of_them():
            return await asyncio.gather(
                *(write(tools, judge=Dice(), key=replace(KEY, attempt=attempt), chunk_tokens=8) for attempt in attempts)
            )

        return asyncio.run(all_of_them())

    together, alone = rollouts(range(4)), rollouts([2])
    assert together[2].token_ids == alone[0].token_ids
    assert together == rollouts(range(4))


class NotingEngine(TransformersEngine):
    """Notes how many tokens must be computed: of prompts those that are new when asked for, and those drawn."""

    def __init__(self, model):
        super().__init__(model, config=TransformersEngineConfig(barrier_timeout_seconds=30.0))
        self.prefixes, self.num_due = set(), 0

    def note(self, token_ids):
        num_before = len(self.prefixes)
        self.prefixes |= {tuple(token_ids[: end + 1]) for end in range(len(token_ids))}
        return len(self.prefixes) - num_before

    async def sample(self, prompt_ids, sampling):
        self.num_due += self.note(tuple(prompt_ids))
        completion = await super().sample(prompt_ids, sampling)
        fed_ids = completion.token_ids[:-1]
        self.note((*prompt_ids, *fed_ids))
        self.num_due += len(fed_ids)
        return completion

    async def score(self, prompt_ids, continuation_ids, **settings):
        self.num_due += self.note((*prompt_ids, *continuation_ids))
        return await super().score(prompt_ids, continuation_ids, **settings)


@pytest.mark.parametrize("odds", [0.0, 0.6, 1.0])
def test_no_prefix_token_of_a_reviewed_group_is_computed_twice(odds):
    engine = NotingEngine(build_model())
    tools = replace(make_tools(max_turn_tokens=96), engine=engine)
    keys = [replace(KEY, attempt=attempt) for attempt in range(6)]

    async def group():
        return await asyncio.gather(
            *(
                write(
                    tools,
                    judge=Dice(odds=odds),
                    key=key,
                    chunk_tokens=13,
                    max_reviews=20,
                    max_intervention_tokens=4,
                )
                for key in keys
            )
        )

    trajectories = asyncio.run(group())
    assert all((trajectory.count(TokenSource.INTERVENTION) > 0) == (odds > 0) for trajectory in trajectories)
    usage = engine.usage()
    assert usage.computed_tokens == engine.num_due
    assert usage.prompt_tokens - usage.prompt_tokens_reused < usage.prompt_tokens / 10


class WaitingServer:
    """Answers the first request when it is told to."""

    def __init__(self):
        self.gate, self.asked = asyncio.Event(), 0

    async def complete(self, messages, **settings):
        self.asked += 1
        if self.asked == 1:
            await self.gate.wait()
        return KEEP

    async def close(self):
        pass


def test_a_rollout_that_waits_for_a_server_holds_up_no_batch():
    async def both():
        server = WaitingServer()
        tools = make_tools(role_engines={"judge": server})
        judge = JudgeConfig(played_by="engine")
        waiting = asyncio.ensure_future(write(tools, judge=judge, chunk_tokens=8))
        while not server.asked:
            await asyncio.sleep(0.01)
        # Far below the barrier's timeout of 30 s, which would let it through as well.
        other = await asyncio.wait_for(write(tools, judge=judge, key=replace(KEY, attempt=1), chunk_tokens=8), 10)
        assert not waiting.done()
        server.gate.set()
        return other, await asyncio.wait_for(waiting, 10)

    other, waited = asyncio.run(both())
    assert other.failure is None
    assert waited.token_ids == plain(make_tools()).token_ids


def test_a_frozen_copy_judges_beside_the_policy_without_waiting_for_each_other():
    judge = Speaker(
        engine=TransformersEngine(build_model(1), config=TransformersEngineConfig()), chat=CHAT, shares_tokens=True
    )
    tools = make_tools(judge=judge)

    async def several():
        return await asyncio.wait_for(
            asyncio.gather(
                *(
                    write(
                        tools,
                        judge=JudgeConfig(played_by="frozen", max_tokens=8),
                        key=replace(KEY, attempt=attempt),
                        chunk_tokens=12,
                    )
                    for attempt in range(4)
                )
            ),
            timeout=20,
        )

    for trajectory in asyncio.run(several()):
        assert trajectory.failure is not FailureKind.ENGINE_ERROR
        # A random model writes no verdict.
        assert {review.outcome for review in trajectory.reviews} == {ReviewOutcome.UNREADABLE}


def other_speaker(correction: str, quote: str):
    """A judge of another vocabulary: says where, then writes `correction`."""
    seen = []

    def say(prompt_ids, sampling):
        seen.append(OTHER_CHAT.decode(prompt_ids))
        if len(seen) == 1:
            reply = f'{{"verdict": "revise", "quote": "{quote}"}}'
            return [*OTHER_CHAT.encode(reply), OTHER_CHAT.stop_ids[0]]
        if len(seen) == 2:
            return OTHER_CHAT.encode(correction)
        return [*OTHER_CHAT.encode(KEEP), OTHER_CHAT.stop_ids[0]]

    return Speaker(engine=ScriptedEngine(say), chat=OTHER_CHAT, shares_tokens=False), seen


@pytest.mark.parametrize(
    ("response", "quote", "correction", "kept"),
    [
        ("the sum is twelve 😀 so", "twelve", " three", "the sum is"),
        ("答案是四十二", "四", "五", "答案是"),
        ("naïve café café", "café", "tea", "naïve "),
    ],
)
def test_a_judge_of_another_vocabulary_corrects_in_the_policys_tokens(response, quote, correction, kept):
    speaker, seen = other_speaker(correction, quote)
    ids = CHAT.encode(response)
    policy = ScriptedEngine(lambda prompt_ids, sampling: ids if len(seen) == 0 else [CHAT.stop_ids[0]])
    tools = replace(make_tools(judge=speaker), engine=policy)
    trajectory = asyncio.run(
        write(tools, judge=JudgeConfig(played_by="frozen"), chunk_tokens=64, max_intervention_tokens=16)
    )
    written = trajectory.token_ids[trajectory.prompt_length : -1]
    assert list(written) == [*CHAT.encode(kept), *CHAT.encode(correction)]
    assert CHAT.decode(written) == kept + correction
    assert trajectory.count(TokenSource.INTERVENTION) == len(CHAT.encode(correction))
    assert seen[1].endswith(kept)
