"""Small real runs of any method: a tiny random model that writes letters, in a world that rewards even lengths."""

import torch
from tests.interventions.review_world import SpellEpisode, SpellScript, SpellWorld
from tests.interventions.scripted_world import LetterChat
from transformers import Qwen3Config, Qwen3ForCausalLM

from midcourse.engines.transformers import TransformersEngineConfig
from midcourse.environments.base import Evidence, Task
from midcourse.interventions.judge import Continuation
from midcourse.methods.base import RolloutTools, Speaker
from midcourse.rollout.limits import RolloutConfig
from midcourse.training.config import TrainingConfig
from midcourse.training.policy import Policy, PolicyConfig
from midcourse.training.trainer import TrainingParts, train


class EvenEpisode(SpellEpisode):
    """Rewards answers of even length."""

    def score(self) -> float:
        return float(len(self.content) % 2 == 0)


class Meddler(SpellScript):
    """Finds something wrong in two chunks out of three."""

    def review(self, task, *, accepted, chunk, is_ended):
        return len(accepted) % 3 if chunk and (len(accepted) + ord(chunk[0])) % 3 and len(chunk) > 3 else None

    def correct(self, task, *, accepted):
        return Continuation(text="ok", is_ended=len(accepted) > 12)


class EvenWorld(SpellWorld):
    def tasks(self, split):
        evidence = Evidence(text="", private_values=())
        return [Task(task_id=f"t{i}", split=split, query=f"{i}", evidence=evidence) for i in range(5)]

    def start(self, task, *, seed):
        return EvenEpisode(self.max_turns)

    def judge_script(self):
        return Meddler()


class Notes:
    """Keeps what a run records."""

    def __init__(self):
        self.metrics, self.groups = {}, {}

    def write_metrics(self, update, metrics):
        self.metrics[update] = {key: value for key, value in metrics.items() if not key.startswith("time/")}

    def write_groups(self, update, groups):
        self.groups[update] = groups

    def write_evaluation(self, update, evaluation):
        pass

    def truncate_after(self, update):
        pass


def letter_policy(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
    )
    model = Qwen3ForCausalLM(config).eval()
    return Policy(model=model, tokenizer=None, chat=LetterChat(), config=PolicyConfig(path="tiny", device="cpu"))


def train_letters(
    folder, method, *, updates, resume=False, policy=None, teacher=None, environment=None, notes=None, **settings
):
    """Return what a run recorded, and its policy; `teacher`: the policy whose weights teach."""
    policy = policy or letter_policy()
    judge = None
    if teacher is not None:
        engine = TransformersEngineConfig().build(teacher.model)
        judge = Speaker(engine=engine, chat=teacher.chat, shares_tokens=True)
    tools = RolloutTools(
        engine=TransformersEngineConfig().build(policy.model),
        chat=policy.chat,
        environment=environment or EvenWorld(),
        rollout=RolloutConfig(temperature=1.0, max_turn_tokens=24, groups_per_wave=2),
        vocabulary_size=policy.model.config.vocab_size,
        judge=judge,
    )
    notes = notes or Notes()
    parts = TrainingParts(
        policy=policy, tools=tools, method=method, recorder=notes, tasks=tools.environment.tasks("train")
    )
    values = {"tasks_per_update": 3, "learning_rate": 1e-2, "checkpoint_every": 1, "micro_batch_tokens": 80}
    train(parts, TrainingConfig(updates=updates, **{**values, **settings}), seed=3, folder=folder, resume=resume)
    return notes, policy
