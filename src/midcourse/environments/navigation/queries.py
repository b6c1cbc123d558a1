"""Phrasings whose ordering cues say the order level. Fields: start, end, any (names in any order), sequence."""

import random
from collections.abc import Sequence

from midcourse.environments.navigation.places import Profile

NANO_TEMPLATES: dict[int, tuple[str, ...]] = {
    0: ("visit {any}", "see {any}", "any order {any}"),
    1: ("start {start} visit {any}", "begin {start} see {any}", "visit {any} start {start}"),
    2: ("visit {any} end {end}", "end {end} visit {any}", "see {any} last {end}"),
    3: ("from {start} to {end} by {any}", "start {start} end {end} visit {any}", "from {start} visit {any} to {end}"),
    4: ("from {sequence}", "first {sequence}", "{sequence}"),
}
NANO_PAIR_TEMPLATES: dict[int, tuple[str, ...]] = {**NANO_TEMPLATES, 3: ("from {start} to {end}",)}
"""With two places nothing lies between the ends."""

FULL_TEMPLATES: dict[int, tuple[str, ...]] = {
    0: (
        "Plan me a drive that passes through {any}; the order does not matter.",
        "We want to see {any} this weekend, in whatever order works best. What is the route?",
        "Could you work out a route covering {any}?",
        "I have a free day and a car. Take me past {any}, any order is fine.",
        "What would be a nice loop through {any}? Arrange the stops as you like.",
        "My parents would love to see {any}. Can you put together one trip with all of them?",
        "Road trip idea: {any}. Sort the stops however you want and give me directions.",
    ),
    1: (
        "I am setting off from {start} and want to visit {any} in any order. How should I drive?",
        "Starting at {start}, please take me through {any}; after the start the order is up to you.",
        "Pick me up at {start}, then somehow fit in {any}. You choose the order of those.",
        "We are staying near {start}. From there we would like to see {any}, no fixed sequence.",
        "Our tour begins at {start}; {any} should all be on it, arranged freely.",
        "Please route us to {any}, in any order, leaving from {start}.",
    ),
    2: (
        "Please end the trip at {end}, after we have been to {any} in any order.",
        "We need to finish at {end} for dinner. Before that we want to see {any}, order does not matter.",
        "Take me through {any} however you like, but the last stop has to be {end}.",
        "Can you plan a drive over {any}, in no particular order, that finishes at {end}?",
        "I will meet a friend at {end} when the day is done. Earlier I want to fit in {any}, arranged freely.",
        "A route with {any} in any sequence, and {end} as the final destination, please.",
    ),
    3: (
        "How do I get from {start} to {end} if I want to pass through {any}, in any order, on the way?",
        "We leave from {start} and must arrive at {end}; on the way we want {any}, arranged as you see fit.",
        "Drive from {start} to {end}, with {any} somewhere in between.",
        "Start at {start}, finish at {end}, and squeeze in {any} along the way in whatever order is best.",
        "I am going from {start} to {end} tomorrow. Work {any} into the trip, the order is your call.",
        "Please get me to {end}, leaving from {start}, with stops at {any} in any order.",
    ),
    4: (
        "How do I drive from {sequence}? Please keep that order.",
        "First {sequence}. Give me a route in exactly this order.",
        "Please navigate me in this sequence: {sequence}.",
        "I would like to go to {sequence}, strictly one after the other.",
        "Our day starts with {sequence}, in that order. What is the way?",
        "Take us to {sequence}; do not change the order.",
        "Step by step, please: {sequence}. Can you give me a detailed route?",
    ),
}


def write_query(profile: Profile, names: Sequence[str], *, order_level: int, rng: random.Random) -> str:
    """Return a query for names in route order, which is the order of mention except for ends named out of place.

    Args:
        profile: nano has a handful of words, full whole sentences.
        names: place names in route order, at least 2 (full: 3).
        order_level: which cues the phrasing carries, see `route_matches`.
        rng: picks the phrasing.
    """
    nano_templates = NANO_PAIR_TEMPLATES if len(names) == 2 else NANO_TEMPLATES
    template = rng.choice((nano_templates if profile == "nano" else FULL_TEMPLATES)[order_level])
    free = list(names[1 if "{start}" in template else 0 : -1 if "{end}" in template else None])
    if profile == "nano":
        listed, sequence = " ".join(free), " then ".join(names)
    else:
        listed = free[0] if len(free) == 1 else f"{', '.join(free[:-1])} and {free[-1]}"
        sequence = ", then ".join(names)
    return template.format(start=names[0], end=names[-1], any=listed, sequence=sequence)
