"""When the controller takes over from the warm-up rule (RAIL, B.3.5).

Fixed: after a part of all updates. Dynamic: once the sign of its predictions, made before the outcome was seen, has
agreed with the sign of the gains more often than chance for long enough; or at a cap. Either way for good.

The paper's: a_t = [sign(predicted) = sign(gained)], the rolling mean over W = 60 anchors, the bar
0.5 + 2 sqrt(0.25 / W), P = 60 anchors in a row over it, n_min = 50, T_cap = 200. Ours: 0 counts as not positive, an
anchor counts by its first trial, the rolling mean is over what there is before W, the row of P begins at anchor n_min
at the earliest (counted from the first anchor, n_min < P would never matter), and the fixed part is 0.2.

The bar is chance, not the majority: where most gains have one sign, a predictor that always says it is promoted. Report
the majority's agreement and the balanced accuracy (`skill.py`) beside it.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Literal, Self

import numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.errors import CheckpointError, ConfigError

REASONS = ("", "fixed", "skill", "cap")


class PromotionConfig(BaseModel):
    """When the shadow phase ends."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rule: Literal["fixed", "dynamic"] = "fixed"
    """fixed: after a part of the updates. dynamic: once predictions agree with outcomes in sign."""
    shadow_fraction: float = Field(default=0.2, ge=0, le=1)
    """Part of all updates that is shadow under the fixed rule, at least one update. Ours; the paper's ablations are 1/3
    and 1/2. 0: none."""
    window: int = Field(default=60, ge=1)
    """W: anchors of the rolling sign agreement; at least 5 under the dynamic rule. Paper: 60."""
    patience: int = Field(default=60, ge=1)
    """P: anchors in a row over the bar. Paper: 60."""
    min_anchors: int = Field(default=50, ge=1)
    """n_min: anchors before any counts for the row. Paper: 50."""
    cap_updates: int = Field(default=200, ge=0)
    """T_cap: updates after which the dynamic rule promotes anyway. Paper: 200."""

    @model_validator(mode="after")
    def _the_bar_can_be_passed(self) -> Self:
        if self.rule == "dynamic" and promotion_bar(self.window) >= 1:
            raise ConfigError(
                f"window = {self.window}: no agreement can be over the bar of {promotion_bar(self.window):.2f}; "
                "expected at least 5 under the dynamic rule"
            )
        return self


def agrees(predicted: float, gained: float) -> bool:
    """Return a_t: whether both are positive, or neither."""
    return (predicted > 0) == (gained > 0)


def promotion_bar(window: int) -> float:
    """Return two standard deviations over chance, for `window` fair coins: 0.629 for 60."""
    return 0.5 + 2.0 * math.sqrt(0.25 / window)


class Promotion:
    """Shadow or live. Updates count from 1.

    Args:
        config: the rule.
        total_updates: of the run, for the fixed rule.
    """

    def __init__(self, config: PromotionConfig, *, total_updates: int) -> None:
        self.config = config
        # Of a short run at least one update is shadow: a controller that has seen nothing would not branch.
        self._shadow_updates = max(round(config.shadow_fraction * total_updates), 1 if config.shadow_fraction else 0)
        self._bar = promotion_bar(config.window)
        self._recent: deque[bool] = deque(maxlen=config.window)
        self._anchors_seen = 0
        self._row = 0
        self._promoted_at: int | None = None
        self._reason = ""

    @property
    def rolling_agreement(self) -> float | None:
        """Sign agreement over the last W anchors, or over as many as there were; None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    @property
    def promoted_at(self) -> int | None:
        """The first live update; None while none has begun."""
        return self._promoted_at

    @property
    def reason(self) -> str:
        """What ended the shadow phase: fixed, skill or cap; empty while it lasts."""
        return self._reason

    def observe(self, predicted: float, gained: float) -> None:
        """Count one anchor: the prediction for its first trial, and what the trial brought."""
        self._recent.append(agrees(predicted, gained))
        self._anchors_seen += 1
        counts = self._anchors_seen >= self.config.min_anchors
        self._row = self._row + 1 if counts and sum(self._recent) / len(self._recent) > self._bar else 0
        if self._row >= self.config.patience and self.config.rule == "dynamic" and not self._reason:
            self._reason = "skill"

    def begin_update(self, update: int) -> bool:
        """Return whether the controller decides in this update, by the anchors of earlier ones. Once live, always."""
        if self._promoted_at is None:
            if self.config.rule == "fixed" and update > self._shadow_updates:
                self._reason = "fixed"
            elif self.config.rule == "dynamic" and not self._reason and update > self.config.cap_updates:
                self._reason = "cap"
            if self._reason:
                self._promoted_at = update
        return self._promoted_at is not None

    def state_dict(self) -> dict[str, NDArray[numpy.int64]]:
        """Return everything that a resumed run must know."""
        return {
            "recent": numpy.array(self._recent, dtype=numpy.int64),
            "scalars": numpy.array(
                [
                    self._anchors_seen,
                    self._row,
                    -1 if self._promoted_at is None else self._promoted_at,
                    REASONS.index(self._reason),
                    self._shadow_updates,  # of the run as it was begun: one that is made longer keeps them
                ],
                dtype=numpy.int64,
            ),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[numpy.int64]]) -> None:
        """Take what `state_dict` gave.

        Raises:
            CheckpointError: it is of another form.
        """
        try:
            recent = [bool(value) for value in state["recent"]]
            anchors_seen, row, promoted_at, reason, shadow_updates = (int(value) for value in state["scalars"])
            name = REASONS[reason]
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise CheckpointError(f"the promotion's state has another form: {error}") from error
        self._recent = deque(recent, maxlen=self.config.window)
        self._anchors_seen, self._row, self._reason = anchors_seen, row, name
        self._promoted_at = None if promoted_at < 0 else promoted_at
        self._shadow_updates = shadow_updates
