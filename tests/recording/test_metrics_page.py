"""docs/metrics.md names every metric, and none that is not there."""

import dataclasses
import random
import re
from pathlib import Path

import pytest
import torch
from tests.evaluation.reviewed_run import collect, slips
from tests.evaluation.synthetic_run import make_group

from midcourse.branching.actions import GRIDS
from midcourse.branching.skill import Skill
from midcourse.config import register_all
from midcourse.interventions.judge import JudgeConfig
from midcourse.methods.base import METHODS, ScheduledMethod
from midcourse.methods.mintrl import MInTRLConfig
from midcourse.methods.mintrl_statistics import MInTRLStatistics
from midcourse.methods.rail_statistics import rail_statistics
from midcourse.methods.rti_statistics import RTIStatistics
from midcourse.objectives.base import ObjectiveInputs
from midcourse.recording.metrics import group_metrics
from midcourse.runs import FAILURE_METRICS
from midcourse.types import BranchRecord, Group, InterventionOutcome, Member, Origin, ReviewOutcome

register_all()

ROOT = Path(__file__).parents[2]
CELLS = re.findall(r"^\| (`.*?) \| ", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
NAMES = [name for cell in CELLS for name in re.findall(r"`([^`]+)`", cell)]
PATTERNS = {name: re.compile(re.sub(r"<\w+>", "[a-z0-9_]+", name)) for name in NAMES}
LITERAL = re.compile(r'"((?:objective|mismatch|time|intervention)/[a-z_/]*[a-z])"')


def undocumented(metrics):
    return sorted(name for name in metrics if not any(pattern.fullmatch(name) for pattern in PATTERNS.values()))


def statistics_names():
    """The names that MInTRL's and RTI's statistics can have."""
    fields = [field.name for kind in (MInTRLStatistics, RTIStatistics) for field in dataclasses.fields(kind)]
    return [
        *(f"intervention/{name}" for name in fields if name != "outcomes"),
        *(f"intervention/review/{outcome.value}" for outcome in ReviewOutcome),
        *(f"intervention/outcome/{outcome.value}" for outcome in InterventionOutcome),
    ]


def branch_names():
    """The names that RAIL's statistics can have, each of them where something was branched both ways."""
    trajectory = make_group(random.Random(0), "b", 0.0, intervene=False).members[0].trajectory
    records = [
        BranchRecord(
            parent=0,
            turn=1,
            rollouts=(1 + index,),
            rule=rule,
            cell=index,
            entropy=0.1 * index,
            predicted=0.1 * index,
            gained=0.1 * index,
            chance=0.0,
        )
        for index, rule in enumerate(("warm_up", "controller", "exploration"))
    ]
    members = (Member(trajectory=trajectory), *(Member(trajectory=trajectory, origin=Origin.BRANCH) for _ in records))
    group = Group(group_id="b", task_id=trajectory.task_id, members=members, branches=records)
    learned = [f"intervention/controller/window_{field.name}" for field in dataclasses.fields(Skill)]
    return [*rail_statistics([group], names=GRIDS["3x3"].build().names), *learned]


def literals():
    """Names that stand in the source as they are."""
    files = [*(ROOT / "src/midcourse/methods").glob("*.py"), *(ROOT / "src/midcourse/training").glob("*.py")]
    return [name for file in files for name in LITERAL.findall(file.read_text(encoding="utf-8"))]


def test_what_groups_are_measured_by():
    method = MInTRLConfig(
        on_policy_rollouts=1, semi_on_policy_rollouts=1, chunk_tokens=4, judge=JudgeConfig(played_by="scripted")
    ).build()
    reviewed = collect(method, "a", slips, 1)
    rescued = [make_group(random.Random(seed), "b", 0.0, intervene=True) for seed in range(4)]
    metrics = {**group_metrics([reviewed, *rescued]), **method.statistics([reviewed])}
    assert {"reward/mean_before", "intervention/perplexity_accepted", "intervention/review/kept"} <= metrics.keys()
    # The trainer writes awaited seconds under time/.
    assert undocumented(name.replace("rollout/seconds/", "time/rollout/") for name in metrics) == []


def test_statistics_of_methods():
    assert undocumented(statistics_names()) == []


def test_statistics_of_branches():
    names = branch_names()
    assert {"intervention/gain_over_chance", "intervention/prediction/balanced_accuracy"} <= set(names)
    assert undocumented(names) == []


def test_names_in_the_source():
    found = literals()
    assert "objective/groups_without_signal" in found
    assert undocumented(found) == []


def test_what_a_training_warns_of():
    assert "intervention/review/judge_failed" in FAILURE_METRICS.values()
    assert undocumented(FAILURE_METRICS.values()) == []


@pytest.mark.parametrize("name", METHODS.names())
def test_objectives(name):
    method = METHODS[name]().build()
    objectives = [method.objective]
    if isinstance(method, ScheduledMethod):
        objectives += [method.objective_in(method.phase(update)) for update in (1, 10**9)]
    ones = torch.ones(1, 2)
    inputs = ObjectiveInputs(
        logprobs_BT=-ones,
        old_logprobs_BT=-ones,
        advantages_BT=ones,
        weights_BT=ones,
        coefficients_BT=ones,
        trained_BT=ones.bool(),
        reference_logprobs_BT=-ones,
        intervention_BT=ones.bool(),
        teacher_logprobs_BT=-ones,
    )
    outputs = [objective(inputs) for objective in objectives]
    names = {f"objective/{name}" for output in outputs for name in (*output.metrics, *output.maxima)}
    assert names
    assert undocumented(names) == []


def test_no_statistic_of_an_intervention_is_documented_that_is_not_there():
    known = [
        *statistics_names(),
        *branch_names(),
        *literals(),
        "intervention/perplexity_accepted",
        "intervention/perplexity_rejected",
    ]
    stale = [
        name
        for name, pattern in PATTERNS.items()
        if name.startswith("intervention/") and not any(map(pattern.fullmatch, known))
    ]
    assert stale == []
