"""One run of one navigation task."""

from typing import Self

from midcourse.environments.base import Observation, Task
from midcourse.environments.navigation.matching import route_matches
from midcourse.environments.navigation.places import Point, Profile, parse_point
from midcourse.environments.navigation.tools import Map, run_call
from midcourse.types import AssistantTurn

MAX_TURNS = 6  # RTI, App. C.2.1


class NavigationEpisode:
    """Runs tool calls, remembers which points were shown, scores the first valid direction call.

    A direction call over a point that no EARLIER turn showed is an error result and does not end the episode (the
    paper's evaluator gives such a trajectory reward 0; here the policy may still search and call again within its six
    turns). The first valid call ends it, right or wrong. So does a turn without any call that could be read as an
    answer in words.
    """

    def __init__(self, task: Task, *, world: Map, profile: Profile) -> None:
        self.task = task
        self._world = world
        self._profile: Profile = profile
        self._visible: frozenset[Point] = frozenset()
        self._route: tuple[Point, ...] | None = None
        self._num_turns = 0
        self._done = False

    def act(self, turn: AssistantTurn) -> Observation:
        """Run the turn's calls in order; once done, nothing more is run."""
        if self._done or self._num_turns >= MAX_TURNS:
            self._done = True
            return Observation(done=True)
        self._num_turns += 1
        if not turn.tool_calls:
            self._done = turn.parse_error is None
            return Observation(done=self._done)
        results, revealed = [], set()
        for call in turn.tool_calls:
            outcome = run_call(call, world=self._world, profile=self._profile, visible=self._visible)
            results.append(outcome.result)
            revealed.update(parse_point(place.coordinates, profile=self._profile) for place in outcome.places)
            if outcome.route:
                self._route = tuple(outcome.route)
                self._done = True
                break
        # Points of this turn count from the next turn on: calls of one turn are written before any of them answers.
        self._visible |= revealed
        return Observation(results=tuple(results), done=self._done)

    def score(self) -> float:
        """Return 1.0 if the direction call was the reference route under the task's order level, else 0.0."""
        if self._route is None:
            return 0.0
        facts = self.task.evidence.facts
        reference = [parse_point(place["coordinates"], profile=self._profile) for place in facts["route"]]
        return float(route_matches(self._route, reference, order_level=facts["order_level"]))

    def fork(self) -> Self:
        """Return an independent episode in the same state; the map is shared, since it never changes."""
        twin = type(self)(self.task, world=self._world, profile=self._profile)
        twin._visible, twin._route = self._visible, self._route
        twin._num_turns, twin._done = self._num_turns, self._done
        return twin

    def close(self) -> None:
        """Free nothing: an episode holds no resource."""
