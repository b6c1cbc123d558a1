"""Forks by replay: of every kind of episode, of forks, of worlds that do not answer twice alike."""

import json
from dataclasses import dataclass, field
from functools import partial

import pytest

from midcourse.environments.base import Evidence, ForkableEpisode, Observation, RoleGuide, Task
from midcourse.environments.code import CodeConfig, ProblemFile
from midcourse.environments.mathematics import MathematicsConfig
from midcourse.environments.mathematics.arithmetic import ArithmeticConfig
from midcourse.environments.navigation import NavigationConfig
from midcourse.environments.navigation.oracle import solve
from midcourse.environments.replay import Exchange, ReplayingEpisode, replayed, start_forkable
from midcourse.environments.sandbox import SandboxConfig
from midcourse.errors import EnvironmentFault, ReplayMismatchError
from midcourse.types import AssistantTurn, ToolCall, ToolResult, Turn

TASK = Task(task_id="add", split="train", query="Add.", evidence=Evidence(text="", private_values=()))


def add(number: int) -> AssistantTurn:
    return AssistantTurn(tool_calls=(ToolCall("add", {"number": number}),))


@dataclass
class AddingEpisode:
    """Adds up; answers with the sum. Cannot copy itself."""

    world: "AddingWorld"
    sum: int = 0
    num_acts: int = 0
    num_closed: int = 0

    def act(self, turn: AssistantTurn) -> Observation:
        self.num_acts += 1
        self.sum += turn.tool_calls[0].arguments["number"] + self.world.drift
        return Observation(results=[ToolResult(name="add", content=str(self.sum))], done=self.sum >= self.world.goal)

    def score(self) -> float:
        return float(self.sum)

    def close(self) -> None:
        self.num_closed += 1


@dataclass
class AddingWorld:
    name: str = "adding"
    system_prompt: str = "You add."
    tools: tuple = ()
    max_turns: int = 9
    role_guide: RoleGuide = field(
        default_factory=lambda: RoleGuide(hard_rules=(), error_types=(), verifier_rejects=(), verifier_allows=())
    )
    goal: int = 100
    drift: int = 0
    seeds: list[int] = field(default_factory=list)
    episodes: list[AddingEpisode] = field(default_factory=list)

    def tasks(self, split: str) -> list[Task]:
        return [TASK]

    def start(self, task: Task, *, seed: int) -> AddingEpisode:
        self.seeds.append(seed)
        self.episodes.append(AddingEpisode(self))
        return self.episodes[-1]


@pytest.fixture
def world():
    return AddingWorld()


def test_an_episode_that_cannot_copy_itself_is_forked_by_doing_its_turns_again(world):
    episode = start_forkable(world, TASK, seed=5)
    assert isinstance(episode, ForkableEpisode)
    assert not isinstance(world.episodes[0], ForkableEpisode)
    episode.act(add(1))
    episode.act(add(2))
    twin = episode.fork()
    assert len(world.episodes) == 1  # it costs nothing until it is used
    assert twin.act(add(10)).results[0].content == "13"
    assert world.seeds == [5, 5]
    assert world.episodes[1].num_acts == 3
    assert (episode.score(), twin.score()) == (3.0, 13.0)


def test_a_fork_is_of_the_moment_when_it_was_made(world):
    episode = start_forkable(world, TASK, seed=0)
    episode.act(add(1))
    twin = episode.fork()
    episode.act(add(5))
    assert (twin.score(), episode.score()) == (1.0, 6.0)


def test_forks_of_forks_are_independent_and_closing_one_leaves_the_others_alone(world):
    first = start_forkable(world, TASK, seed=0)
    first.act(add(1))
    second = first.fork()
    second.act(add(2))
    third, fourth = second.fork(), second.fork()
    third.act(add(4))
    first.close()
    second.close()
    assert [episode.num_closed for episode in world.episodes] == [1, 1, 0]
    assert (third.score(), fourth.score(), third.fork().act(add(1)).results[0].content) == (7.0, 3.0, "8")


def test_a_fork_that_was_closed_before_its_use_starts_nothing(world):
    twin = start_forkable(world, TASK, seed=0).fork()
    twin.close()
    twin.close()
    with pytest.raises(EnvironmentFault, match="closed"):
        twin.score()
    assert len(world.episodes) == 1


def test_a_world_that_answers_otherwise_is_refused_and_its_episode_closed(world):
    episode = start_forkable(world, TASK, seed=0)
    episode.act(add(1))
    episode.act(add(1))
    world.drift = 1
    twin = episode.fork()
    with pytest.raises(
        ReplayMismatchError, match=r"cannot be forked.*at turn 1 of 2 add answered '2', before it answered '1'"
    ):
        twin.act(add(1))
    assert world.episodes[1].num_closed == 1
    assert episode.score() == 2.0


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        (Observation(results=[ToolResult(name="add", content="1")], done=True), "is not over, before it was over"),
        (Observation(), "gave 1 results, before it gave 0"),
        (
            Observation(results=[ToolResult(name="add", content="1", is_error=True)]),
            r"before it answered '1' \(error\)",
        ),
    ],
)
def test_what_is_compared_is_every_result_and_whether_the_episode_is_over(world, observation, reason):
    episode = ReplayingEpisode(
        lambda: world.start(TASK, seed=0), exchanges=[Exchange(turn=add(1), observation=observation)]
    )
    with pytest.raises(ReplayMismatchError, match=reason):
        episode.score()


def test_an_episode_whose_call_failed_is_not_forked(world):
    episode = start_forkable(world, TASK, seed=0)
    with pytest.raises(KeyError):
        episode.act(AssistantTurn(tool_calls=(ToolCall("add", {}),)))
    with pytest.raises(EnvironmentFault, match="did not return"):
        episode.fork()


def test_the_turns_of_a_rollout_lead_to_the_state_they_led_to(world):
    def turn(message, *results):
        return Turn(start=0, end=0, message=message, results=results)

    unreadable = ToolResult(name="", content="no JSON", is_error=True)
    turns = [
        turn(add(1), ToolResult(name="add", content="1")),
        turn(AssistantTurn(parse_error="no JSON"), unreadable),
        turn(
            AssistantTurn(tool_calls=add(2).tool_calls, parse_error="no JSON"),
            ToolResult(name="add", content="3"),
            unreadable,
        ),
    ]
    episode = replayed(world, TASK, seed=3, turns=turns)
    assert episode.act(add(1)).results[0].content == "4"
    assert world.seeds == [3]
    assert world.episodes[0].num_acts == 3


# Every environment


def navigation(folder):
    environment = NavigationConfig(train_tasks=4, test_tasks=1).build()
    for task in environment.tasks("train"):
        yield environment, task, [message for message, _ in solve(environment.start(task, seed=0), task)]


def arithmetic(folder):
    environment = ArithmeticConfig(train_tasks=1, test_tasks=1).build()
    (task,) = environment.tasks("train")
    yield environment, task, [AssistantTurn(content=task.evidence.facts["solution"])]


def mathematics(folder):
    pytest.importorskip("math_verify", reason="grading needs math-verify")
    path = folder / "problems.jsonl"
    path.write_text(json.dumps({"problem": "What is 6*7?", "answer": "42"}))
    environment = MathematicsConfig(files=(f"train={path}",)).build()
    (task,) = environment.tasks("train")
    yield environment, task, [AssistantTurn(content="\\boxed{42}", tool_calls=(ToolCall("python", {}),))]
    environment.close()


def code(folder):
    path = folder / "problems.jsonl"
    path.write_text(
        json.dumps(
            {
                "task_id": 1,
                "text": "Add.",
                "code": "def add(a, b): return a + b",
                "test_list": ["assert add(1, 2) == 3"],
            }
        )
    )
    environment = CodeConfig(
        train=ProblemFile(path=str(path), format="mbpp"), sandbox=SandboxConfig(kind="process")
    ).build()
    (task,) = environment.tasks("train")
    yield environment, task, [AssistantTurn(content="```python\ndef add(a, b):\n    return b + a\n```")]


@pytest.mark.parametrize("worlds", [navigation, arithmetic, mathematics, code])
def test_a_replayed_fork_is_the_episodes_own_fork(worlds, tmp_path):
    for environment, task, turns in worlds(tmp_path):
        for cut in range(len(turns) + 1):
            own = start_forkable(environment, task, seed=0)
            assert not isinstance(own, ReplayingEpisode)
            again = ReplayingEpisode(partial(environment.start, task, seed=0))
            for turn in turns[:cut]:
                assert own.act(turn) == again.act(turn)
            own_fork, replayed_fork = own.fork(), again.fork().fork()
            for turn in turns[cut:]:
                assert own_fork.act(turn) == replayed_fork.act(turn)
            assert own_fork.score() == replayed_fork.score() == 1.0
            if cut < len(turns):
                assert own.score() == again.score() == 0.0
            for episode in (own, again, own_fork, replayed_fork):
                episode.close()
