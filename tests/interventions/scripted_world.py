"""A world of single letters: one token a character. A turn is text ended by ';'; `+x` in it calls the tool with x."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midcourse.engines.base import SamplingParams
from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments.base import Evidence, Observation, RoleGuide, Task, Tool
from midcourse.interventions.metering import CostLedger
from midcourse.interventions.pipeline import InterventionConfig, InterventionPipeline
from midcourse.interventions.roles import ValidatorVerdict, VerifierVerdict
from midcourse.methods.base import RolloutTools
from midcourse.rollout.episode import RolloutKey, Step
from midcourse.rollout.limits import RolloutConfig
from midcourse.types import AssistantTurn, ToolCall, ToolResult

STOP = ord(";")
TASK = Task(
    task_id="t1", split="train", query="find it", evidence=Evidence(text="it is 77.1234", private_values=("77.1234",))
)
INVALID = '{"is_valid": false, "error_types": ["bad"], "diagnosis": "too far", "suggest_next": "look again"}'
VALID = '{"is_valid": true}'
BETTER = '{"reasoning": "", "tool_calls": [{"name": "press", "arguments": {"key": "b"}}], "content": ""}'
OK = '{"ok": true, "reasons": [], "diagnosis": "fine"}'
REFUSED = '{"ok": false, "reasons": ["unreasonable"], "diagnosis": "no"}'


class LetterChat:
    """Chat format whose tokens are code points."""

    prompt_style = "standard"
    unknown_id = None

    stop_ids: Sequence[int] = (STOP,)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text.replace(";", ",")]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def open(self, *, system_prompt: str, tools: Sequence[Tool], query: str) -> list[int]:
        return self.encode(f"[{query}]")

    def parse(self, turn_ids: Sequence[int], *, tools: Sequence[Tool] = ()) -> AssistantTurn:
        text = self.decode(turn_ids).removesuffix(";")
        content, *calls = text.split("+")
        return AssistantTurn(content=content, tool_calls=tuple(ToolCall("press", {"key": key}) for key in calls))

    def render(self, turn: AssistantTurn) -> list[int]:
        calls = "".join(f"+{call.arguments.get('key', '')}" for call in turn.tool_calls)
        return [*self.encode(turn.content + calls), STOP]

    def observe(self, results: Sequence[ToolResult]) -> list[int]:
        return self.encode("<" + "|".join(result.content for result in results) + ">")

    def with_message(self, history_ids: Sequence[int], text: str) -> list[int]:
        return [*history_ids, *self.encode(f"({text})")]

    def role_prompt(self, *, role: str, instructions: str, request: str) -> list[int]:
        return self.encode(f"@{role}@{instructions}@{request}")


class PressEpisode:
    """Succeeds when the last key pressed is `b` and ends with the first key, or when the world is told to fail."""

    def __init__(self, score: Callable[[str], float]) -> None:
        self.keys = ""
        self._score = score

    def act(self, turn: AssistantTurn) -> Observation:
        pressed = "".join(call.arguments["key"] for call in turn.tool_calls)
        self.keys += pressed
        results = [ToolResult(name="press", content=f"pressed {key}") for key in pressed]
        return Observation(results=tuple(results), done=bool(pressed.strip("l")))

    def score(self) -> float:
        return self._score(self.keys)

    def fork(self) -> "PressEpisode":
        raise NotImplementedError("no test forks")

    def close(self) -> None:
        pass


class PressWorld:
    """Press the right key. `l` only looks."""

    name = "press"
    system_prompt = ""
    tools: Sequence[Tool] = (Tool(name="press", description="press a key", parameters={"type": "object"}),)
    max_turns = 3
    role_guide = RoleGuide(
        hard_rules=("press what was asked for",),
        error_types=("bad",),
        verifier_rejects=("silly",),
        verifier_allows=("looking",),
        forbidden_phrases=("answer key",),
    )

    def __init__(self, score: Callable[[str], float] = lambda keys: float(keys.endswith("b"))) -> None:
        self._score = score

    def tasks(self, split: str) -> Sequence[Task]:
        return (TASK,)

    def start(self, task: Task, *, seed: int) -> PressEpisode:
        return PressEpisode(self._score)


class ScriptedPressWorld(PressWorld):
    """The same with an oracle."""

    def scripted_roles(self) -> "PressOracle":
        return PressOracle()


class PressOracle:
    """Knows the key."""

    def validate(self, step: Step) -> ValidatorVerdict:
        right = [call.arguments["key"] for call in step.draft.tool_calls] == ["b"]
        return ValidatorVerdict(is_valid=right, diagnosis="wrong key", suggest_next="press another")

    def correct(self, step: Step, verdict: ValidatorVerdict) -> AssistantTurn:
        return AssistantTurn(tool_calls=(ToolCall("press", {"key": "b"}),))

    def verify(self, step: Step, corrected: AssistantTurn) -> VerifierVerdict:
        return VerifierVerdict(ok=True)


def speaker(
    replies: Mapping[str, Any], draft: Callable[[SamplingParams], str] = lambda sampling: "+a;"
) -> Callable[[Sequence[int], SamplingParams], Any]:
    """Return a script: a role says its reply (text, or what ScriptedEngine takes), the policy its draft."""

    def say(prompt_ids: Sequence[int], sampling: SamplingParams) -> Any:
        text = "".join(map(chr, prompt_ids))
        if not text.startswith("@"):
            return [ord(character) for character in draft(sampling)]
        reply = replies[text.split("@")[1]]
        return [*map(ord, reply), STOP] if isinstance(reply, str) else reply

    return say


def make_tools(engine: Any, *, environment: Any = None, temperature: float = 0.8, **rest: Any) -> RolloutTools:
    return RolloutTools(
        engine=engine,
        chat=LetterChat(),
        environment=environment or PressWorld(),
        rollout=RolloutConfig(temperature=temperature, max_turn_tokens=16),
        **rest,
    )


def make_step(draft: str = "+a;", *, turns: Sequence[Any] = (), task: Task = TASK) -> Step:
    chat = LetterChat()
    draft_ids = tuple(map(ord, draft))
    completion = None
    return Step(
        task=task,
        history_ids=tuple(chat.open(system_prompt="", tools=(), query=task.query)),
        turns=tuple(turns),
        draft_ids=draft_ids,
        draft=chat.parse(draft_ids),
        draft_completion=completion,
        turn_index=len(turns),
        key=RolloutKey(seed=1, update=2, task_id=task.task_id, attempt=3),
    )


def make_pipeline(tools: RolloutTools, **settings: Any) -> tuple[InterventionPipeline, CostLedger]:
    ledger = CostLedger()
    return InterventionPipeline(tools, config=InterventionConfig(**settings), ledger=ledger), ledger


def make_engine(replies: Mapping[str, Any], **settings: Any) -> ScriptedEngine:
    roles = {"validator": INVALID, "corrector": BETTER, "verifier": OK}
    return ScriptedEngine(speaker({**roles, **replies}), **settings)
