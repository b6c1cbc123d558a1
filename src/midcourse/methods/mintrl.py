"""MInTRL: sparse corrections while the policy writes, then advantage regression (papers: "MInTRL").

For the first updates a group holds on-policy members, which make the baseline, and semi-on-policy ones, whose chunks
are reviewed by a judge and locally corrected (`interventions/review.py`). Both train, by `objectives/regression.py`.
Then GRPO.

Differs from the paper: the objective's form is ours (the text gives none); a group in which all rewards are equal, or
whose baseline nobody was scored for, does not train; moments of the optimizer start anew when GRPO begins; a quote
that is not found, an unreadable verdict and a judge that does not answer keep the chunk.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from midcourse.advantages.baseline import baseline_advantages
from midcourse.advantages.group import group_advantages
from midcourse.engines.base import Feature
from midcourse.environments.base import Task
from midcourse.interventions.judge import JudgeConfig
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.interventions.model_judges import cast_judge
from midcourse.interventions.review import ChunkWriter, ReviewConfig
from midcourse.methods.base import METHODS, RolloutTools
from midcourse.methods.grpo import group_id, roll_out, roll_out_members
from midcourse.methods.mintrl_statistics import intervention_fraction, mintrl_statistics
from midcourse.objectives.base import Objective
from midcourse.objectives.clipped import ClippedConfig, ClippedObjective
from midcourse.objectives.regression import RegressionConfig, RegressionObjective
from midcourse.rollout.episode import RolloutKey
from midcourse.types import Group, Member, Origin

logger = logging.getLogger(__name__)

INTERVENTION, PLAIN = "intervention", "plain"
LARGEST_BONUS = 0.5
"""Advantage units: a bonus of the const anchor over this is warned of, as it outweighs rewards of 0 and 1."""


@METHODS.register("mintrl")
class MInTRLConfig(ReviewConfig):
    """MInTRL: rollouts reviewed in chunks and locally corrected, trained on by advantage regression, then GRPO."""

    name: Literal["mintrl"] = "mintrl"
    """The method."""
    on_policy_rollouts: int = Field(default=8, ge=1)
    """Members that the policy writes alone; their mean reward is the baseline."""
    semi_on_policy_rollouts: int = Field(default=8, ge=0)
    """Members under review. Without any, or with max_reviews 0, all members are on-policy: the paper's control."""
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    """Who reviews and corrects."""
    intervention_updates: int = Field(default=200, ge=0)
    """Updates with interventions and regression; GRPO follows. 0 is GRPO."""
    stop_below_fraction: float = Field(default=0.0, ge=0, le=1)
    """GRPO begins earlier once an update's intervention tokens are a smaller part of semi-on-policy responses. Ours."""
    regression: RegressionConfig = Field(default_factory=RegressionConfig)
    """The objective of updates with interventions."""
    std_ddof: Literal[0, 1] = 0
    """GRPO's: 0 divides the squared deviations by the group's size, 1 by one less."""
    objective: ClippedConfig = Field(default_factory=ClippedConfig)
    """GRPO's clip, aggregation and KL."""

    @property
    def group_size(self) -> int:
        """Rollouts of one task that are compared."""
        return self.on_policy_rollouts + self.semi_on_policy_rollouts

    @property
    def needs(self) -> frozenset[Feature]:
        """Corrections are scored."""
        return frozenset({Feature.PROMPT_SCORES})

    def build(self) -> "MInTRL":
        """Return the method."""
        return MInTRL(self)


class MInTRL:
    """Semi-on-policy rollouts and regression first, GRPO afterwards."""

    def __init__(self, config: MInTRLConfig) -> None:
        self.config = config
        self.objective = ClippedObjective(config.objective)
        self._objectives: Mapping[str, Objective] = {
            INTERVENTION: RegressionObjective(config.regression),
            PLAIN: self.objective,
        }
        self._is_stopped = False

    async def collect(self, task: Task, tools: RolloutTools, *, seed: int, update: int) -> Group:
        """Return the on-policy members, then the semi-on-policy ones, all rolled out together.

        Raises:
            ConfigError: the judge is to be played by a model, a server or a script that this run does not have.
        """
        config, ledger, phase = self.config, CostLedger(), self.phase(update)
        key = RolloutKey(seed=seed, update=update, task_id=task.task_id, attempt=0)
        if phase == INTERVENTION and config.semi_on_policy_rollouts and config.max_reviews:
            members = await self._semi_on_policy_members(task, tools, key=key, ledger=ledger)
        else:
            members = await roll_out_members(task, tools, key=key, num_rollouts=config.group_size, ledger=ledger)
        return Group(
            group_id=group_id(key), task_id=task.task_id, members=tuple(members), cost=ledger.cost(), phase=phase
        )

    async def _semi_on_policy_members(
        self, task: Task, tools: RolloutTools, *, key: RolloutKey, ledger: CostLedger
    ) -> list[Member]:
        config = self.config
        judge = cast_judge(tools, config=config.judge, ledger=ledger)

        def metered(purpose: str) -> MeteredEngine:
            return MeteredEngine(tools.engine, purpose=purpose, ledger=ledger)

        scorer = metered("intervention_score")
        alone = ChunkWriter(tools, config=config, engine=metered("policy"), scorer=scorer)
        reviewed = ChunkWriter(tools, config=config, engine=metered("intervened_policy"), scorer=scorer, judge=judge)
        unaided, semi = await asyncio.gather(
            roll_out(
                task,
                tools,
                key=key,
                attempts=range(config.on_policy_rollouts),
                ledger=ledger,
                turn_writer=alone,
            ),
            roll_out(
                task,
                tools,
                key=key,
                attempts=range(config.on_policy_rollouts, config.group_size),
                ledger=ledger,
                turn_writer=reviewed,
            ),
        )
        return [
            *(Member(trajectory=trajectory) for trajectory in unaided),
            *(Member(trajectory=trajectory, origin=Origin.SEMI_ON_POLICY) for trajectory in semi),
        ]

    def advantages(self, group: Group) -> Sequence[float | None]:
        """Return [G] r - b, b the mean reward of on-policy members; in groups of GRPO's part its own advantages."""
        if group.phase == PLAIN:
            return group_advantages(group.rewards, std_ddof=self.config.std_ddof)
        in_baseline = [member.origin is not Origin.SEMI_ON_POLICY for member in group.members]
        return baseline_advantages(group.rewards, in_baseline=in_baseline)

    def phase(self, update: int) -> str:
        """Return the part of the schedule that an update belongs to; updates count from 1, 0 is before the first."""
        is_early = 0 < self.config.intervention_updates >= update
        return INTERVENTION if is_early and not self._is_stopped else PLAIN

    def objective_in(self, phase: str) -> Objective:
        """Return the loss of one part of the schedule."""
        return self._objectives[phase]

    def finish_update(self, groups: Sequence[Group]) -> None:
        """Stop interventions for good if too few tokens of semi-on-policy members came from them."""
        semi = [m.trajectory for g in groups for m in g.members if m.origin is Origin.SEMI_ON_POLICY]
        fraction = intervention_fraction(semi)
        if fraction is not None and fraction < self.config.stop_below_fraction:
            self._is_stopped = True

    def state(self) -> Mapping[str, Any]:
        """Return what a resumed run must know besides the number of updates done."""
        return {"is_stopped": self._is_stopped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""
        self._is_stopped = bool(state["is_stopped"])

    def statistics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return what `MInTRLStatistics` counts, under intervention/; nothing where nothing was under review."""
        regression = self.config.regression
        found = mintrl_statistics(
            groups,
            advantages=[self.advantages(group) for group in groups],
            beta=regression.beta,
            kappa=regression.kappa if regression.anchor == "const" else None,
        )
        if found.anchor_bonus_max is not None and found.anchor_bonus_max > LARGEST_BONUS:
            logger.warning(
                "beta * S of the const anchor is up to %.2f advantage units: more than rewards can make up for; lower "
                "method.regression.beta to at most %.2g",
                found.anchor_bonus_max,
                0.25 * regression.beta / found.anchor_bonus_max,
            )
        return found.metrics()
