"""A world that counts, its task, and scripts of what a policy writes in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from midcourse.environments.base import Evidence, Observation, RoleGuide, Task, Tool
from midcourse.rollout.chat import ChatMLFormat
from midcourse.rollout.episode import RolloutKey
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import (
    AssistantTurn,
    TokenSource,
    ToolCall,
    ToolResult,
    Trajectory,
)

TASK = Task(
    task_id="count", split="train", query="Count to two.", evidence=Evidence(text="secret", private_values=("secret",))
)
KEY = RolloutKey(seed=7, update=3, task_id="count", attempt=1)
CONFIG = RolloutConfig(max_turn_tokens=200, environment_timeout_seconds=5.0)
CALL = AssistantTurn(reasoning="one more", tool_calls=(ToolCall("count", {}),))
ANSWER = AssistantTurn(content="Two.")


@dataclass
class CountingEpisode:
    """Counts calls; done with an answer; rewards two calls. Behaviour is replaced through the world's fields."""

    world: "CountingWorld"
    count: int = 0
    turns: list[AssistantTurn] = field(default_factory=list)
    num_closed: int = 0

    def act(self, turn: AssistantTurn) -> Observation:
        self.turns.append(turn)
        self.world.on_act()
        if not turn.tool_calls:
            return Observation(done=True)
        results = []
        for call in turn.tool_calls:
            self.count += 1
            results.append(ToolResult(name=call.name, content=f"count is {self.count}"))
        return Observation(results=results)

    def score(self) -> Any:
        value = self.world.on_score()
        return float(self.count == 2) if value is None else value

    def fork(self) -> "CountingEpisode":
        return CountingEpisode(self.world, count=self.count)

    def close(self) -> None:
        self.num_closed += 1
        self.world.on_close()


@dataclass
class CountingWorld:
    name: str = "counting"
    system_prompt: str = "You count."
    tools: Sequence[Tool] = (Tool(name="count", description="Counts.", parameters={"type": "object"}),)
    max_turns: int = 6
    role_guide: RoleGuide = field(
        default_factory=lambda: RoleGuide(hard_rules=(), error_types=(), verifier_rejects=(), verifier_allows=())
    )
    on_start: Callable[[], Any] = lambda: None
    on_act: Callable[[], Any] = lambda: None
    on_score: Callable[[], Any] = lambda: None
    on_close: Callable[[], Any] = lambda: None
    episodes: list[CountingEpisode] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def tasks(self, split: str) -> Sequence[Task]:
        return [TASK]

    def start(self, task: Task, *, seed: int) -> CountingEpisode:
        self.seeds.append(seed)
        self.on_start()
        self.episodes.append(CountingEpisode(self))
        return self.episodes[-1]


def fail() -> None:
    raise RuntimeError("the world broke")


def script(chat: ChatMLFormat, turns: Sequence[Any]) -> list[Any]:
    """Tokens of turns and of texts as sampled; the rest as it is."""
    completions = []
    for turn in turns:
        if isinstance(turn, AssistantTurn):
            completions.append(chat.render(turn))
        elif isinstance(turn, str):
            completions.append(chat._tokenizer.encode_pieces(chat._tokenizer.split_special(turn)))
        else:
            completions.append(turn)
    return completions


def spans(trajectory: Trajectory) -> list[tuple[TokenSource, int]]:
    """Runs of tokens of one writer."""
    runs: list[tuple[TokenSource, int]] = []
    for source in trajectory.sources:
        if runs and runs[-1][0] is source:
            runs[-1] = (source, runs[-1][1] + 1)
        else:
            runs.append((source, 1))
    return runs
