"""Places as tool answers show them, and the way back: what a reader of the answers can know."""

import re
from collections.abc import Sequence

from midcourse.environments.navigation.places import Place, Profile

MAX_RESULTS = {"nano": 1, "full": 3}  # poi_search answers are truncated like a map service's first page
MAX_AROUND_RESULTS = {"nano": 3, "full": 10}
FULL_LINE = re.compile(
    r"^\d+\. \*\*(?P<name>.+?)\*\* \((?P<category>[^()]*)\) - location: (?P<coordinates>\S+) - "
    r"region: (?P<region>[^,\n]+)(?:, (?P<country>[^\n]+))?$",
    re.MULTILINE,
)
NANO_ITEM = re.compile(r"([A-Za-z]+) (\d\d,\d\d) ([A-Za-z]+)")


def render_places(places: Sequence[Place], *, profile: Profile, limit: int) -> str:
    """Return the first `limit` places as text: `Azure 31,07 Oslo` (nano), or a numbered markdown list."""
    shown = places[:limit]
    if profile == "nano":
        return " ".join(f"{place.name} {place.coordinates} {place.region}" for place in shown)
    lines = [
        f"{index}. **{place.name}** ({place.category}) - location: {place.coordinates} - region: {place.region}"
        + (f", {place.country}" if place.country else "")
        for index, place in enumerate(shown, start=1)
    ]
    if len(places) > limit:
        lines.append(f"... {len(places) - limit} more not shown; add a region to narrow the search.")
    return "\n".join(lines)


def read_places(text: str, *, profile: Profile) -> list[Place]:
    """Return the places a tool answer shows, in its order; none for errors and other text."""
    if profile == "nano":
        return [
            Place(name=name, coordinates=coordinates, region=region)
            for name, coordinates, region in NANO_ITEM.findall(text)
        ]
    return [
        Place(
            name=match["name"],
            category=match["category"],
            coordinates=match["coordinates"],
            region=match["region"],
            country=match["country"] or "",
        )
        for match in FULL_LINE.finditer(text)
    ]
