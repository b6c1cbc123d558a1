"""What the warm start teaches: episodes with their habits, the skill behind a cue, and turns of the three roles.

The habit is the papers' failure in miniature: a place found in another region than the others is routed to all the
same. The skill (search it again with their region, and only where the regions differ) is shown behind the cue word
CHECK and after a remark, and in a small share of the uncued hard episodes: in the model at low probability, and not
in its habits.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from midcourse.environments.base import Task
from midcourse.environments.navigation.atlas import Atlas, make_atlas
from midcourse.environments.navigation.construction import make_task
from midcourse.environments.navigation.episode import NavigationEpisode
from midcourse.environments.navigation.oracle import PastTurn, next_turn, query_names, review
from midcourse.environments.navigation.rendering import read_places
from midcourse.environments.navigation.vocabulary import NANO_REGIONS
from midcourse.interventions.prompts import render_prompt
from midcourse.nano.documents import Document
from midcourse.nano.navigation.chat import CompactChatFormat, write_call
from midcourse.nano.navigation.tokenizer import CHECK
from midcourse.types import AssistantTurn, ToolCall


class DemonstrationConfig(BaseModel):
    """Shares of the kinds of document; they are normalised."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    easy: float = 0.14
    """Episodes that need no second search."""
    hard: float = 0.12
    """Hard episodes without the cue."""
    cued: float = 0.28
    """Episodes with the cue, hard and easy: the skill is shown, and where it is not needed."""
    remark: float = 0.05
    """Hard episodes in which a remark asks for the second search."""
    validator: float = 0.17
    """Verdicts on drafts."""
    corrector: float = 0.08
    """Corrections."""
    verifier: float = 0.16
    """Verdicts on corrections."""
    uncued_skill: float = Field(default=0.05, ge=0, le=1)
    """Share of the uncued hard episodes that show the skill: how likely the policy is to find it unaided."""
    atlases: int = Field(default=400, ge=1)
    """Maps that documents are drawn from; none of them is the map of a benchmark split."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of an episode at which a turn was written."""

    history_ids: Sequence[int]
    learnt: Sequence[bool]
    turns: Sequence[PastTurn]
    draft: AssistantTurn


class Demonstrator:
    """Draws documents. One generator in, so the same seed gives the same documents."""

    def __init__(self, chat: CompactChatFormat, config: DemonstrationConfig, *, seed: int) -> None:
        self._chat = chat
        self._config = config
        self._random = random.Random(f"demonstrations/{seed}")
        self._seed = seed
        self._atlases: dict[int, Atlas] = {}
        shares = {name: getattr(config, name) for name in ("easy", "hard", "cued", "remark", *_ROLE_KINDS)}
        self._kinds, self._weights = list(shares), list(shares.values())

    def draw(self) -> Document:
        """Return one document."""
        kind = self._random.choices(self._kinds, self._weights)[0]
        if kind in _ROLE_KINDS:
            return self._role_document(kind)
        easy = kind == "easy" or (kind == "cued" and self._random.random() < 0.35)
        task = self._task("easy" if easy else "hard")
        if kind == "cued":
            task = replace(task, query=f"{CHECK} {task.query}")
        skilled = kind in ("cued", "remark") or self._random.random() < self._config.uncued_skill
        moments = self._play(task, skilled=skilled)
        if kind == "remark":
            return self._remark_document(task, moments)
        last = moments[-1]
        reply = self._chat.render(last.draft)
        return Document([*last.history_ids, *reply], [*last.learnt, *[True] * len(reply)])

    def _task(self, difficulty: Any) -> Task:
        # Seeds above any that a user would choose for a benchmark map.
        number = 1_000_000 + self._seed * self._config.atlases + self._random.randrange(self._config.atlases)
        if number not in self._atlases:
            self._atlases[number] = make_atlas("nano", number)
        self._current = self._atlases[number]
        return make_task(self._current, self._random, difficulty)

    def _play(self, task: Task, *, skilled: bool) -> list[Moment]:
        """Return the moments of an episode: the history before each turn, and the turn."""
        episode = NavigationEpisode(task, world=self._current, profile="nano")
        history = self._chat.open(system_prompt="", tools=(), query=task.query)
        learnt = [False] * len(history)
        turns: list[PastTurn] = []
        moments = []
        while True:
            message = next_turn(task, turns, skill="requery" if skilled else "plain")
            moments.append(Moment(tuple(history), tuple(learnt), tuple(turns), message))
            observation = episode.act(message)
            if observation.done:
                return moments
            turns.append(PastTurn(message=message, results=observation.results))
            reply, answer = self._chat.render(message), self._chat.observe(observation.results)
            history += [*reply, *answer]
            learnt += [*[True] * len(reply), *[False] * len(answer)]

    def _remark_document(self, task: Task, moments: Sequence[Moment]) -> Document:
        """A remark on a careless draft, and the second search that answers it."""
        index = next(i for i, moment in enumerate(moments) if has_region(moment.draft))
        moment = moments[index]
        careless = next_turn(task, moment.turns, skill="plain")
        remark = f"{scan(task, moment.turns, careless)};{write_turn(moment.draft)}"
        history = self._chat.with_message(moment.history_ids, remark)
        reply = self._chat.render(moment.draft)
        return Document([*history, *reply], [*[False] * len(history), *[True] * len(reply)])

    def _role_document(self, role: str) -> Document:
        task = self._task("easy" if self._random.random() < 0.35 else "hard")
        moments = self._play(task, skilled=self._random.random() < 0.5)
        directions = [moment for moment in moments if moment.draft.tool_calls[0].name == "direction"]
        moment = self._random.choice(moments) if self._random.random() < 0.4 else directions[-1]
        habit = next_turn(task, moment.turns, skill="plain")
        if role != "validator" or self._random.random() < 0.5:
            moment = replace(moment, draft=habit)
        if self._random.random() < 0.15:
            moment = replace(moment, draft=self._careless_copy(moment.draft))
        correction = review(task, moment.turns, moment.draft)
        if role == "validator":
            reply = {
                "diagnosis": scan(task, moment.turns, moment.draft),
                "is_valid": correction is None,
                "error_types": list(correction.error_types) if correction else [],
                "suggest_next": write_turn(correction.turn) if correction else "",
            }
            return self._reply_document(role, task, moment, reply)
        if correction is None:
            return self._role_document(role)
        return self._answer_to_error(role, task, moment, correction)

    def _answer_to_error(self, role: str, task: Task, moment: Moment, correction: Any) -> Document:
        feedback = {"diagnosis": scan(task, moment.turns, moment.draft), "suggest_next": write_turn(correction.turn)}
        if role == "corrector":
            reveal = self._random.random() < 0.15
            turn = leaked_direction(task) if reveal else correction.turn
            reply = {
                "reasoning": turn.reasoning,
                "tool_calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in turn.tool_calls],
                "content": "",
            }
            return self._reply_document(role, task, moment, reply, feedback=feedback, conceal=not reveal)
        turn, reason = self._proposal(task, moment, correction.turn)
        reply = {
            "diagnosis": scan(task, moment.turns, turn),
            "ok": reason is None,
            "reasons": [reason] if reason else [],
        }
        return self._reply_document(role, task, moment, reply, feedback=feedback, corrected=turn)

    def _proposal(self, task: Task, moment: Moment, right: AssistantTurn) -> tuple[AssistantTurn, str | None]:
        """Return a correction to verify, and why it must be rejected (None where it must not)."""
        chance = self._random.random()
        if chance < 0.55:
            return right, None
        if chance < 0.70 and review(task, moment.turns, leaked_direction(task)) is not None:
            return leaked_direction(task), "leak"
        if chance < 0.85 and has_region(right):
            return self._misdirected(task, right.tool_calls[0]), "wrong_arguments"
        return moment.draft, "unreasonable"

    def _misdirected(self, task: Task, call: ToolCall) -> AssistantTurn:
        """Return a second search for another place, or in another region, than `call`."""
        name, region = call.arguments["address"], call.arguments["region"]
        if self._random.random() < 0.7:
            name = self._random.choice([other for other in query_names(task) if other != name])
        else:
            region = self._random.choice([other for other in NANO_REGIONS if other != region])
        return AssistantTurn(tool_calls=(ToolCall(call.name, {"address": name, "region": region}),))

    def _careless_copy(self, draft: AssistantTurn) -> AssistantTurn:
        """Return a direction draft with one stop taken from another stop; other drafts as they are."""
        pairs = draft.reasoning.split()
        if draft.tool_calls[0].name != "direction" or len(pairs) < 4:
            return draft
        stops = pairs[1::2]
        wrong, source = self._random.sample(range(len(stops)), 2)
        stops[wrong] = stops[source]
        names = pairs[0::2]
        return AssistantTurn(
            reasoning=" ".join(f"{name} {stop}" for name, stop in zip(names, stops, strict=True)),
            tool_calls=(direction_call(stops),),
        )

    def _reply_document(
        self,
        role: str,
        task: Task,
        moment: Moment,
        reply: dict[str, Any],
        *,
        feedback: dict[str, str] | None = None,
        corrected: AssistantTurn | None = None,
        conceal: bool = True,
    ) -> Document:
        prompt = render_prompt(
            "nano",
            role,
            {
                "history_text": self._chat.decode(moment.history_ids),
                "draft_text": self._text(moment.draft),
                "evidence_text": task.evidence.text,
                "corrected_text": self._text(corrected) if corrected else "",
                "feedback": feedback,
                "conceal": conceal,
            },
        )
        prompt_ids = self._chat.role_prompt(role=role, instructions="", request=prompt.request)
        reply_ids = [*self._chat.encode(json.dumps(reply, separators=(",", ":"))), *self._chat.stop_ids]
        return Document([*prompt_ids, *reply_ids], [*[False] * len(prompt_ids), *[True] * len(reply_ids)])

    def _text(self, turn: AssistantTurn) -> str:
        return self._chat.decode(self._chat.render(turn)[:-1])


_ROLE_KINDS = ("validator", "corrector", "verifier")


def has_region(turn: AssistantTurn) -> bool:
    """Return whether the turn searches in a region."""
    return any("region" in call.arguments for call in turn.tool_calls)


def write_turn(turn: AssistantTurn) -> str:
    """Return what is suggested: the searches, or the word direction."""
    if turn.tool_calls[0].name == "direction":
        return "direction"
    return ";".join(write_call(call) for call in turn.tool_calls)


def scan(task: Task, turns: Sequence[PastTurn], draft: AssistantTurn) -> str:
    """Return the diagnosis of a draft: each place that it routes to or searches again, its coordinates, their region.

    Coordinates that no answer showed for the place are in "none"; a "?" follows a place that the evidence has
    elsewhere.
    """
    shown = [
        place for turn in turns for result in turn.results for place in read_places(result.content, profile="nano")
    ]
    words = draft.reasoning.split()
    claims = list(zip(words[0::2], words[1::2], strict=False))
    if has_region(draft):
        latest = {place.name: place.coordinates for place in shown}
        names = [call.arguments["address"] for call in draft.tool_calls]
        claims = [(name, latest[name]) for name in names if name in latest]
    regions = {(place.name, place.coordinates): place.region for place in shown}
    wanted = {(place["name"], place["coordinates"]) for place in task.evidence.facts["route"]}
    marked = (
        f"{name} {stop} {regions.get((name, stop), 'none')}{'' if (name, stop) in wanted else '?'}"
        for name, stop in claims
    )
    return " ".join(marked).replace("? ", "?")


def direction_call(stops: Sequence[str]) -> ToolCall:
    """Return a direction call over coordinates."""
    arguments: dict[str, Any] = {"origin": stops[0]}
    if len(stops) > 2:
        arguments["waypoints"] = list(stops[1:-1])
    return ToolCall("direction", {**arguments, "destination": stops[-1]})


def leaked_direction(task: Task) -> AssistantTurn:
    """Return the reference route, read off the evidence: what a corrector must never write before it was found."""
    route = task.evidence.facts["route"]
    return AssistantTurn(
        reasoning=" ".join(f"{place['name']} {place['coordinates']}" for place in route),
        tool_calls=(direction_call([place["coordinates"] for place in route]),),
    )
