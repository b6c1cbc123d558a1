"""The Amap web service as a live map. Request and answer shapes: https://lbs.amap.com/api/webservice (v3)."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field

from midcourse.environments.navigation.places import Place, Point
from midcourse.errors import ConfigError, EnvironmentFault

BUSY_CODES = frozenset({"10004", "10014", "10015", "10016", "10019", "10020", "10021"})  # over a rate, or overloaded
BAD_REQUEST_PREFIX = "20"  # 20000 and on: this request's parameters or route; below: key, quota, server


class AmapConfig(BaseModel):
    """How the live Amap service is reached."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    base_url: str = "https://restapi.amap.com"
    """Service root, without a path."""
    key_variable: str = "AMAP_KEY"
    """Name of the environment variable that holds the web-service key. The key itself stands in no config."""
    timeout_seconds: float = Field(default=10.0, gt=0)
    """Longest wait for one answer."""
    retries: int = Field(default=2, ge=0)
    """Further tries after a transport error, HTTP 5xx, or a busy answer."""
    retry_wait_seconds: float = Field(default=0.5, ge=0)
    """Wait before the first retry; doubled for each next."""
    requests_per_second: float = Field(default=3.0, gt=0)
    """Most requests a second, over all threads."""

    def build(self) -> "AmapMap":
        """Return the map.

        Raises:
            ConfigError: the environment variable is not set.
        """
        key = os.environ.get(self.key_variable, "")
        if not key:
            raise ConfigError(
                f"environment.amap.key_variable: the environment variable {self.key_variable} must hold the Amap "
                "web-service key, and it is not set"
            )
        return AmapMap(self, key=key)


class AmapMap:
    """Answers the map tools from the live service. Its answers change over time, so rewards are not reproducible."""

    def __init__(self, config: AmapConfig, *, key: str) -> None:
        self._config = config
        self._key = key
        self._client = httpx.Client(base_url=config.base_url, timeout=config.timeout_seconds)
        self._lock = threading.Lock()
        self._next_request = 0.0  # monotonic seconds

    def search(self, address: str, region: str | None = None) -> list[Place]:
        """Return places by text, best first; with a region only those of that city.

        Raises:
            EnvironmentFault: the service does not answer, or refuses the key.
            ValueError: the service finds the request wrong.
        """
        parameters = {"keywords": address} | ({"city": region, "citylimit": "true"} if region else {})
        return read_pois(self._get("/v3/place/text", parameters))

    def around(
        self, center: Point, radius_metres: float, *, keyword: str | None = None, region: str | None = None
    ) -> list[Place]:
        """Return places within a circle. Raises as `search`."""
        parameters = {
            "location": f"{center[0] / 1e6:.6f},{center[1] / 1e6:.6f}",
            "radius": str(round(radius_metres)),
            "sortrule": "distance",
        }
        parameters |= ({"keywords": keyword} if keyword else {}) | ({"city": region} if region else {})
        return read_pois(self._get("/v3/place/around", parameters))

    def route(self, coordinates: Sequence[str], *, mode: str) -> str:
        """Return length and time of the driving route; other modes are answered without asking the service.

        Raises as `search`.
        """
        if mode != "driving":
            return f"Route found: {mode}, {len(coordinates)} stops."
        origin, *stops, destination = coordinates
        parameters = {"origin": origin, "destination": destination} | ({"waypoints": ";".join(stops)} if stops else {})
        answer = self._get("/v3/direction/driving", parameters)
        try:
            path = answer["route"]["paths"][0]
            kilometres, minutes = float(path["distance"]) / 1000, float(path["duration"]) / 60
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EnvironmentFault(f"Amap answered no route that can be read: {type(error).__name__}") from error
        return f"Route found: driving, {len(coordinates)} stops, {kilometres:.1f} km, {minutes:.0f} min."

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _get(self, path: str, parameters: Mapping[str, str]) -> Mapping[str, Any]:
        problem = ""
        for attempt in range(self._config.retries + 1):
            if attempt:
                time.sleep(self._config.retry_wait_seconds * 2 ** (attempt - 1))
            self._wait_for_slot()
            try:
                response = self._client.get(path, params={**parameters, "key": self._key, "output": "JSON"})
                answer = response.json() if response.status_code == 200 else None
            except (httpx.TransportError, ValueError) as error:
                # The exception's text may hold the URL and with it the key: only its kind is passed on.
                problem = type(error).__name__
                continue
            if response.status_code >= 500:
                problem = f"HTTP {response.status_code}"
                continue
            if not isinstance(answer, Mapping):
                raise EnvironmentFault(f"Amap {path} answered HTTP {response.status_code} without a JSON object")
            if answer.get("status") == "1":
                return answer
            code, text = str(answer.get("infocode", "")), str(answer.get("info", ""))[:80]
            if code in BUSY_CODES:
                problem = f"{text} ({code})"
                continue
            if code.startswith(BAD_REQUEST_PREFIX):
                raise ValueError(f"the map service refuses the request: {text} ({code})")
            raise EnvironmentFault(f"Amap {path} answered {text} ({code})")
        raise EnvironmentFault(f"Amap {path} gave no answer in {self._config.retries + 1} tries: {problem}")

    def _wait_for_slot(self) -> None:
        with self._lock:
            now = time.monotonic()
            slot = max(now, self._next_request)
            self._next_request = slot + 1 / self._config.requests_per_second
        time.sleep(slot - now)


def read_pois(answer: Mapping[str, Any]) -> list[Place]:
    """Return the places of a v3 answer; entries without a location are left out."""
    places = []
    for poi in answer.get("pois") or ():
        location = plain_text(poi.get("location"))
        if location:
            region = plain_text(poi.get("cityname")) or plain_text(poi.get("pname"))
            category = plain_text(poi.get("type")).split(";")[-1].replace("(", "").replace(")", "")
            places.append(
                Place(name=plain_text(poi.get("name")), region=region, coordinates=location, category=category)
            )
    return places


def plain_text(value: Any) -> str:
    """Return a field as text; the service writes an empty field as an empty list."""
    return value if isinstance(value, str) else ""
