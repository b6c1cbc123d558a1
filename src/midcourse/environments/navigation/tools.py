"""The three map tools: what the policy is told, what is checked, what is answered. A bad call is answered too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from midcourse.environments.base import Tool
from midcourse.environments.navigation.places import Place, Point, Profile, parse_point
from midcourse.environments.navigation.rendering import MAX_AROUND_RESULTS, MAX_RESULTS, render_places
from midcourse.types import ToolCall, ToolResult

MODES = ("driving", "walking", "bicycling", "electrobike", "transit")
MAX_WAYPOINTS = 16
MAX_RADIUS_METRES = 50_000
DEFAULT_RADIUS_METRES = 5_000

TOOLS = (
    Tool(
        name="poi_search",
        description="Find places by name or address. Returns a list with name, location (longitude,latitude) and "
        "region, most prominent first.",
        parameters={
            "type": "object",
            "properties": {
                "address": {"type": "string", "description": "Name or address of the place."},
                "region": {"type": "string", "description": "Only places of this city."},
            },
            "required": ["address"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name="around_search",
        description="Find places within a circle around a location, nearest first.",
        parameters={
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "Centre as longitude,latitude."},
                "radius": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_RADIUS_METRES,
                    "default": DEFAULT_RADIUS_METRES,
                    "description": "Metres.",
                },
                "keyword": {"type": "string", "description": "Part of the name or category."},
                "region": {"type": "string", "description": "Only places of this city."},
            },
            "required": ["location"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name="direction",
        description="Plan the route from origin over waypoints to destination. Every location must have been "
        "returned by an earlier tool answer.",
        parameters={
            "type": "object",
            "properties": {
                "origin": {"type": "string", "description": "longitude,latitude"},
                "destination": {"type": "string", "description": "longitude,latitude"},
                "mode": {"type": "string", "enum": list(MODES), "default": "driving"},
                "waypoints": {
                    "type": "array",
                    "items": {"type": "string", "description": "longitude,latitude"},
                    "maxItems": MAX_WAYPOINTS,
                    "description": "Stops between origin and destination, in the order of the visit.",
                },
            },
            "required": ["origin", "destination"],
            "additionalProperties": False,
        },
    ),
)
_PARAMETERS = {tool.name: tool.parameters for tool in TOOLS}


class Map(Protocol):
    """A map service: a seeded `Atlas`, or a live one."""

    def search(self, address: str, region: str | None = None) -> Sequence[Place]:
        """Return places of that name or address, best first."""
        ...

    def around(
        self, center: Point, radius_metres: float, *, keyword: str | None = None, region: str | None = None
    ) -> Sequence[Place]:
        """Return places within a circle, nearest first."""
        ...

    def route(self, coordinates: Sequence[str], *, mode: str) -> str:
        """Return what the policy is told of a route over "longitude,latitude" stops."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """What one call gave: the answer, the places it revealed, and the route if it was a valid direction call."""

    result: ToolResult
    places: Sequence[Place] = ()
    route: Sequence[Point] = field(default=())  # origin, waypoints, destination


class BadCall(ValueError):
    """A call that cannot be run; its text tells the policy what was expected."""


def run_call(call: ToolCall, *, world: Map, profile: Profile, visible: frozenset[Point]) -> CallOutcome:
    """Return the outcome of one call. A bad call is an error result.

    Args:
        call: as the policy wrote it, unchecked.
        world: the map that answers.
        profile: nano errors are the words "error" and "none".
        visible: points that tool answers of earlier turns returned; `direction` takes no others.
    """
    try:
        arguments = checked_arguments(call)
        if call.name == "direction":
            return direction(arguments, world=world, profile=profile, visible=visible)
        return search(call.name, arguments, world=world, profile=profile)
    except ValueError as error:
        text = "error" if profile == "nano" else f"Error: {error}"
        return CallOutcome(result=ToolResult(name=call.name, content=text, is_error=True))


def checked_arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments if they fit the tool's schema; null optional arguments are dropped.

    Raises:
        BadCall: unknown tool; missing, extra or wrong-typed argument; a value out of range.
    """
    if call.name not in _PARAMETERS:
        raise BadCall(f"unknown tool {str(call.name)[:40]!r}; expected one of {', '.join(_PARAMETERS)}")
    if not isinstance(call.arguments, Mapping):
        raise BadCall(f"{call.name} expects its arguments as a JSON object")
    schema = _PARAMETERS[call.name]
    properties, required = schema["properties"], schema["required"]
    arguments = {key: value for key, value in call.arguments.items() if value is not None or key in required}
    expected = f"{call.name} expects {', '.join(key if key in required else f'{key}?' for key in properties)}"
    extra = [str(key)[:40] for key in arguments if key not in properties]
    missing = [key for key in required if key not in arguments]
    if extra or missing:
        raise BadCall(f"{expected}; missing {missing or 'nothing'}, unknown {extra or 'nothing'}")
    for key, value in arguments.items():
        if key in ("radius", "waypoints"):
            continue
        if not isinstance(value, str) or not value.strip():
            raise BadCall(f"{expected}; {key} must be a non-empty string: got {type(value).__name__}")
    return arguments


def search(name: str, arguments: Mapping[str, Any], *, world: Map, profile: Profile) -> CallOutcome:
    """Run poi_search or around_search.

    Raises:
        ValueError: bad location or radius, or nothing found.
    """
    if name == "poi_search":
        found = world.search(arguments["address"], arguments.get("region"))
        limit = MAX_RESULTS[profile]
    else:
        center = parse_point(arguments["location"], profile=profile)
        radius = checked_radius(arguments.get("radius", DEFAULT_RADIUS_METRES))
        found = world.around(center, radius, keyword=arguments.get("keyword"), region=arguments.get("region"))
        limit = MAX_AROUND_RESULTS[profile]
    if not found:
        text = "none" if profile == "nano" else "No POI data available. Try another name or region."
        return CallOutcome(result=ToolResult(name=name, content=text, is_error=True))
    text = render_places(found, profile=profile, limit=limit)
    return CallOutcome(result=ToolResult(name=name, content=text), places=tuple(found[:limit]))


def checked_radius(radius: Any) -> float:
    """Return the radius in metres; digits in a string are taken too, since models often quote numbers.

    Raises:
        BadCall: not a number in [0, 50000].
    """
    if isinstance(radius, str) and radius.isascii() and radius.isdigit() and len(radius) <= 6:
        radius = int(radius)
    if isinstance(radius, bool) or not isinstance(radius, int | float) or not 0 <= radius <= MAX_RADIUS_METRES:
        raise BadCall(f"radius must be a number of metres in [0, {MAX_RADIUS_METRES}]: got {str(radius)[:40]!r}")
    return float(radius)


def direction(arguments: Mapping[str, Any], *, world: Map, profile: Profile, visible: frozenset[Point]) -> CallOutcome:
    """Run direction: valid only over points that earlier turns returned.

    Raises:
        ValueError: bad coordinates, mode or waypoints, or a location that no earlier answer returned.
    """
    mode = arguments.get("mode", "driving")
    if mode not in MODES:
        raise BadCall(f"mode must be one of {', '.join(MODES)}: got {mode[:40]!r}")
    stops = checked_waypoints(arguments.get("waypoints", ()))
    texts = (arguments["origin"], *stops, arguments["destination"])
    route = [parse_point(text, profile=profile) for text in texts]
    unseen = [text for text, point in zip(texts, route, strict=True) if point not in visible]
    if unseen:
        raise BadCall(
            "every location of direction must come from a tool answer of an earlier turn; "
            f"search first: {'; '.join(text[:40] for text in unseen)}"
        )
    text = "done" if profile == "nano" else world.route(texts, mode=mode)
    return CallOutcome(result=ToolResult(name="direction", content=text), route=tuple(route))


def checked_waypoints(waypoints: Any) -> list[str]:
    """Return the waypoints as strings; one string with ";" between them is taken too.

    Raises:
        BadCall: not a list of strings, or more than 16.
    """
    stops = [part for part in waypoints.split(";") if part.strip()] if isinstance(waypoints, str) else waypoints
    if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
        raise BadCall('waypoints must be an array of "longitude,latitude" strings')
    if len(stops) > MAX_WAYPOINTS:
        raise BadCall(f"at most {MAX_WAYPOINTS} waypoints: got {len(stops)}")
    return list(stops)
