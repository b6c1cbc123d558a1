"""Forks by replay: an episode is started again, led through the turns so far, and must answer every one as it had.

The fork of a world that can copy itself is its own (`ForkableEpisode`). Any other is forked here, at the cost of doing
its turns again. A world that answers the same turns otherwise (it draws at random, tells the time, or is shared with
others) is refused. What it keeps to itself and never answers with cannot be checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from midcourse.environments.base import Environment, Episode, ForkableEpisode, Observation, Task
from midcourse.errors import EnvironmentFault, ReplayMismatchError
from midcourse.types import AssistantTurn, Turn

EXCERPT_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One turn that reached the world, and what the world answered."""

    turn: AssistantTurn
    observation: Observation


class ReplayingEpisode:
    """Any episode, made forkable. A fork starts its own when it is first used, by whoever uses it, in that thread.

    So a fork costs nothing until then, and a replay that fails is a failure of the rollout that wanted it.

    Args:
        start: returns a fresh episode of the same task, with the same seed.
        exchanges: what was done so far.
        episode: one that is already in that state; None: one is started and led there on first use.
    """

    def __init__(
        self, start: Callable[[], Episode], *, exchanges: Sequence[Exchange] = (), episode: Episode | None = None
    ) -> None:
        self._start = start
        self._exchanges = tuple(exchanges)
        self._episode = episode
        self._is_known = True  # whether the exchanges lead to the state that the episode is in
        self._is_closed = False

    def act(self, turn: AssistantTurn) -> Observation:
        """Return what the world answers.

        Raises:
            ReplayMismatchError: this is a fork, and the world did not answer the turns before it as it had.
        """
        episode = self._live()
        self._is_known = False
        observation = episode.act(turn)
        self._exchanges = (*self._exchanges, Exchange(turn=turn, observation=observation))
        self._is_known = True
        return observation

    def score(self) -> float:
        """Return the reward of what was done so far. Raises as `act` does."""
        return self._live().score()

    def fork(self) -> "ReplayingEpisode":
        """Return an independent episode that will be led to the same state.

        Raises:
            EnvironmentFault: a call of this episode failed or has not returned, so that its state is not known.
        """
        if not self._is_known:
            raise EnvironmentFault("an episode cannot be forked after a call that did not return: its state is unknown")
        return type(self)(self._start, exchanges=self._exchanges)

    def close(self) -> None:
        """Close the world's episode, if one was started."""
        self._is_closed = True
        if self._episode is not None:
            self._episode.close()

    def _live(self) -> Episode:
        if self._episode is None:
            if self._is_closed:
                raise EnvironmentFault("this episode is closed")
            episode = self._start()
            try:
                _lead(episode, self._exchanges)
            except BaseException:
                episode.close()
                raise
            self._episode = episode
        return self._episode


def start_forkable(environment: Environment, task: Task, *, seed: int) -> ForkableEpisode:
    """Return a fresh episode that forks: the environment's own where it can, else one that forks by replay."""

    def start() -> Episode:
        return environment.start(task, seed=seed)

    episode = start()
    return episode if isinstance(episode, ForkableEpisode) else ReplayingEpisode(start, episode=episode)


def replayed(environment: Environment, task: Task, *, seed: int, turns: Sequence[Turn]) -> ReplayingEpisode:
    """Return an episode that will be led through turns of a rollout, none of which ended it.

    Args:
        environment: the world that the rollout was played in.
        task: the rollout's task.
        seed: the one that its episode was started with.
        turns: as they stand in its trajectory, with their results, up to where it shall go on.
    """
    return ReplayingEpisode(
        lambda: environment.start(task, seed=seed),
        exchanges=[exchange for turn in turns if (exchange := _exchange(turn)) is not None],
    )


def _exchange(turn: Turn) -> Exchange | None:
    """Return what of a turn reached the world: the rollout answers a call that cannot be read by itself, at the end."""
    results = tuple(turn.results)
    if turn.message.parse_error is not None:
        if not turn.message.tool_calls:
            return None
        results = results[:-1]
    return Exchange(turn=turn.message, observation=Observation(results=results))


def _lead(episode: Episode, exchanges: Sequence[Exchange]) -> None:
    for number, exchange in enumerate(exchanges, start=1):
        found, expected = episode.act(exchange.turn), exchange.observation
        difference = _difference(found, expected)
        if difference:
            raise ReplayMismatchError(
                f"the world cannot be forked by replay: led through the same turns again, at turn {number} of "
                f"{len(exchanges)} {difference}"
            )


def _difference(found: Observation, expected: Observation) -> str:
    if len(found.results) != len(expected.results):
        return f"it gave {len(found.results)} results, before it gave {len(expected.results)}"
    for result, before in zip(found.results, expected.results, strict=True):
        if result != before:
            return (
                f"{before.name or 'a call'} answered {result.content[:EXCERPT_CHARACTERS]!r}"
                f"{' (error)' if result.is_error else ''}, before it answered "
                f"{before.content[:EXCERPT_CHARACTERS]!r}{' (error)' if before.is_error else ''}"
            )
    if found.done != expected.done:
        return f"the episode is {'' if found.done else 'not '}over, before it was {'' if expected.done else 'not '}over"
    return ""
