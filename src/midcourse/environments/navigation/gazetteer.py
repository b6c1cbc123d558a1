"""Real cities: names, countries, positions, populations. Derived from GeoNames (CC BY 4.0), see gazetteer.json."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class City:
    """One city. Names are unique within the gazetteer."""

    name: str
    country: str
    longitude_millionths: int  # of a degree
    latitude_millionths: int
    population: int


@cache
def load_cities() -> tuple[City, ...]:
    """Return the shipped cities, sorted by name."""
    table = json.loads((files("midcourse.environments.navigation") / "gazetteer.json").read_text(encoding="utf-8"))
    return tuple(
        City(name=name, country=country, longitude_millionths=x, latitude_millionths=y, population=population)
        for name, country, x, y, population in table["cities"]
    )
