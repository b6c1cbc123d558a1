"""Run folders of MInTRL as training would leave them, from rollouts in the world of letters: no model is asked."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.interventions.review_world import RIGHT, make_tools

from midcourse.engines.scripted import ScriptedEngine
from midcourse.environments.base import Evidence, Task
from midcourse.interventions.judge import JudgeConfig
from midcourse.methods.mintrl import MInTRLConfig
from midcourse.recording.metrics import group_metrics
from midcourse.recording.writer import RecordingConfig, RunWriter
from midcourse.types import Group, Trajectory

REVIEWED, PLAIN = 2, 1
"""Updates: in the first the policy slips everywhere, in the second nowhere, the third is GRPO's."""
WORDS = {"quote": "Xd", "reason": "<b>the letter</b> after `ab` is c"}
COST = {
    "rollout/prompt_tokens/judge": 90.0,
    "rollout/tokens/judge": 9.0,
    "time/rollout/judge": 6.0,
    "time/rollout/policy": 2.0,
    "time/rollout": 4.0,
    "time/update": 1.0,
}


def slips(written: str) -> str:
    """What the policy writes in the first update: wrong from the third letter, right again behind a correction."""
    plan = RIGHT + ";" if written.startswith("abc") else "abXdefgh;"
    return plan[len(written) :]


def writes_rightly(written: str) -> str:
    """What it writes later."""
    return f"{RIGHT};"[len(written) :]


def write_reviewed_run(folder: Path, *, name: str = "mintrl", seed: int = 0) -> Path:
    """Write a run of two tasks an update, two members alone and two under review, and return its folder."""
    method = MInTRLConfig(
        on_policy_rollouts=2,
        semi_on_policy_rollouts=2,
        chunk_tokens=4,
        max_intervention_tokens=2,
        intervention_updates=REVIEWED,
        judge=JudgeConfig(played_by="scripted"),
    ).build()
    config = f'seed = {seed}\n[method]\nname = "{name}"\n'
    with RunWriter(folder, RecordingConfig(tensorboard=False), resolved_config=config) as writer:
        for update in range(1, REVIEWED + PLAIN + 1):
            groups = [collect(method, task, slips if update == 1 else writes_rightly, update) for task in "ab"]
            silent = sum(len({*group.rewards}) == 1 for group in groups)
            metrics = {**group_metrics(groups), **method.statistics(groups), **(COST if update <= REVIEWED else {})}
            writer.write_groups(update, groups)
            writer.write_metrics(update, {**metrics, "objective/groups_without_signal": float(silent)})
    return folder


def collect(method, task_id: str, say: Callable[[str], str], update: int) -> Group:
    """Return a group; the judge's words are put in, since a script has none."""
    engine = ScriptedEngine(
        lambda prompt_ids, sampling: [*map(ord, say("".join(map(chr, prompt_ids)).rpartition("]")[2]))], logprobs=-0.5
    )
    task = Task(task_id=task_id, split="train", query="spell", evidence=Evidence(text=RIGHT, private_values=("gh",)))
    group = asyncio.run(method.collect(task, make_tools(engine), seed=5, update=update))
    members = [replace(member, trajectory=with_words(member.trajectory)) for member in group.members]
    return replace(group, members=tuple(members))


def with_words(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory with a quote and a reason in every review that revised."""
    turns = [
        replace(
            turn, reviews=tuple(review if review.cut is None else replace(review, **WORDS) for review in turn.reviews)
        )
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=tuple(turns))


def letters(token_ids) -> str:
    """Read tokens."""
    return "".join(map(chr, token_ids))
