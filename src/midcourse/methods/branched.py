"""What methods that branch by a rule of their own have in common: a pool that grows round by round, and its numbers."""

import asyncio
import math
from collections.abc import Sequence

from midcourse.branching.anchors import anchor_entropy
from midcourse.branching.lineage import Lineage
from midcourse.branching.rivals.branches import Boundary, Branch, DrawKey, boundaries_at
from midcourse.environments.base import Task
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.methods.base import RolloutTools
from midcourse.methods.grpo import group_id, is_success
from midcourse.rollout.branches import Continuing, Place, RolloutPool
from midcourse.rollout.episode import RolloutKey
from midcourse.types import BranchRecord, Group, Origin, Trajectory


class BranchedRollouts:
    """The rollouts of one task: some from the start, others from turns of those."""

    def __init__(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> None:
        key = RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=0)
        self.draw_key: DrawKey = (seed, update, task.task_id)
        self.ledger = CostLedger()
        self.pool = RolloutPool(
            task=task, chat=tools.chat, environment=tools.environment, config=tools.rollout, key=key
        )
        self._tools = tools

    async def begin(self, count: int, *, temperature_factor: float = 1.0) -> None:
        """Draw `count` rollouts from the task's start."""
        if count > 0:
            drawn = await self.pool.draw(Place(), count, self._continuing("policy", temperature_factor))
            self.pool.keep(drawn, origin=Origin.ROOT)

    async def grow(self, branches: Sequence[Branch], *, rule: str) -> None:
        """Draw the branches of one round side by side and keep them, in the order given."""
        places = [Place(parent=branch.rollout, turn=branch.turn) for branch in branches]
        entropies = self.entropies
        drawn = await asyncio.gather(
            *(
                self.pool.draw(place, branch.continuations, self._continuing("branch", branch.temperature_factor))
                for place, branch in zip(places, branches, strict=True)
            )
        )
        for branch, continuations in zip(branches, drawn, strict=True):
            self.pool.branches.append(
                BranchRecord(
                    parent=branch.rollout,
                    turn=branch.turn,
                    rollouts=self.pool.keep(continuations),
                    rule=rule,
                    temperature=self._tools.rollout.temperature * branch.temperature_factor,
                    entropy=entropies[branch.rollout][branch.turn],
                )
            )

    @property
    def entropies(self) -> list[list[float | None]]:
        """[G] of each turn how uncertain it began; None behind a turn that nothing answered, and where not known."""
        size = self._tools.vocabulary_size
        return [
            [
                anchor_entropy(turn.entropies, size)
                if turn.entropies and (index == 0 or trajectory.turns[index - 1].results)
                else None
                for index, turn in enumerate(trajectory.turns)
            ]
            for trajectory in (member.trajectory for member in self.pool.members)
        ]

    def boundaries(self, turn: int) -> list[Boundary]:
        """Return the places before turn `turn` at which a rule may branch."""
        return boundaries_at(turn, self.entropies, self.pool.own_turns)

    @property
    def last_turn(self) -> int:
        """Turns of the longest rollout, less one; grows while the pool does."""
        return max((len(member.trajectory.turns) for member in self.pool.members), default=0) - 1

    def group(self) -> Group:
        """Return what has grown."""
        return Group(
            group_id=group_id(self.pool.key),
            task_id=self.pool.task.task_id,
            members=tuple(self.pool.members),
            cost=self.ledger.cost(),
            branches=tuple(self.pool.branches),
        )

    def _continuing(self, purpose: str, temperature_factor: float) -> Continuing:
        engine = MeteredEngine(self._tools.engine, purpose=purpose, ledger=self.ledger)
        return Continuing(engine=engine, temperature_factor=temperature_factor)


def lineage_of(group: Group) -> Lineage:
    """Return which member of a group wrote which turn."""
    parents: list[int | None] = [None] * len(group.members)
    forks = [0] * len(group.members)
    for record in group.branches:
        for member in record.rollouts if record.is_kept else ():
            parents[member], forks[member] = record.parent, record.turn
    return Lineage(parents=tuple(parents), forks=tuple(forks))


def branch_statistics(groups: Sequence[Group]) -> dict[str, float]:
    """Return how much was branched where, and how it ended, under intervention/. Means over nothing are left out."""
    records = [record for group in groups for record in group.branches]
    used = [len(group.members) + len(group.extra) for group in groups]
    found = {
        "branches": len(records),
        "branch_rollouts": sum(len(record.rollouts) for record in records),
        "groups_unbranched": sum(not group.branches for group in groups),
        "rollouts_a_task": mean(used),
        "anchor_turn": mean([record.turn for record in records]),
        "success_initial": _success(groups, Origin.ROOT),
        "success_branches": _success(groups, Origin.BRANCH),
    }
    return {f"intervention/{name}": float(value) for name, value in found.items() if value is not None}


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def _success(groups: Sequence[Group], origin: Origin) -> float | None:
    chosen: list[Trajectory] = [m.trajectory for g in groups for m in g.members if m.origin is origin]
    return mean([is_success(trajectory) for trajectory in chosen if trajectory.reward is not None])
