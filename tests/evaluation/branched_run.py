"""Run folders of RAIL as training would leave them, from rollouts in the world of letters: no model is asked."""

from dataclasses import replace
from pathlib import Path

from tests.methods.rail_world import begun, collect, engine_of, favour, make_config, press

from midcourse.branching.controller import ControllerConfig
from midcourse.branching.exploration import ExplorationConfig
from midcourse.branching.promotion import PromotionConfig
from midcourse.recording.metrics import group_metrics
from midcourse.recording.writer import RecordingConfig, RunWriter

UPDATES, SHADOW_UPDATES = 3, 2


def write_branched_run(folder: Path, *, name: str = "rail", seed: int = 0, trajectories: bool = True) -> Path:
    """Write a run of two tasks an update, the last update live, and return its folder.

    Shadow: 4, 8, 12 and 4 rollouts branch from the four as worked by hand in test_rail.py, of which 12 are kept; then
    the other task, of which nothing is known but that nobody succeeds after the roots. Live: the controller draws 12.
    """
    config = make_config(
        promotion=PromotionConfig(shadow_fraction=SHADOW_UPDATES / UPDATES),
        controller=ControllerConfig(exploration=ExplorationConfig(initial_rate=0.0)),
    )
    method = begun(config, update=1, updates=UPDATES)
    settings = f'seed = {seed}\n[method]\nname = "{name}"\n'
    recording = RecordingConfig(tensorboard=False, trajectories=trajectories)
    with RunWriter(folder, recording, resolved_config=settings) as writer:
        for update in range(1, UPDATES + 1):
            method.begin_update(update, [])
            favour(method, anchor_entropy=1.0, budget_used_fraction=-4.0, rollouts=0.5)
            collected = [collect(method, engine=engine)[0] for engine in (engine_of(), engine_of(hopeless))]
            groups = [replace(group, group_id=f"{update}:{index}") for index, group in enumerate(collected)]
            learned = method.learn(groups, update=update)
            writer.write_groups(update, groups)
            timed = {"time/rollout": 2.0, "time/rollout/policy": 3.0, "time/rollout/branch": 5.0, "time/update": 1.0}
            writer.write_metrics(update, {**group_metrics(groups), **method.statistics(groups), **learned, **timed})
    return folder


def hopeless(attempt, turn):
    """One root succeeds, and nobody later."""
    return press(attempt if attempt < 4 else 0, turn)
