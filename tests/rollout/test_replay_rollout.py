"""Branches of a finished rollout whose world cannot copy itself, through the rollout loop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments.base import Evidence, Observation, RoleGuide, Task, Tool
from midcourse.environments.replay import replayed
from midcourse.rollout.chat import ChatMLFormat
from midcourse.rollout.edits import fork
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, FailureKind, ToolCall, ToolResult, Trajectory

TASK = Task(task_id="count", split="train", query="Count.", evidence=Evidence(text="", private_values=()))
CALL = AssistantTurn(tool_calls=(ToolCall("count", {}),))
ANSWER = AssistantTurn(content="Done.")


@dataclass
class CountingEpisode:
    step: int
    count: int = 0
    is_closed: bool = False

    def act(self, turn: AssistantTurn) -> Observation:
        if not turn.tool_calls:
            return Observation(done=True)
        self.count += self.step
        return Observation(results=[ToolResult(name="count", content=str(self.count))])

    def score(self) -> float:
        return float(self.count)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class CountingWorld:
    name: str = "counting"
    system_prompt: str = "You count."
    tools: Sequence[Tool] = (Tool(name="count", description="Counts.", parameters={"type": "object"}),)
    max_turns: int = 9
    role_guide: RoleGuide = field(
        default_factory=lambda: RoleGuide(hard_rules=(), error_types=(), verifier_rejects=(), verifier_allows=())
    )
    step: int = 1
    episodes: list[CountingEpisode] = field(default_factory=list)

    def tasks(self, split: str) -> Sequence[Task]:
        return [TASK]

    def start(self, task: Task, *, seed: int) -> CountingEpisode:
        self.episodes.append(CountingEpisode(self.step))
        return self.episodes[-1]


@pytest.fixture(scope="module")
def chat(tokenizer):
    return ChatMLFormat(tokenizer)


def roll(
    chat: ChatMLFormat, world: CountingWorld, texts: Sequence[AssistantTurn | str], *, max_turns: int = 9, **options
) -> Trajectory:
    tokens = [
        chat.render(text)
        if isinstance(text, AssistantTurn)
        else chat._tokenizer.encode_pieces(chat._tokenizer.split_special(text))
        for text in texts
    ]
    key = RolloutKey(seed=0, update=0, task_id="count", attempt=0)
    config = RolloutConfig(max_turn_tokens=200, max_turns=max_turns)
    return asyncio.run(
        run_episode(
            TASK, engine=ScriptedEngine(tokens), chat=chat, environment=world, config=config, key=key, **options
        )
    )


def test_a_branch_goes_on_from_a_state_that_is_reached_again(chat):
    world = CountingWorld()
    whole = roll(chat, world, [CALL, "<tool_call>{</tool_call><|im_end|>", CALL, CALL, ANSWER])
    assert whole.turns[1].message.parse_error is not None
    assert whole.reward == 3.0
    for before in range(len(whole.turns)):
        episode = replayed(world, TASK, seed=0, turns=whole.turns[:before])
        rest = [
            turn.message if turn.message.parse_error is None else "<tool_call>{</tool_call><|im_end|>"
            for turn in whole.turns
        ]
        branch = roll(chat, world, rest[before:], resume_from=(fork(whole, before), episode))
        assert branch == whole
    assert all(episode.is_closed for episode in world.episodes)


def test_a_branch_in_a_world_that_does_not_answer_twice_alike_has_its_own_failure_kind(chat):
    world = CountingWorld()
    whole = roll(chat, world, [CALL, ANSWER])
    world.step = 2
    episode = replayed(world, TASK, seed=0, turns=whole.turns[:1])
    branch = roll(chat, world, [CALL, ANSWER], resume_from=(fork(whole, 1), episode))
    assert (branch.failure, branch.reward) == (FailureKind.REPLAY_MISMATCH, None)
    assert "answered '2', before it answered '1'" in branch.failure_message
    without_turns = roll(chat, world, [], max_turns=1, resume_from=(fork(whole, 1), episode.fork()))
    assert without_turns.failure is FailureKind.REPLAY_MISMATCH
    assert all(episode.is_closed for episode in world.episodes)
