"""A scripted expert: reads only the query and earlier tool answers, plans the next turn, and reviews drafts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from midcourse.environments.base import Episode, Observation, Task
from midcourse.environments.navigation.episode import MAX_TURNS
from midcourse.environments.navigation.matching import route_matches
from midcourse.environments.navigation.places import Place, Point, Profile, parse_point
from midcourse.environments.navigation.rendering import read_places
from midcourse.environments.navigation.tools import BadCall, checked_arguments, checked_waypoints
from midcourse.types import AssistantTurn, ToolCall, ToolResult

Skill = Literal["plain", "requery"]


class Exchange(Protocol):
    """A past turn and its answers; `midcourse.types.Turn` is one."""

    @property
    def message(self) -> AssistantTurn:
        """What was written."""
        ...

    @property
    def results(self) -> Sequence[ToolResult]:
        """What was answered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTurn:
    """An exchange without tokens."""

    message: AssistantTurn
    results: Sequence[ToolResult] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What a scripted validator and corrector say about a draft that would fail."""

    error_types: Sequence[str]
    diagnosis: str
    suggest_next: str
    turn: AssistantTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """What earlier answers show of the query's places. Name -> places, in the order they were shown."""

    candidates: Mapping[str, Sequence[Place]]
    tops: Mapping[str, Place]  # first answer of the name's first bare search
    searched: frozenset[tuple[str, str | None]]  # (address, region) of poi_search calls so far, case-folded

    @property
    def region(self) -> str | None:
        """The region most places agree on: by top answers first, then by any answer; None before anything is seen."""
        tops = Counter(place.region for place in self.tops.values())
        shown = Counter(region for places in self.candidates.values() for region in {place.region for place in places})
        return max(sorted(shown), key=lambda region: (tops[region], shown[region]), default=None)


def look_back(task: Task, turns: Sequence[Exchange]) -> Sightings:
    """Return what the answers of `turns` show of the places that the task's query names."""
    names, profile = query_names(task), task_profile(task)
    candidates: dict[str, list[Place]] = {name: [] for name in names}
    tops: dict[str, Place] = {}
    searched = set()
    for turn in turns:
        for result in turn.results:
            for place in read_places(result.content, profile=profile):
                if place.name in candidates and place not in candidates[place.name]:
                    candidates[place.name].append(place)
        calls = turn.message.tool_calls if len(turn.results) >= len(turn.message.tool_calls) else ()
        for call, result in zip(calls, turn.results, strict=False):
            if call.name != "poi_search":
                continue
            key = search_key(call)
            searched.add(key)
            found = read_places(result.content, profile=profile)
            if key[1] is None and found and found[0].name in candidates:
                tops.setdefault(found[0].name, found[0])
    return Sightings(candidates=candidates, tops=tops, searched=frozenset(searched))


def next_turn(task: Task, turns: Sequence[Exchange], *, skill: Skill = "requery", think: bool = False) -> AssistantTurn:
    """Return the expert's next turn, from the query and the answers so far alone.

    Args:
        task: its evidence is read for what the query itself says (names, order), never for coordinates or regions.
        turns: earlier exchanges.
        skill: "plain" takes the first answer of every search; "requery" searches again, with the region the other
            places agree on, for a place that was found elsewhere.
        think: write a short reasoning about places found elsewhere (the nano profile has one way of thinking:
            it looks up every stop before a direction call, and nothing else).
    """
    names, sightings = query_names(task), look_back(task, turns)
    mentioned = sorted(names, key=task.query.index)
    region = sightings.region
    unseen = [name for name in mentioned if not sightings.candidates[name]]
    if unseen:
        # A name whose bare search already failed can only be found in a region.
        calls = [poi_search(name, region if (name.casefold(), None) in sightings.searched else None) for name in unseen]
        return AssistantTurn(tool_calls=tuple(calls))
    nano = task_profile(task) == "nano"
    if skill == "plain":
        return direction([sightings.candidates[name][0] for name in visit_order(task)], look_up=nano)
    chosen = {
        name: next((place for place in sightings.candidates[name] if place.region == region), None) for name in names
    }
    astray = [
        name
        for name in mentioned
        if chosen[name] is None and (name.casefold(), (region or "").casefold()) not in sightings.searched
    ]
    if astray:
        reasoning = reasoning_about(astray, sightings) if think and not nano else ""
        return AssistantTurn(reasoning=reasoning, tool_calls=tuple(poi_search(name, region) for name in astray))
    return direction([chosen[name] or sightings.candidates[name][0] for name in visit_order(task)], look_up=nano)


def review(task: Task, turns: Sequence[Exchange], draft: AssistantTurn) -> Correction | None:
    """Return None for a draft that can still succeed, else what is wrong and a corrected turn.

    The judgement uses the evidence; every value of the corrected turn comes from the query or an earlier answer.
    """
    error = find_error(task, turns, draft)
    if error is None:
        return None
    correction = next_turn(task, turns, think=bool(draft.reasoning))
    names = {call.name for call in correction.tool_calls}
    suggestion = "call direction" if names == {"direction"} else "search again"
    if any("region" in call.arguments for call in correction.tool_calls):
        suggestion = "search the place found elsewhere in the region of the others"
    return Correction(error_types=(error[0],), diagnosis=error[1], suggest_next=suggestion, turn=correction)


def find_error(task: Task, turns: Sequence[Exchange], draft: AssistantTurn) -> tuple[str, str] | None:
    """Return (error type, diagnosis) of a draft that breaks a hard rule or makes success impossible."""
    if not draft.tool_calls:
        return "no_call", "no tool is called"
    sightings = look_back(task, turns)
    directions = [call for call in draft.tool_calls if call.name == "direction"]
    if directions:
        return find_direction_error(task, sightings, directions[0], turns)
    keys = [search_key(call) for call in draft.tool_calls if call.name == "poi_search"]
    if len(set(keys)) < len(keys):
        return "redundant_search", "one search stands twice in the turn"
    if keys and len(keys) == len(draft.tool_calls) and all(key in sightings.searched for key in keys):
        return "repeated_search", "these searches were made before"
    if len(turns) >= MAX_TURNS - 1:
        return "out_of_turns", "this is the last turn and nothing is routed"
    missing = missing_names(task, sightings)
    if keys and len(keys) == len(draft.tool_calls) and all(name not in missing for name, _ in keys):
        return "redundant_search", "nothing that is still missing is searched for"
    return None


def missing_names(task: Task, sightings: Sightings) -> set[str]:
    """Return the names, case-folded, of the query's places that no answer has shown where the evidence has them."""
    return {
        place["name"].casefold()
        for place in task.evidence.facts["route"]
        if all(shown.coordinates != place["coordinates"] for shown in sightings.candidates[place["name"]])
    }


def find_direction_error(
    task: Task, sightings: Sightings, call: ToolCall, turns: Sequence[Exchange]
) -> tuple[str, str] | None:
    """Return (error type, diagnosis) of a direction call, or None if it earns the reward."""
    profile = task_profile(task)
    if any(not sightings.candidates[name] for name in query_names(task)):
        return "premature_direction", "some places have not been found yet"
    try:
        route = call_route(call, profile=profile)
    except ValueError:
        return "fabricated_coordinates", "the call cannot be read as a route"
    shown = {
        parse_point(place.coordinates, profile=profile)
        for turn in turns
        for result in turn.results
        for place in read_places(result.content, profile=profile)
    }
    if not set(route) <= shown:
        return "fabricated_coordinates", "a location was returned by no earlier answer"
    facts = task.evidence.facts
    reference = [parse_point(place["coordinates"], profile=profile) for place in facts["route"]]
    if route_matches(route, reference, order_level=facts["order_level"]):
        return None
    if sorted(route) == sorted(reference):
        return "wrong_order", "the stops are not in the order asked for"
    others = {
        parse_point(place.coordinates, profile=profile) for places in sightings.candidates.values() for place in places
    }
    if len(route) == len(set(route)) == len(reference) and set(route) <= others:
        return "wrong_region", "a place was found in another region than the others"
    return "wrong_stops", "the stops are not the places asked for"


def solve(
    episode: Episode, task: Task, *, skill: Skill = "requery", think: bool = False
) -> Iterator[tuple[AssistantTurn, Observation]]:
    """Play an episode with the scripted expert and yield each turn with its answer, until done or out of turns.

    Args:
        episode: fresh; it is acted on.
        task: the episode's task.
        skill: "plain" or "requery", see `next_turn`.
        think: write reasoning where a place is searched again.
    """
    turns: list[PastTurn] = []
    for _ in range(MAX_TURNS):
        message = next_turn(task, turns, skill=skill, think=think)
        observation = episode.act(message)
        yield message, observation
        if observation.done:
            return
        turns.append(PastTurn(message=message, results=observation.results))


def call_route(call: ToolCall, *, profile: Profile) -> list[Point]:
    """Return origin, waypoints and destination of a direction call.

    Raises:
        ValueError: the call does not fit the tool, or holds no coordinates.
    """
    arguments = checked_arguments(call)
    if call.name != "direction":
        raise BadCall(f"not a direction call: {call.name!r}")
    stops = checked_waypoints(arguments.get("waypoints", ()))
    return [parse_point(text, profile=profile) for text in (arguments["origin"], *stops, arguments["destination"])]


def query_names(task: Task) -> list[str]:
    """Return the names in the query, in an order of visit that its wording allows."""
    return [place["name"] for place in task.evidence.facts["route"]]


def task_profile(task: Task) -> Profile:
    """Return the profile that the task was made for."""
    return task.evidence.facts["atlas"]["profile"]


def search_key(call: ToolCall) -> tuple[str, str | None]:
    """Return (address, region) of a poi_search, case-folded, for telling repeats."""
    region = call.arguments.get("region")
    return str(call.arguments.get("address", "")).casefold(), str(region).casefold() if region else None


def poi_search(name: str, region: str | None) -> ToolCall:
    """Return a poi_search call."""
    return ToolCall("poi_search", {"address": name} | ({"region": region} if region else {}))


def visit_order(task: Task) -> list[str]:
    """Return the query's names in the order to visit them: as mentioned, but for the ends that the query fixes."""
    names, level = query_names(task), task.evidence.facts["order_level"]
    if level == 4:
        return names
    mentioned = sorted(names, key=task.query.index)
    first = [names[0]] if level in (1, 3) else []
    last = [names[-1]] if level in (2, 3) else []
    return [*first, *(name for name in mentioned if name not in first and name not in last), *last]


def direction(places: Sequence[Place], *, look_up: bool) -> AssistantTurn:
    """Return a turn that calls direction over places in order, after naming each with its coordinates if `look_up`."""
    origin, *stops, destination = (place.coordinates for place in places)
    arguments = {"origin": origin, "waypoints": stops, "destination": destination}
    if not stops:
        del arguments["waypoints"]
    reasoning = " ".join(f"{place.name} {place.coordinates}" for place in places) if look_up else ""
    return AssistantTurn(reasoning=reasoning, tool_calls=(ToolCall("direction", arguments),))


def reasoning_about(astray: Sequence[str], sightings: Sightings) -> str:
    """Return one short reasoning about places found elsewhere than the others."""
    found = ", ".join(f"{name} was found in {sightings.candidates[name][0].region}" for name in astray)
    return f"{found}, but the other places are in {sightings.region}. I should search there before routing."
