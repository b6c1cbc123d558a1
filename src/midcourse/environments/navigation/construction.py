"""Inverse construction of tasks (RTI, App. C.2.1): first the places of one trip, then the query that asks for it."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal

from midcourse.environments.base import Evidence, Task
from midcourse.environments.navigation.atlas import SCENIC, Atlas
from midcourse.environments.navigation.episode import NavigationEpisode
from midcourse.environments.navigation.matching import ORDER_LEVEL_MEANINGS, ORDER_LEVELS
from midcourse.environments.navigation.oracle import solve
from midcourse.environments.navigation.places import Place
from midcourse.environments.navigation.queries import write_query
from midcourse.errors import ConfigError

Difficulty = Literal["easy", "hard"]
ANCHOR_RADIUS_METRES = 50_000
MAX_DRAWS = 500
NUM_PLACES = {("nano", "easy"): (2, 4), ("nano", "hard"): (3, 4), ("full", "easy"): (3, 9), ("full", "hard"): (3, 9)}


def make_task(
    atlas: Atlas,
    rng: random.Random,
    difficulty: Difficulty = "easy",
    *,
    split: str = "train",
    num_places: int | None = None,
    order_level: int | None = None,
    max_ambiguous: int = 1,
) -> Task:
    """Return one task on an atlas, checked by the scripted solver.

    Differs from the paper: phrasings are templates, not a model's words; the order level is drawn and the phrasing
    chosen for it, so no model annotates it; the filter is this deterministic check.

    Args:
        atlas: any map.
        rng: draws places, order level and phrasing.
        difficulty: "easy": a bare search of every name returns the right place first; "hard": 1 to `max_ambiguous`
            names first return a place of another region, while at least two others, more than in any other region,
            first return the right one.
        split: written into the task.
        num_places: 2..4 (nano) or 3..9 (full); hard tasks at least 3; drawn if None.
        order_level: 0..4, see `route_matches`; drawn if None.
        max_ambiguous: most ambiguous names of a hard task.

    Raises:
        ConfigError: no such task was found in many draws.
    """
    low, high = NUM_PLACES[atlas.profile, difficulty]
    for _ in range(MAX_DRAWS):
        count = rng.randint(low, high) if num_places is None else num_places
        level = rng.choice(ORDER_LEVELS) if order_level is None else order_level
        route = draw_route(atlas, rng, difficulty=difficulty, count=count, max_ambiguous=max_ambiguous)
        if route is None:
            continue
        query = write_query(atlas.profile, [place.name for place in route], order_level=level, rng=rng)
        task = describe_task(atlas, route, query=query, order_level=level, difficulty=difficulty, split=split)
        if is_consistent(atlas, task):
            return task
    raise ConfigError(
        f"no {difficulty} navigation task with {num_places or f'{low}..{high}'} places was found in {MAX_DRAWS} draws"
    )


def draw_route(
    atlas: Atlas, rng: random.Random, *, difficulty: Difficulty, count: int, max_ambiguous: int
) -> list[Place] | None:
    """Return places of one trip in route order, or None where the drawn anchor has too few."""
    anchor = rng.choice(atlas.places)
    if atlas.profile == "nano":
        near = [place for place in atlas.places if place.region == anchor.region]
    else:
        near = atlas.around(atlas.point(anchor), ANCHOR_RADIUS_METRES, keyword=SCENIC)
    plain = [place for place in near if atlas.search(place.name)[0] == place]
    ambiguous = [place for place in near if atlas.search(place.name)[0].region != place.region]
    num_ambiguous = rng.randint(1, min(max_ambiguous, count - 2)) if difficulty == "hard" else 0
    if len(plain) < count - num_ambiguous or len(ambiguous) < num_ambiguous:
        return None
    route = rng.sample(plain, count - num_ambiguous) + rng.sample(ambiguous, num_ambiguous)
    rng.shuffle(route)
    return route


def describe_task(
    atlas: Atlas, route: Sequence[Place], *, query: str, order_level: int, difficulty: str, split: str
) -> Task:
    """Return the task of a route and its query."""
    digest = blake2b(f"{atlas.profile}/{atlas.seed}/{atlas.held_out}/{query}".encode(), digest_size=6).hexdigest()
    return Task(
        task_id=f"navigation-{atlas.profile}-{digest}",
        split=split,
        query=query,
        tags=(difficulty, f"order:{order_level}", f"places:{len(route)}"),
        evidence=make_evidence(
            route,
            order_level=order_level,
            atlas={"profile": atlas.profile, "seed": atlas.seed, "held_out": atlas.held_out},
        ),
    )


def make_evidence(route: Sequence[Place], *, order_level: int, atlas: Mapping[str, Any]) -> Evidence:
    """Return what the roles may know: order level, places in route order, the reference call."""
    coordinates = [place.coordinates for place in route]
    if atlas["profile"] == "nano":
        text = ";".join(f"{place.name} {place.coordinates} {place.region}" for place in route)
    else:
        listed = "\n".join(f"- {place.name}: {place.coordinates} ({place.region})" for place in route)
        text = (
            f"Order level {order_level} ({ORDER_LEVEL_MEANINGS[order_level]}). Places in reference order:\n{listed}\n"
            f"Reference call: direction(origin={coordinates[0]}, waypoints={coordinates[1:-1]}, "
            f"destination={coordinates[-1]})"
        )
    regions = [place.region for place in route] + [place.country for place in route if place.country]
    return Evidence(
        text=text,
        private_values=tuple(dict.fromkeys([*coordinates, *regions])),
        facts={
            "order_level": order_level,
            "route": [
                {"name": place.name, "coordinates": place.coordinates, "region": place.region} for place in route
            ],
            "gold_call": {
                "name": "direction",
                "arguments": {
                    "origin": coordinates[0],
                    "destination": coordinates[-1],
                    "waypoints": coordinates[1:-1],
                },
            },
            "atlas": dict(atlas),
        },
    )


def is_consistent(atlas: Atlas, task: Task) -> bool:
    """Return whether the query names exactly the route's places, the trip is one, and visible answers solve it."""
    names = [place["name"] for place in task.evidence.facts["route"]]
    if len(set(names)) < len(names) or any(task.query.count(name) != 1 for name in names):
        return False
    rest = task.query
    for name in sorted(names, key=len, reverse=True):
        rest = rest.replace(name, "|")
    if any(place.name in rest or place.region in rest for place in atlas.places):
        return False
    tops = Counter(atlas.search(name)[0].region for name in names).most_common(2)
    if len(names) > 2 and (tops[0][1] < 2 or (len(tops) == 2 and tops[0][1] == tops[1][1])):
        return False
    episode = NavigationEpisode(task, world=atlas, profile=atlas.profile)
    for _ in solve(episode, task, skill="requery"):
        pass
    return episode.score() == 1.0


def counterfactual(atlas: Atlas, task: Task) -> Task | None:
    """Return the task with the same query and evidence that puts one place elsewhere; None if no name recurs.

    For leak audits: given the same history, a correction that changes with this evidence was read off the evidence.
    The place moved is the one whose bare search first returns another region, and it is moved to the least prominent
    place of its name: a draft that took the first answer is wrong under both kinds of evidence.
    """
    facts = task.evidence.facts
    route = [
        next(
            place
            for place in atlas.search(entry["name"], entry["region"])
            if place.name == entry["name"] and place.coordinates == entry["coordinates"]
        )
        for entry in facts["route"]
    ]
    elsewhere = {
        index: [other for other in atlas.search(place.name) if other.name == place.name and other != place]
        for index, place in enumerate(route)
    }
    movable = [index for index, others in elsewhere.items() if others]
    if not movable:
        return None
    index = max(movable, key=lambda index: elsewhere[index][0].prominence - route[index].prominence)
    moved = [*route[:index], elsewhere[index][-1], *route[index + 1 :]]
    return replace(task, evidence=make_evidence(moved, order_level=facts["order_level"], atlas=facts["atlas"]))
