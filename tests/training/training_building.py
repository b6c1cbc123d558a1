"""A tiny random Qwen3 and hand-made groups for the tests of training."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from midcourse.training.policy import Policy, PolicyConfig
from midcourse.types import FailureKind, Group, Member, TokenSource, Trajectory

VOCABULARY = 23
POLICY, INTERVENTION, ENVIRONMENT, PROMPT = (
    TokenSource.POLICY,
    TokenSource.INTERVENTION,
    TokenSource.ENVIRONMENT,
    TokenSource.PROMPT,
)


class NoChat:
    """Training needs tokens only."""

    stop_ids = (2,)


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    settings = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(settings).to(dtype).eval()


def tiny_policy(seed: int = 0, dtype: torch.dtype = torch.float32, **settings) -> Policy:
    config = PolicyConfig(path="tiny", device="cpu", **settings)
    return Policy(model=tiny_model(seed, dtype), tokenizer=None, chat=NoChat(), config=config)


def make_trajectory(
    token_ids, *, reward: float | None = 0.0, task_id="task", sources=None, weights=None, logprob=-3.0, temperature=0.8
) -> Trajectory:
    """Two prompt tokens, then the policy's, unless `sources` says otherwise."""
    sources = sources or [PROMPT] * 2 + [POLICY] * (len(token_ids) - 2)
    trained = [source in (POLICY, INTERVENTION) for source in sources]
    return Trajectory(
        task_id=task_id,
        token_ids=tuple(token_ids),
        sources=tuple(sources),
        behavior_logprobs=tuple(logprob if flag else None for flag in trained),
        policy_versions=tuple(0 if flag else None for flag in trained),
        weights=tuple(weights or [1.0] * len(token_ids)),
        calibration_logprobs=(None,) * len(token_ids),
        reward=reward,
        failure=None if reward is not None else FailureKind.ENGINE_ERROR,
        temperature=temperature,
    )


def make_group(rewards, *, task_id="task", seed=0, lengths=(5, 7, 9, 6)) -> Group:
    generator = torch.Generator().manual_seed(seed)
    members = [
        Member(
            trajectory=make_trajectory(
                torch.randint(3, VOCABULARY, (lengths[index % len(lengths)],), generator=generator).tolist(),
                reward=reward,
                task_id=task_id,
            )
        )
        for index, reward in enumerate(rewards)
    ]
    return Group(group_id=f"{task_id}-0", task_id=task_id, members=tuple(members))


def weights_of(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_weights(left, right) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
