"""A bandit whose best intervention depends on the state and moves as training goes on (RAIL, Section 3.1 and C.2).

A round is an anchor of a pool with k successes in n rollouts. A branch of m continuations in a regime succeeds with
probability p, whose logit is that of the pool's mean plus what the regime does there: it helps where its angle is near
theta_t + pi * entropy, and a direction of the hidden state says how recoverable the anchor is. f_t(z, b) is the exact
expectation of the gain (`branching/gain.py`), a sum over the binomial; y_t is drawn, with the same uniform number for
every action, so that all arms meet the same luck. f depends on what the controller sees alone: there is no latent part.

theta_t is what drifts. Letters: T rounds, K cells, H numbers of a hidden state.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from midcourse.branching.actions import ActionSpace
from midcourse.branching.gain import COST_ROLLOUTS, GainConfig
from midcourse.branching.state import SCALAR_NAMES

Array = NDArray[numpy.float64]
HIDDEN_SIZE = 8
POOL_SIZES = (4, 8, 12, 16)
REGIME_EFFECT, RECOVERABILITY = 2.0, 1.0
"""Nats of the logit: amplitude of the regime's effect, and of the hidden state's."""
ANGLES: Mapping[str, float] = {"exploit": 0.0, "mild": 2 * math.pi / 3, "aggressive": 4 * math.pi / 3}
DRIFTS = ("none", "root", "linear")
"""How theta grows: not at all (D_T = 0), with the root of t (D_T = O(sqrt T)), with t (D_T = Omega(T))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """Where the rounds stand, before any time."""

    scalars: Array  # [T, 10]
    hidden: NDArray[numpy.float32]  # [T, H]
    sizes: NDArray[numpy.int64]  # [T] n
    successes: NDArray[numpy.int64]  # [T] k


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All rounds of one seed, every action worked out."""

    anchors: Anchors
    expected: Array  # [T, K] f_t(z_t, b)
    drawn: Array  # [T, K] y_t, had b been run


def make_world(space: ActionSpace, *, rounds: int, seed: int, drift: str) -> World:
    """Return the rounds of one seed under one of DRIFTS; other drifts meet the same anchors."""
    generator = numpy.random.default_rng(seed)
    anchors = _draw_anchors(generator, rounds)
    luck = generator.random(rounds)
    expected, drawn = _gains(space, anchors, _theta(numpy.arange(1, rounds + 1), drift), luck)
    return World(anchors=anchors, expected=expected, drawn=drawn)


def variation(space: ActionSpace, *, rounds: int, drift: str, probes: int = 200, stride: int = 20) -> Array:
    """Return D_t at every `stride`-th round: the summed greatest change of f over a sample of states."""
    anchors = _draw_anchors(numpy.random.default_rng(0), probes)
    total, found, before = 0.0, [0.0], None
    for moment in range(1, rounds + 1, stride):
        theta = numpy.repeat(_theta(numpy.array([moment]), drift), probes)
        now, _ = _gains(space, anchors, theta, numpy.zeros(probes))
        total += 0.0 if before is None else float(numpy.abs(now - before).max())
        found.append(total)
        before = now
    return numpy.array(found)


def _theta(moments: NDArray[numpy.int64], drift: str) -> Array:
    if drift == "none":
        return numpy.zeros(len(moments))
    return 0.04 * numpy.sqrt(moments) if drift == "root" else 2 * math.pi * moments / 3000


def _draw_anchors(generator: numpy.random.Generator, rounds: int) -> Anchors:
    sizes = generator.choice(POOL_SIZES, rounds)
    successes = generator.binomial(sizes, generator.beta(0.7, 1.0, rounds))
    means = successes / sizes
    scalars = generator.random((rounds, len(SCALAR_NAMES)))
    for name, values in (
        ("budget_used_fraction", sizes / 32),
        ("reward_mean", means),
        ("reward_deviation", numpy.sqrt(means * (1 - means))),
        ("distance_to_half", numpy.abs(means - 0.5)),
    ):
        scalars[:, SCALAR_NAMES.index(name)] = values
    hidden = generator.normal(size=(rounds, HIDDEN_SIZE)).astype(numpy.float32)
    return Anchors(scalars=scalars, hidden=hidden, sizes=sizes, successes=successes)


def _gains(space: ActionSpace, anchors: Anchors, theta_T: Array, luck_T: Array) -> tuple[Array, Array]:
    means = anchors.successes / anchors.sizes
    held = numpy.clip(means, 0.1, 0.9)
    turned = theta_T + math.pi * anchors.scalars[:, SCALAR_NAMES.index("anchor_entropy")]
    direction = numpy.ones(HIDDEN_SIZE) / math.sqrt(HIDDEN_SIZE)
    common = numpy.log(held / (1 - held)) + RECOVERABILITY * (anchors.hidden @ direction)
    expected = numpy.empty((len(theta_T), len(space.cells)))
    drawn = numpy.empty_like(expected)
    for action in space.cells:
        new = numpy.arange(action.rollouts + 1)
        chance = 1 / (1 + numpy.exp(-(common + REGIME_EFFECT * numpy.cos(ANGLES[action.regime.name] - turned))))
        ways = numpy.array([math.comb(action.rollouts, int(one)) for one in new])
        likelihood = ways * chance[:, None] ** new * (1 - chance[:, None]) ** (action.rollouts - new)
        after = (anchors.successes[:, None] + new) / (anchors.sizes[:, None] + action.rollouts)
        cost = GainConfig().cost_weight * action.rollouts / COST_ROLLOUTS
        gains = numpy.abs(means - 0.5)[:, None] - numpy.abs(after - 0.5) - cost
        found = (likelihood.cumsum(axis=1) <= luck_T[:, None]).sum(axis=1).clip(max=action.rollouts)
        expected[:, action.cell] = (likelihood * gains).sum(axis=1)
        drawn[:, action.cell] = numpy.take_along_axis(gains, found[:, None], axis=1)[:, 0]
    return expected, drawn
