"""RAIL in the world of letters: rollouts that look and press, worked by hand, and a controller told what to favour."""

import asyncio
from dataclasses import replace

from tests.interventions.scripted_world import TASK
from tests.rollout.branch_world import HIDDEN_SIZE, KEY, KnowingEngine, SeededWorld, make_tools

from midcourse.branching.controller import ControllerConfig
from midcourse.branching.exploration import ExplorationConfig
from midcourse.branching.state import SCALAR_NAMES
from midcourse.methods.base import RunFacts
from midcourse.methods.rail import RAILConfig


def draws_of(key):
    """Seed of a draw -> whose it is: which attempt's, at which turn."""
    return {
        replace(key, attempt=attempt).turn_seed(turn): (attempt, turn) for attempt in range(60) for turn in range(3)
    }


ATTEMPTS = draws_of(KEY)
ENTROPIES = {(0, 0): 1.0, (0, 1): 2.0, (1, 1): 0.5, (2, 1): 3.0, (3, 1): 2.5}
"""Nats of the drafts of (attempt, turn); the most uncertain turn of the first four rollouts is the second of 2."""
WINNERS = {3, 4, 5, 8, 9, 10, 11, 12, 28, 29}
"""Attempts that press the right key. Of the roots (0 to 3) one."""
SHADOW, LIVE = 1.0, 0.0


def press(attempt, turn):
    """Look, then press what the attempt presses; each draft names itself."""
    return f"{attempt},{turn}+{'l' if turn == 0 else 'b' if attempt in WINNERS else 'a'};"


def engine_of(draft=press, *, entropies=ENTROPIES, kind=KnowingEngine, **settings):
    def say(prompt_ids, sampling):
        return [*map(ord, draft(*ATTEMPTS[sampling.seed]))]

    if kind is KnowingEngine:
        settings["entropy_of"] = lambda sampling: entropies.get(ATTEMPTS[sampling.seed], 0.1)
    return kind(say, **settings)


def begun(config, *, update=2, updates=10):
    """Return the method as it stands in an update, and what it would be told of a run."""
    method = config.build()
    method.begin(RunFacts(seed=KEY.seed, updates=updates, hidden_size=HIDDEN_SIZE, tasks=(TASK,)))
    method.begin_update(update, [TASK])
    return method


def make_config(phase=SHADOW, **settings):
    promotion = {"rule": "fixed", "shadow_fraction": phase}
    return RAILConfig(**{"shadow_anchors": 2, "promotion": promotion, **settings})


def favour(method, *, bias=0.0, **weights):
    """Make the controller predict `bias` and so much for each number of the state (by name) or of the code."""
    network = method.controller.network
    network.parameters[:] = 0.0
    regimes = [regime.name for regime in method.space.regimes]
    places = [*SCALAR_NAMES, *(["-"] * 16), "rollouts", *regimes]
    skip = network.parameters[-1 - len(places) : -1]
    for name, weight in weights.items():
        skip[places.index(name)] = weight
    network.parameters[-1] = bias
    return method


def collect(method, *, engine=None, world=None):
    engine = engine or engine_of()
    tools = make_tools(engine, world or SeededWorld())
    return asyncio.run(method.collect(TASK, tools, seed=KEY.seed, update=KEY.update)), engine


def shadow(**settings):
    method = begun(make_config(**settings))
    return method, collect(method)[0]


def scalars(record):
    return dict(zip(SCALAR_NAMES, record.scalars, strict=True))


def actions(group):
    return [(record.parent, record.turn, len(record.rollouts), record.regime) for record in group.branches]


def live(*, engine=None, world=None, favouring=None, **settings):
    exploration = ExplorationConfig(initial_rate=0.0)
    controller = settings.pop("controller", ControllerConfig(exploration=exploration))
    method = favour(begun(make_config(LIVE, controller=controller, **settings)), **(favouring or {}))
    return method, *collect(method, engine=engine, world=world)
