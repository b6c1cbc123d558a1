"""What the rivals of RAIL have in common: the pool that grows, its numbers, and what holds for each of them."""

import asyncio
from dataclasses import replace

import pytest
import torch
from tests.interventions.scripted_world import TASK
from tests.methods.rival_world import TASKS, begun, collect_all, engine_of, world_seed
from tests.rollout.branch_world import KEY, SeededWorld, make_tools
from tests.training.letter_run import letter_policy

from midcourse.branching.rivals.branches import Boundary, Branch
from midcourse.methods.aepo import AEPOConfig
from midcourse.methods.arpo import ARPOConfig
from midcourse.methods.base import LearningMethod
from midcourse.methods.branched import BranchedRollouts, branch_statistics, lineage_of, mean
from midcourse.methods.tampo import TAMPOConfig
from midcourse.methods.tree_grpo import TreeGRPOConfig
from midcourse.methods.vip import VIPConfig
from midcourse.training.config import TrainingConfig
from midcourse.training.update import Updater
from midcourse.types import Group, Member, Origin

# the pool


def grown(*rounds, starts=2, world=None, temperature=0.8, **engine_settings):
    """The rollouts after some from the start and rounds of branches."""
    engine = engine_of(**{"turns": lambda attempt: 3, **engine_settings})
    tools = make_tools(engine, world or SeededWorld(), temperature=temperature)
    rollouts = BranchedRollouts(TASK, tools, seed=KEY.seed, update=KEY.update)

    async def run():
        await rollouts.begin(starts)
        for branches in rounds:
            await rollouts.grow([Branch(**branch) for branch in branches], rule="told")

    asyncio.run(run())
    return rollouts, engine


def test_branches_of_a_round_are_kept_in_the_order_in_which_they_were_asked_for():
    rollouts, _ = grown(
        [{"rollout": 1, "turn": 2, "continuations": 2}, {"rollout": 0, "turn": 1}],
        [{"rollout": 4, "turn": 2, "temperature_factor": 1.5}],
        entropies={(1, 2): 0.5, (4, 2): 0.75},
    )
    group = rollouts.group()
    assert [(record.parent, record.turn, record.rollouts) for record in group.branches] == [
        *((1, 2, (2, 3)), (0, 1, (4,)), (4, 2, (5,))),
    ]
    assert [record.entropy for record in group.branches] == pytest.approx([0.5, 0.25, 0.75], abs=1e-4)
    assert [record.temperature for record in group.branches] == pytest.approx([0.8, 0.8, 1.2])
    assert [turn.message.content for turn in group.members[5].trajectory.turns] == ["0,0", "4,1", "5,2"]
    assert lineage_of(group) == rollouts.pool.lineage
    assert (rollouts.last_turn, rollouts.pool.used) == (2, 6)
    assert (group.group_id, group.task_id) == ("2:t1", "t1")


def test_draws_at_another_temperature_are_reported_at_the_runs():
    rollouts, engine = grown([{"rollout": 0, "turn": 2, "temperature_factor": 1.5}])
    asked = [(request.sampling.temperature, request.sampling.report_temperature) for request in engine.requests]
    assert asked == [(0.8, None)] * 6 + [(pytest.approx(1.2), 0.8)]
    assert rollouts.pool.members[2].trajectory.temperature == 0.8


def test_what_branches_cost_is_counted_apart():
    rollouts, _ = grown([{"rollout": 0, "turn": 1}])
    # Six tokens a turn: two rollouts of three turns, and a branch of two.
    assert rollouts.group().cost.generated_tokens == {"policy": 36, "branch": 12}


def test_a_turn_behind_one_that_nothing_answered_has_no_entropy_and_is_no_boundary():
    rollouts, _ = grown(silent={(0, 0), (1, 1)}, entropies={(0, 2): 0.5})
    assert rollouts.entropies[0] == [pytest.approx(0.25, abs=1e-4), None, pytest.approx(0.5, abs=1e-4)]
    assert [round(entropy or -1, 2) for entropy in rollouts.entropies[1]] == [0.25, 0.25, -1]
    assert [(boundary.rollout, boundary.turn) for boundary in rollouts.boundaries(1)] == [(1, 1)]
    (only,) = rollouts.boundaries(2)
    assert isinstance(only, Boundary)
    assert only.entropy_change == pytest.approx(0.25, abs=1e-4)


def test_a_boundary_is_its_parents_and_each_is_seen_once():
    rollouts, _ = grown([{"rollout": 0, "turn": 1}], [{"rollout": 2, "turn": 2}])
    assert [boundary.rollout for boundary in rollouts.boundaries(1)] == [0, 1]
    assert [boundary.rollout for boundary in rollouts.boundaries(2)] == [0, 1, 2]


def test_what_failed_has_the_turns_that_it_wrote():
    rollouts, _ = grown(starts=3, fails={(0, 0), (1, 2)})
    assert [len(turns) for turns in rollouts.entropies] == [0, 2, 3]
    assert [boundary.rollout for boundary in rollouts.boundaries(1)] == [1, 2]
    assert [boundary.rollout for boundary in rollouts.boundaries(2)] == [2]
    nothing, _ = grown(fails={(0, 0), (1, 0)})
    assert (nothing.last_turn, nothing.boundaries(1)) == (-1, [])


def test_no_rollouts_are_none():
    rollouts, engine = grown(starts=0)
    assert (rollouts.group().members, engine.requests) == ((), [])
    assert rollouts.last_turn == -1


def test_the_lineage_of_rollouts_that_were_not_kept_or_began_at_the_start_is_no_ones():
    rollouts, _ = grown([{"rollout": 0, "turn": 1}])
    group = rollouts.group()
    (record,) = group.branches
    lost = replace(group, branches=(replace(record, is_kept=False),))
    assert lineage_of(lost).parents == (None, None, None)
    start = replace(group, branches=(replace(record, parent=None, turn=0),))
    assert (lineage_of(start).parents, lineage_of(start).forks) == ((None,) * 3, (0,) * 3)


def test_a_continuation_of_a_rollouts_start_plays_in_its_world():
    world = SeededWorld()
    rollouts, _ = grown([{"rollout": 1, "turn": 0}], world=world)
    assert world.episodes[2].seed == world_seed(1)
    assert lineage_of(rollouts.group()).root(2) == 1


# statistics


def test_statistics_count_what_was_branched_and_how_it_ended():
    rollouts, _ = grown(
        [{"rollout": 0, "turn": 1, "continuations": 2}, {"rollout": 1, "turn": 2}],
        wins={0, 2, 3},
        fails={(4, 2)},
    )
    plain, _ = grown(wins=set())
    found = branch_statistics([rollouts.group(), plain.group()])
    assert found == pytest.approx(
        {
            "intervention/branches": 2.0,
            "intervention/branch_rollouts": 3.0,
            "intervention/groups_unbranched": 1.0,
            "intervention/rollouts_a_task": 3.5,
            "intervention/anchor_turn": 1.5,
            "intervention/success_initial": 0.25,
            "intervention/success_branches": 1.0,  # of the two that were scored
        }
    )
    assert branch_statistics([]) == {
        "intervention/branches": 0.0,
        "intervention/branch_rollouts": 0.0,
        "intervention/groups_unbranched": 0.0,
    }
    assert mean([]) is None


# what holds for each

ENTROPIES = {(attempt, turn): 0.25 + (7 * attempt + 3 * turn) % 11 / 20 for attempt in range(20) for turn in range(3)}
WINS = {1, 2, 5}
RIVALS = {
    "arpo": ARPOConfig(rollout_budget=7, initial_rollouts=4),
    "aepo": AEPOConfig(rollout_budget=7),
    "tree_grpo": TreeGRPOConfig(),
    "vip": VIPConfig(rollouts_per_task=7, min_rollouts=3),
    "tampo": TAMPOConfig(group_size=7, temperature_factors=(0.7, 1.3)),
}
each_rival = pytest.mark.parametrize("name", sorted(RIVALS))


def built(name):
    method = RIVALS[name].build()
    return begun(method) if isinstance(method, LearningMethod) else method


def groups_of(name, **settings):
    method = built(name)
    engine = engine_of(**{"turns": lambda attempt: 3, "entropies": ENTROPIES, "wins": WINS, **settings})
    return method, collect_all(method, engine, TASKS)


@each_rival
def test_a_key_draws_its_groups_again(name):
    _, groups = groups_of(name)
    _, again = groups_of(name)
    assert [(group.members, group.branches, group.measured) for group in groups] == [
        (group.members, group.branches, group.measured) for group in again
    ]
    assert {len(group.members) for group in groups} == {RIVALS[name].group_size}


@each_rival
def test_advantages_go_with_their_members_and_failures_have_none(name):
    method = built(name)
    trajectories = [member.trajectory for member in groups_of(name)[1][0].members[:3]]
    failed = groups_of(name, fails={(0, 0)})[1][0].members[0].trajectory
    values = [(0, 1.0), (1, 0.0), (None, None), (2, 0.5), (1, 1.0)]
    # All began at the start: there are no branches.
    members = [
        Member(trajectory=failed if index is None else replace(trajectories[index], reward=reward))
        for index, reward in values
    ]

    def advantages(order):
        chosen = tuple(members[index] for index in order)
        return method.advantages(Group(group_id="g", task_id=TASKS[0].task_id, members=chosen))

    found = advantages(range(5))
    assert found[2] is None
    assert found[0] == found[4] > found[3] > found[1]
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        assert advantages(order) == [found[index] for index in order]


@each_rival
@pytest.mark.parametrize("wins", [set(), set(range(40))])
def test_equal_rewards_give_exactly_nothing(name, wins):
    method, groups = groups_of(name, wins=wins)
    for group in groups:
        assert method.advantages(group) == [0.0] * len(group.members)


@each_rival
def test_micro_batches_make_the_gradient_of_one_batch_where_groups_differ_in_size(name):
    method, groups = groups_of(name)
    smaller = [member for member in groups[1].members if member.origin is Origin.ROOT][:3]
    groups = [groups[0], replace(groups[1], members=tuple(smaller), branches=())]
    advantages = [method.advantages(group) for group in groups]
    assert len({len(values) for values in advantages}) == 2
    assert all(any(values) for values in advantages)

    def gradient(micro_batch_tokens):
        policy = letter_policy()
        policy.model.double()
        settings = {"updates": 1, "learning_rate": 1.0, "max_grad_norm": 1e9, "weight_decay": 0.0}
        config = TrainingConfig(micro_batch_tokens=micro_batch_tokens, **settings)
        updater = Updater(policy, method.objective, config)
        updater.optimizer = torch.optim.SGD(policy.model.parameters(), lr=1.0)
        before = [parameter.detach().clone() for parameter in policy.model.parameters()]
        updater.update(groups, advantages)
        return [old - new for old, new in zip(before, policy.model.parameters(), strict=True)]

    one, many = gradient(100_000), gradient(60)
    assert any(part.abs().max() > 1e-6 for part in one)
    for first, second in zip(one, many, strict=True):
        assert torch.allclose(first, second, rtol=0, atol=1e-12)
