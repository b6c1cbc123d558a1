"""Run folders as training would leave them, from hand-built groups: the policy learns, interventions thin out."""

import random
from pathlib import Path

from midcourse.environments.base import Evidence, Task
from midcourse.evaluation.evaluate import summarize
from midcourse.recording.metrics import group_metrics
from midcourse.recording.writer import RecordingConfig, RunWriter
from midcourse.types import (
    AssistantTurn,
    Group,
    InterventionOutcome,
    InterventionRecord,
    Member,
    Origin,
    RolloutCost,
    TokenSource,
    ToolCall,
    Trajectory,
    Turn,
)

OUTCOMES = (
    [InterventionOutcome.VALID] * 6
    + [InterventionOutcome.ACCEPTED] * 4
    + [InterventionOutcome.VERIFIER_REJECTED] * 2
    + [InterventionOutcome.LEAK, InterventionOutcome.GATE_REJECTED, InterventionOutcome.CORRECTOR_UNREADABLE]
)


def make_trajectory(task_id: str, reward: float, num_turns: int, records: list[InterventionRecord] | None = None):
    """Two prompt tokens, then per turn two written tokens and one of the environment."""
    sources, turns = [TokenSource.PROMPT] * 2, []
    for index in range(num_turns):
        record = records[index] if records else None
        accepted = record is not None and record.outcome is InterventionOutcome.ACCEPTED
        start = len(sources)
        sources += [TokenSource.INTERVENTION if accepted else TokenSource.POLICY] * 2 + [TokenSource.ENVIRONMENT]
        message = AssistantTurn(tool_calls=(ToolCall("poi_search", {"query": "Azure <b>", "region": "Oslo"}),))
        turns.append(Turn(start=start, end=start + 2, message=message, intervention=record))
    trained = [source in (TokenSource.POLICY, TokenSource.INTERVENTION) for source in sources]
    return Trajectory(
        task_id=task_id,
        token_ids=tuple(range(len(sources))),
        sources=tuple(sources),
        behavior_logprobs=tuple(-0.5 if flag else None for flag in trained),
        policy_versions=tuple(0 if flag else None for flag in trained),
        weights=(1.0,) * len(sources),
        calibration_logprobs=(None,) * len(sources),
        turns=tuple(turns),
        reward=reward,
    )


def make_group(draws: random.Random, task_id: str, skill: float, *, intervene: bool) -> Group:
    """Four rollouts; a group that failed as a whole gets two intervened ones, of which the first may rescue it."""
    rewards = [float(draws.random() < skill) for _ in range(4)]
    members = [Member(trajectory=make_trajectory(task_id, reward, draws.randint(2, 4))) for reward in rewards]
    extra = []
    if intervene and not any(rewards):
        for attempt in range(2):
            records = [make_record(draws) for _ in range(draws.randint(2, 5))]
            success = attempt == 0 and any(record.outcome is InterventionOutcome.ACCEPTED for record in records)
            trajectory = make_trajectory(task_id, float(success), len(records), records)
            if success:
                members[0] = Member(trajectory=trajectory, origin=Origin.INTERVENED, replaced=members[0].trajectory)
            else:
                extra.append(trajectory)
    tokens = {"policy": 40, **({"validator": 30, "corrector": 20} if intervene and not any(rewards) else {})}
    return Group(
        group_id=task_id, task_id=task_id, members=members, extra=extra, cost=RolloutCost(generated_tokens=tokens)
    )


def make_record(draws: random.Random) -> InterventionRecord:
    outcome = draws.choice(OUTCOMES)
    return InterventionRecord(
        outcome=outcome,
        draft_ids=(4, 5),
        corrected_ids=(4, 6),
        error_types=("wrong_place",),
        diagnosis="<script>the region is missing</script>",
        perplexity=1.0 + 3 * draws.random() if outcome is InterventionOutcome.ACCEPTED else None,
    )


def make_task(index: int, split: str) -> Task:
    return Task(
        task_id=f"{split}-{index}",
        split=split,
        query="visit Azure",
        tags=("hard" if index % 2 else "easy",),
        evidence=Evidence(text="", private_values=()),
    )


def write_run(folder: Path, *, method: str = "rti", seed: int = 0, updates: int = 6, groups: int = 4) -> Path:
    """Write a run and return its folder."""
    draws = random.Random(f"{method}-{seed}")
    gain = 0.9 if method == "rti" else 0.5
    config = f'seed = {seed}\noutput = "{folder.name}"\n[method]\nname = "{method}"\n'
    with RunWriter(folder, RecordingConfig(tensorboard=False), resolved_config=config) as writer:
        for update in range(updates + 1):
            skill = gain * update / updates
            if update % 2 == 0:
                done = [
                    (task, make_trajectory(task.task_id, float(draws.random() < chance), draws.randint(2, 4)))
                    for split in ("test", "ood")
                    for task in (make_task(index, split) for index in range(12))
                    for chance in [skill * (0.6 if "hard" in task.tags else 1.0)]
                    for _ in range(4)
                ]
                result = summarize(done, attempts=4, temperature=0.8, seconds=1.5, seed=0, bootstrap_resamples=100)
                writer.write_evaluation(update, result.to_dict())
            if update:
                collected = [
                    make_group(draws, f"t{update}-{index}", 0.4 * skill, intervene=method == "rti")
                    for index in range(groups)
                ]
                writer.write_groups(update, collected)
                writer.write_metrics(update, {**group_metrics(collected), "time/update": 2.0})
    return folder
