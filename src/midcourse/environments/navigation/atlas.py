"""Seeded maps: places that share names over regions, searched the way a map service answers."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from midcourse.environments.navigation.gazetteer import City, load_cities
from midcourse.environments.navigation.places import Place, Point, Profile, distance_metres, parse_point
from midcourse.environments.navigation.vocabulary import NANO_NAMES, NANO_REGIONS

NANO_REGIONS_PER_NAME = 3
FULL_CITIES = 60
FULL_PLACES_PER_CITY = 26
STEMS = (
    "Lotus", "Riverside", "Golden Hill", "Old Harbour", "Maple", "Crescent", "Stone Bridge", "White Crane", "Sunrise",
    "Willow", "Silver Lake", "Jade", "North Gate", "Kingfisher", "Orchard", "Lantern", "Cedar", "Moonlight", "Victory",
    "Botanical", "Peacock", "Market Square", "Bluebell", "Phoenix", "Windmill", "Castle Hill", "Amber", "Heritage",
)  # fmt: skip
SCENIC_TYPES = (
    "Park", "Temple", "Museum", "Garden", "Tower", "Lookout", "Palace", "Waterfall", "Gallery", "Pagoda", "Monument",
)  # fmt: skip
OTHER_TYPES = ("Hotel", "Parking Lot", "Tea House", "Station")
SCENIC = "scenic spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Atlas:
    """One map. `search` and `around` are pure: the same question always gets the same places, in the same order."""

    profile: Profile
    seed: int
    held_out: bool
    places: Sequence[Place]
    _by_name: dict[str, list[Place]] = field(repr=False, default_factory=dict)
    _points: dict[str, Point] = field(repr=False, default_factory=dict)
    _labels: dict[str, str] = field(repr=False, default_factory=dict)
    _found: dict[str, list[Place]] = field(repr=False, default_factory=dict)  # searches of known names

    def __post_init__(self) -> None:
        by_name: dict[str, list[Place]] = defaultdict(list)
        for place in sorted(self.places, key=lambda place: -place.prominence):
            by_name[place.name.casefold()].append(place)
            self._points[place.coordinates] = parse_point(place.coordinates, profile=self.profile)
            self._labels[place.coordinates] = f"{place.name} {place.category}".casefold()
        self._by_name.update(by_name)

    def search(self, address: str, region: str | None = None) -> list[Place]:
        """Return places of that name, the most prominent first, then places whose name holds all its words.

        Args:
            address: a place's name; case does not matter.
            region: only places of that city (or country).
        """
        wanted = " ".join(address.casefold().split())
        found = self._found.get(wanted)
        if found is None:
            found = self._search(wanted)
            if wanted in self._by_name:  # other addresses are the policy's words, without number
                self._found[wanted] = found
        return [place for place in found if matches_region(place, region)]

    def _search(self, wanted: str) -> list[Place]:
        found = list(self._by_name.get(wanted, ()))
        if self.profile == "full" and wanted:
            words = set(wanted.split())
            for name, places in self._by_name.items():
                if name != wanted and words <= set(name.split()):
                    found.extend(places)
        return found

    def around(
        self, center: Point, radius_metres: float, *, keyword: str | None = None, region: str | None = None
    ) -> list[Place]:
        """Return places within `radius_metres` of `center`, the nearest first.

        Args:
            center: exact point, see `parse_point`.
            radius_metres: largest distance.
            keyword: part of a place's name or category.
            region: only places of that city (or country).
        """
        wanted = (keyword or "").casefold()
        # A degree of latitude is over 110 km and a nano unit 1 km: most places are out of reach by latitude alone.
        reach = radius_metres * 1000 if self.profile == "nano" else radius_metres * 10
        near = [
            (distance_metres(center, self._points[place.coordinates], profile=self.profile), place.coordinates, place)
            for place in self.places
            if abs(self._points[place.coordinates][1] - center[1]) <= reach
            and wanted in self._labels[place.coordinates]
            and matches_region(place, region)
        ]
        return [place for distance, _, place in sorted(near, key=lambda item: item[:2]) if distance <= radius_metres]

    def route(self, coordinates: Sequence[str], *, mode: str) -> str:
        """Return what the policy is told of a route: its stops and straight-line length."""
        points = [parse_point(text, profile=self.profile) for text in coordinates]
        metres = sum(distance_metres(a, b, profile=self.profile) for a, b in pairwise(points))
        return f"Route found: {mode}, {len(points)} stops, about {metres / 1000:.0f} km."

    def point(self, place: Place) -> Point:
        """Return the exact point of a place of this atlas."""
        return self._points[place.coordinates]


def matches_region(place: Place, region: str | None) -> bool:
    """Return whether a place lies in a city or country; no region matches every place."""
    return not region or region.strip().casefold() in (place.region.casefold(), place.country.casefold())


def make_atlas(profile: Profile, seed: int, *, held_out: bool = False) -> Atlas:
    """Return the map that (profile, seed, held_out) names, always the same one.

    Args:
        profile: "nano" (8 regions, 40 names, each in 3 regions, two-digit coordinates) or "full" (60 real cities
            with about 26 invented places each, names recurring in several cities, six decimals).
        seed: which map of the profile.
        held_out: draw from names (full: cities) that no map with held_out=False uses; nano maps share all their words
            and differ in layout alone.
    """
    # A string seed is hashed by SHA-512 in the standard library, so it does not depend on PYTHONHASHSEED.
    rng = random.Random(f"atlas/{profile}/{seed}/{held_out}")
    places = nano_places(rng) if profile == "nano" else full_places(rng, held_out=held_out)
    return Atlas(profile=profile, seed=seed, held_out=held_out, places=places)


def nano_places(rng: random.Random) -> tuple[Place, ...]:
    """Return 120 places: each name in 3 of 8 regions, 5 names most prominent in each region, regions apart.

    No two of a region's places share a latitude, nor the first 25 a longitude: half a coordinate tells places apart,
    which is what a policy of a million parameters can copy.
    """
    names, regions = list(NANO_NAMES), list(NANO_REGIONS)
    rng.shuffle(names)
    rng.shuffle(regions)
    free = {}
    for index, region in enumerate(regions):
        left, low = 25 * (index % 4), 50 * (index // 4)
        columns, more, rows = (
            rng.sample(range(low, low + size), size) for low, size in ((left, 25), (left, 25), (low, 50))
        )
        free[region] = list(zip(columns + more, rows, strict=True))
    places = []
    for index, name in enumerate(names):
        home = regions[index % len(regions)]
        others = rng.sample([region for region in regions if region != home], NANO_REGIONS_PER_NAME - 1)
        for rank, region in enumerate((home, *others)):
            x, y = free[region].pop(0)
            places.append(
                Place(name=name, region=region, coordinates=f"{x:02d},{y:02d}", prominence=NANO_REGIONS_PER_NAME - rank)
            )
    return tuple(places)


def full_places(rng: random.Random, *, held_out: bool) -> tuple[Place, ...]:
    """Return places around 60 real cities of one half of the gazetteer; prominence grows with population."""
    half = [city for index, city in enumerate(load_cities()) if (index % 2 == 1) == held_out]
    scenic_names = [f"{stem} {kind}" for stem in STEMS for kind in SCENIC_TYPES]
    other_names = [f"{stem} {kind}" for stem in STEMS for kind in OTHER_TYPES]
    taken: set[str] = set()
    places = []
    for city in rng.sample(half, FULL_CITIES):
        scenic = rng.sample(scenic_names, FULL_PLACES_PER_CITY - 6)
        for name in (*scenic, *rng.sample(other_names, 6)):
            coordinates = near(city, rng, taken)
            taken.add(coordinates)
            category = SCENIC if name in scenic else name.split()[-1].casefold()
            # A famous place of a small city may outrank one of a large city: names alone must not tell the region.
            prominence = rng.randrange(1_000_000) + city.population // 50
            places.append(
                Place(
                    name=name,
                    region=city.name,
                    country=city.country,
                    coordinates=coordinates,
                    prominence=prominence,
                    category=category,
                )
            )
    return tuple(places)


def near(city: City, rng: random.Random, taken: set[str]) -> str:
    """Return untaken coordinates within about 15 km of a city's centre, six decimals."""
    while True:
        longitude = city.longitude_millionths + rng.randrange(-130_000, 130_001)
        latitude = city.latitude_millionths + rng.randrange(-100_000, 100_001)
        coordinates = f"{millionths_text(longitude)},{millionths_text(latitude)}"
        if coordinates not in taken:
            return coordinates


def millionths_text(value: int) -> str:
    """Return millionths as a decimal with six places, exactly."""
    sign = "-" if value < 0 else ""
    return f"{sign}{abs(value) // 1_000_000}.{abs(value) % 1_000_000:06d}"
