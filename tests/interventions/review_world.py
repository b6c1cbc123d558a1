"""A world with one right response, `abcdefgh`, in the letters of `scripted_world`; and policies that write by plan."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.interventions.scripted_world import STOP, LetterChat

from midcourse.engines.base import SamplingParams
from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments.base import Evidence, Observation, RoleGuide, Task, Tool
from midcourse.interventions.judge import Continuation, JudgeConfig
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.model_judges import cast_judge
from midcourse.interventions.review import ChunkWriter, ReviewConfig
from midcourse.methods.base import RolloutTools
from midcourse.rollout.episode import RolloutKey, run_episode
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, Trajectory

RIGHT = "abcdefgh"
OPENED = "[spell]"
TASK = Task(
    task_id="t1", split="train", query="spell", evidence=Evidence(text=f"it is {RIGHT}", private_values=("gh",))
)
KEY = RolloutKey(seed=3, update=1, task_id="t1", attempt=0)


class SpellEpisode:
    """Done after `turns` turns; the last one's content is the answer."""

    def __init__(self, turns: int) -> None:
        self.left, self.content = turns, ""

    def act(self, turn: AssistantTurn) -> Observation:
        self.left -= 1
        self.content = turn.content
        return Observation(done=self.left == 0)

    def score(self) -> float:
        return float(self.content == RIGHT)

    def fork(self) -> "SpellEpisode":
        raise NotImplementedError("no test forks")

    def close(self) -> None:
        pass


class SpellScript:
    """Knows the response."""

    def review(self, task: Task, *, accepted: str, chunk: str, is_ended: bool) -> int | None:
        right = RIGHT[len(accepted) :]
        place = next((i for i, (one, other) in enumerate(zip(chunk, right, strict=False)) if one != other), None)
        if place is None and is_ended and len(chunk) < len(right):
            place = len(chunk) - 1
        return place

    def correct(self, task: Task, *, accepted: str) -> Continuation | None:
        return Continuation(text=RIGHT[len(accepted) :], is_ended=True)


class SpellWorld:
    """Write the letters in order."""

    name, system_prompt = "spell", ""
    tools: Sequence[Tool] = ()
    role_guide = RoleGuide(hard_rules=("in order",), error_types=(), verifier_rejects=(), verifier_allows=())

    def __init__(self, turns: int = 1) -> None:
        self.max_turns = turns

    def tasks(self, split: str) -> Sequence[Task]:
        return (TASK,)

    def start(self, task: Task, *, seed: int) -> SpellEpisode:
        return SpellEpisode(self.max_turns)

    def judge_script(self) -> SpellScript:
        return SpellScript()


def planned(
    *plans: str, replies: Sequence[Any] = (), corrections: Sequence[str] = ()
) -> Callable[[Sequence[int], SamplingParams], Any]:
    """Return a script for an engine that plays policy and judge.

    The policy writes on from what its turn holds: by the first plan that begins like it, plans that did not fit once
    forgotten. The judge gives its replies, and for requests of two tokens its corrections, in order.
    """
    waiting, plans_left, words = list(replies), list(plans), list(corrections)

    def say(prompt_ids: Sequence[int], sampling: SamplingParams) -> Any:
        text = "".join(map(chr, prompt_ids))
        if text.startswith("@judge"):
            reply = waiting.pop(0)
            return [*map(ord, reply), STOP] if isinstance(reply, str) else reply
        if words and sampling.max_tokens == 2:
            return [*map(ord, words.pop(0))]
        written = text[max(text.rfind("]"), text.rfind(">")) + 1 :]
        while len(plans_left) > 1 and not plans_left[0].startswith(written):
            plans_left.pop(0)
        return [*map(ord, plans_left[0][len(written) :])]

    return say


def make_tools(engine: Any, *, turns: int = 1, max_turn_tokens: int = 32, **rest: Any) -> RolloutTools:
    return RolloutTools(
        engine=engine,
        chat=LetterChat(),
        environment=SpellWorld(turns),
        rollout=RolloutConfig(temperature=1.0, max_turn_tokens=max_turn_tokens),
        **rest,
    )


async def write(tools: RolloutTools, *, judge: Any = "scripted", key: RolloutKey = KEY, **lengths: int) -> Trajectory:
    """Return one rollout under review; `judge`: a source, a Judge, or None."""
    ledger = CostLedger()
    if isinstance(judge, str | JudgeConfig):
        config = judge if isinstance(judge, JudgeConfig) else JudgeConfig(played_by=judge)
        judge = cast_judge(tools, config=config, ledger=ledger)
    settings = ReviewConfig(**{"chunk_tokens": 4, "max_reviews": 4, "max_intervention_tokens": 2, **lengths})
    writer = ChunkWriter(tools, config=settings, engine=tools.engine, scorer=tools.engine, judge=judge)
    return await run_episode(
        TASK,
        engine=tools.engine,
        chat=tools.chat,
        environment=tools.environment,
        config=tools.rollout,
        key=key,
        turn_writer=writer,
    )


def text_of(trajectory: Trajectory) -> str:
    return "".join(map(chr, trajectory.token_ids[trajectory.prompt_length :]))


def authors(trajectory: Trajectory) -> str:
    """One letter a token of the response: p policy, i intervention."""
    return "".join(source.value[0] for source in trajectory.sources[trajectory.prompt_length :])


def engine_of(*plans: str, replies: Sequence[Any] = (), corrections: Sequence[str] = (), **settings: Any):
    return ScriptedEngine(planned(*plans, replies=replies, corrections=corrections), **settings)
