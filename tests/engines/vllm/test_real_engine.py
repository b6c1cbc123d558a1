"""The engine over a real server on a CPU, against the trainer's own numbers."""

import asyncio
import json
from dataclasses import replace

import pytest
import torch
from tests.engines.vllm.conftest import ONE_THREAD, PYTHON
from tests.training.training_building import NoChat
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from midcourse.engines.base import SamplingParams
from midcourse.engines.vllm.config import VllmEngineConfig
from midcourse.engines.vllm.engine import VllmEngine
from midcourse.interventions.reading import CorrectorReply, ValidatorReply, VerifierReply, read_reply
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.training.config import TrainingConfig
from midcourse.training.policy import Policy, PolicyConfig
from midcourse.training.update import Updater
from midcourse.types import Group, Member, TokenSource, Trajectory

pytestmark = pytest.mark.vllm
TOLERANCE = 1e-4  # nats, float32
CAP = 1.01  # of importance ratios: float32 stays under it, bfloat16 does not
END = 257
PROMPT = list(range(10, 60))
DRAWS = {
    "plain": {},
    "warm": {"temperature": 0.7},
    "top-k": {"temperature": 0.7, "top_k": 10},
    "top-p": {"temperature": 0.7, "top_p": 0.8},
    "greedy": {"temperature": 0.0},
    "reported at 1": {"temperature": 0.7, "report_temperature": 1.0},
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes and the ends of turns."""
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def started(runner, model, *, dtype="float32", **settings) -> VllmEngine:
    server = {
        "python": PYTHON,
        "dtype": dtype,
        "environment": ONE_THREAD,
        "arguments": ("--enforce-eager",),
        "context_length": 512,
        "start_seconds": 2400.0,  # of a machine that others use, too
    }
    engine = VllmEngine(model, config=VllmEngineConfig(server=server, **settings), tokenizer=byte_tokenizer())
    runner.run(engine.open())
    return engine


@pytest.fixture(scope="module")
def trained(small_qwen3):
    return small_qwen3(is_tied=True)


@pytest.fixture(scope="module", params=["processed", "raw"])
def engine(request, runner, trained):
    made = started(runner, trained, logprobs=request.param, entropies="top_logprobs")
    yield made
    runner.run(made.close())


def told(model, token_ids, temperature):
    """[N] log-probabilities and [N] entropies of a forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    rows = (logits / temperature).log_softmax(-1)
    return rows[range(len(token_ids)), list(token_ids)], -(rows.exp() * rows).sum(-1)


@pytest.mark.parametrize("draw", DRAWS)
def test_logprobs_are_the_trainers_and_a_seed_gives_the_same_again(engine, runner, trained, draw):
    sampling = SamplingParams(max_tokens=40, seed=7, **DRAWS[draw])
    completion = runner.run(engine.sample(PROMPT, sampling))
    temperature = sampling.report_temperature or sampling.temperature or 1.0
    logprobs, entropies = told(trained, completion.token_ids, temperature)
    worst = float((torch.tensor(completion.logprobs) - logprobs).abs().max())
    print(f"\n{engine.config.logprobs}, {draw}: at most {worst:.1e} nats off")
    assert worst < TOLERANCE
    assert all(bound <= entropy + TOLERANCE for bound, entropy in zip(completion.entropies, entropies, strict=False))
    again = runner.run(engine.sample(PROMPT, sampling))
    other = runner.run(engine.sample(PROMPT, replace(sampling, seed=8)))
    chunk = runner.run(engine.sample(PROMPT, replace(sampling, first_draw=3)))
    assert again.token_ids == completion.token_ids
    if draw != "greedy":
        assert completion.token_ids not in (other.token_ids, chunk.token_ids)


def test_a_stop_token_is_the_completions_last(engine, runner):
    whole = runner.run(engine.sample(PROMPT, SamplingParams(max_tokens=20, seed=7)))
    stop = whole.token_ids[5]
    cut = runner.run(engine.sample(PROMPT, SamplingParams(max_tokens=20, seed=7, stop_ids=(stop,))))
    first = list(whole.token_ids).index(stop)
    assert (list(cut.token_ids), cut.finish_reason) == (list(whole.token_ids[: first + 1]), "stop")


def test_scoring_equals_sampling(engine, runner):
    completion = runner.run(engine.sample(PROMPT, SamplingParams(max_tokens=30, seed=9)))
    asked = engine._client.counters.scored_tokens
    for temperature in (1.0, 0.7):
        scores = runner.run(engine.score(PROMPT, completion.token_ids, temperature=temperature))
        again = runner.run(engine._trainer_score(PROMPT, completion.token_ids, temperature=temperature))
        assert scores.logprobs == pytest.approx(again.logprobs, abs=TOLERANCE)
        if temperature == 1.0:
            assert scores.logprobs == pytest.approx(completion.logprobs, abs=TOLERANCE)
    assert engine._client.counters.scored_tokens == asked + 30


@pytest.mark.parametrize("reply", [ValidatorReply, VerifierReply, CorrectorReply])
def test_a_reply_follows_its_schema_as_far_as_it_comes(engine, runner, reply):
    """A model of random weights writes strings without end: some replies are cut, the others can be read."""
    tokenizer, schema = byte_tokenizer(), reply.model_json_schema()

    async def ask():
        return await asyncio.gather(
            *(
                engine.sample(
                    PROMPT,
                    SamplingParams(max_tokens=300, temperature=0.7, seed=seed, stop_ids=(END,), json_schema=schema),
                )
                for seed in range(8)
            )
        )

    replies = runner.run(ask())
    for completion in replies:
        text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        assert text.startswith('{"')
        if completion.finish_reason == "stop":
            json.loads(text)
            assert read_reply(text, reply) is not None


def test_what_the_prefix_cache_saved_is_counted(engine, runner):
    prompt = [*range(20, 220)] * 2
    before = engine.usage().prompt_tokens_reused
    for seed in range(2):
        runner.run(engine.sample(prompt, SamplingParams(max_tokens=2, seed=seed)))
    assert engine.usage().prompt_tokens_reused - before >= 256


def test_many_requests_at_once_are_those_of_one_after_the_other(engine, runner, trained):
    async def together():
        samplings = [SamplingParams(max_tokens=16, seed=seed, temperature=0.7) for seed in range(24)]
        return await asyncio.gather(*(engine.sample(PROMPT, sampling) for sampling in samplings))

    completions = runner.run(together())
    assert len({tuple(completion.token_ids) for completion in completions}) == 24
    for completion in completions:
        logprobs, _ = told(trained, completion.token_ids, 0.7)
        assert completion.logprobs == pytest.approx(logprobs.tolist(), abs=TOLERANCE)


def mismatch(runner, engine, model) -> dict[str, float]:
    """Return what an update says of the distance between engine and trainer."""

    async def draw():
        samplings = [SamplingParams(max_tokens=48, seed=seed) for seed in range(6)]
        return await asyncio.gather(*(engine.sample(PROMPT, sampling) for sampling in samplings))

    def trajectory(completion, reward):
        count = len(completion.token_ids)
        return Trajectory(
            task_id="task",
            token_ids=(*PROMPT, *completion.token_ids),
            sources=(TokenSource.PROMPT,) * len(PROMPT) + (TokenSource.POLICY,) * count,
            behavior_logprobs=(None,) * len(PROMPT) + tuple(completion.logprobs),
            policy_versions=(None,) * len(PROMPT) + (completion.policy_version,) * count,
            weights=(1.0,) * (len(PROMPT) + count),
            calibration_logprobs=(None,) * (len(PROMPT) + count),
            reward=reward,
        )

    members = [
        Member(trajectory=trajectory(completion, float(index % 2)))
        for index, completion in enumerate(runner.run(draw()))
    ]
    policy = Policy(model=model, tokenizer=None, chat=NoChat(), config=PolicyConfig(path="small", device="cpu"))
    updater = Updater(policy, ClippedObjective(ClippedConfig()), TrainingConfig(importance_cap=CAP, learning_rate=1e-6))
    group = Group(group_id="group", task_id="task", members=members)
    return updater.update([group], [[1.0 if index % 2 else -1.0 for index in range(len(members))]])


def test_a_bfloat16_server_is_seen_in_the_mismatch_and_its_weights_are_capped(engine, runner, small_qwen3):
    if engine.config.logprobs == "raw":
        pytest.skip("the distance between dtypes is the same in either mode")
    model = small_qwen3(is_tied=True)
    precise = mismatch(runner, engine, model)
    rough_engine = started(runner, small_qwen3(is_tied=True), dtype="bfloat16")
    try:
        rough = mismatch(runner, rough_engine, small_qwen3(is_tied=True))
    finally:
        runner.run(rough_engine.close())
    print(f"\nfloat32: {shown(precise)}\nbfloat16: {shown(rough)}")
    assert precise["mismatch/max_abs_logprob"] < TOLERANCE
    assert precise["mismatch/capped_fraction"] == 0
    assert rough["mismatch/mean_abs_logprob"] > 20 * precise["mismatch/mean_abs_logprob"]
    assert rough["mismatch/kl"] > precise["mismatch/kl"]
    assert 0 < rough["mismatch/capped_fraction"] < 1


def shown(metrics):
    return {name: f"{value:.1e}" for name, value in metrics.items() if name.startswith("mismatch/")}
