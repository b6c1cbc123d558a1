"""A point of interest, and coordinates as text and as exact integers."""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Profile = Literal["nano", "full"]
Point = tuple[int, int]  # (longitude, latitude) in millionths: of a degree, or of a kilometre in the nano profile

PAIR = re.compile(r"\s*(-?\d{1,3}(?:\.\d{1,15})?)\s*,\s*(-?\d{1,3}(?:\.\d{1,15})?)\s*", re.ASCII)
EARTH_RADIUS_METRES = 6_371_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One point of interest. Of places with one name a bare search returns the greatest prominence first."""

    name: str
    region: str
    coordinates: str  # "longitude,latitude" as tools print it
    prominence: int = 0
    country: str = ""  # empty in the nano profile
    category: str = ""


def parse_point(text: str, *, profile: Profile) -> Point:
    """Return the exact point that "longitude,latitude" names, rounded to six decimals.

    Raises:
        ValueError: not two numbers, or a number outside the map (nano 0..99; full longitude within 180, latitude
            within 90 degrees, so most swapped pairs are caught here).
    """
    match = PAIR.fullmatch(text)
    if match is None:
        raise ValueError(f'coordinates must be "longitude,latitude": got {text[:60]!r}')
    longitude, latitude = (round(Decimal(part) * 1_000_000) for part in match.groups())
    low, high = ((0, 0), (99, 99)) if profile == "nano" else ((-180, -90), (180, 90))
    inside = low[0] <= longitude / 1e6 <= high[0] and low[1] <= latitude / 1e6 <= high[1]
    if not inside:
        raise ValueError(
            f"longitude must lie in [{low[0]}, {high[0]}] and latitude in [{low[1]}, {high[1]}]: got {text[:60]!r}"
        )
    return longitude, latitude


def distance_metres(first: Point, second: Point, *, profile: Profile) -> float:
    """Return metres between two points: straight on the nano grid, along a great circle on the full map."""
    if profile == "nano":
        return math.hypot(first[0] - second[0], first[1] - second[1]) / 1000
    (longitude_a, latitude_a), (longitude_b, latitude_b) = (
        (math.radians(x / 1e6), math.radians(y / 1e6)) for x, y in (first, second)
    )
    half = (
        math.sin((latitude_b - latitude_a) / 2) ** 2
        + math.cos(latitude_a) * math.cos(latitude_b) * math.sin((longitude_b - longitude_a) / 2) ** 2
    )
    return 2 * EARTH_RADIUS_METRES * math.asin(math.sqrt(min(1.0, half)))
