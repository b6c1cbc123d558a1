"""A world for branches in the letters of `scripted_world`: looking (`+l`) shows something of the episode's own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from tests.interventions.scripted_world import TASK, LetterChat, PressEpisode, PressWorld

from midcourse.engines.base import Completion, SamplingParams, TokenScores
from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments.base import Observation, Task
from midcourse.methods.base import RolloutTools
from midcourse.rollout.episode import RolloutKey
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, ToolResult, Trajectory

KEY = RolloutKey(seed=5, update=2, task_id=TASK.task_id, attempt=0)
HIDDEN_SIZE = 4
VOCABULARY = 128


class SeededEpisode(PressEpisode):
    """Answers every look with a number that follows from its seed; its answers can be told to change."""

    def __init__(self, world: "SeededWorld", seed: int) -> None:
        super().__init__(world.judge)
        self.seed, self.shift, self.is_closed = seed, world.shift, False

    def act(self, turn: AssistantTurn) -> Observation:
        found = super().act(turn)
        number = (self.seed // 10 ** len(self.keys) + self.shift) % 10
        results = tuple(ToolResult(name="press", content=f"{result.content[-1]}{number}") for result in found.results)
        return Observation(results=results, done=found.done)

    def close(self) -> None:
        self.is_closed = True


class SeededWorld(PressWorld):
    """Remembers the episodes that it started. `shift` changes what episodes started from then on answer."""

    def __init__(self, *, judge: Callable[[str], float] = lambda keys: float(keys.endswith("b"))) -> None:
        super().__init__()
        self.judge, self.shift = judge, 0
        self.episodes: list[SeededEpisode] = []

    def start(self, task: Task, *, seed: int) -> SeededEpisode:
        self.episodes.append(SeededEpisode(self, seed))
        return self.episodes[-1]


EntropyScript = Callable[[SamplingParams], float]


class KnowingEngine(ScriptedEngine):
    """A scripted engine with entropies by request, and hidden states: the number of tokens before, and ones."""

    def __init__(self, script: Any, *, entropy_of: EntropyScript = lambda sampling: 0.5, **settings: Any) -> None:
        super().__init__(script, **settings)
        self._entropy_of = entropy_of

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        drawn = await super().sample(prompt_ids, sampling)
        return replace(drawn, entropies=[self._entropy_of(sampling)] * len(drawn.token_ids))

    async def score(
        self, prompt_ids: Sequence[int], continuation_ids: Sequence[int], *, temperature=1.0, want_hidden=False
    ) -> TokenScores:
        scores = await super().score(prompt_ids, continuation_ids, temperature=temperature)
        if not want_hidden:
            return scores
        lengths = torch.arange(len(prompt_ids), len(prompt_ids) + len(continuation_ids), dtype=torch.float32)
        hidden = torch.stack([lengths, *[torch.ones_like(lengths)] * (HIDDEN_SIZE - 1)], dim=1)
        return replace(scores, hidden=hidden)


Draft = Callable[[str, SamplingParams], str]
"""(text before the turn, how it is drawn) -> the turn."""


def writing(draft: Draft) -> Callable[[Sequence[int], SamplingParams], Any]:
    """Return a script for an engine that plays the policy alone."""
    return lambda prompt_ids, sampling: [*map(ord, draft("".join(map(chr, prompt_ids)), sampling))]


def make_tools(engine: Any, world: Any, *, temperature: float = 0.8) -> RolloutTools:
    return RolloutTools(
        engine=engine,
        chat=LetterChat(),
        environment=world,
        rollout=RolloutConfig(temperature=temperature, max_turn_tokens=16),
        vocabulary_size=VOCABULARY,
    )


def text_of(trajectory: Trajectory) -> str:
    return "".join(map(chr, trajectory.token_ids))
