"""What an update counts, micro-batch by micro-batch, and the metrics that come of it. Letters: B rows, T tokens."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from midcourse.training.batch import Row
from midcourse.training.row_tensors import engine_logprobs_BT, pad_rows


@dataclass(slots=True)
class Tally:
    """Sums over one update, of one process or of all."""

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    maxima: dict[str, float] = field(default_factory=dict)
    objective_tokens: int = 0  # trained tokens seen by the objective, every epoch counted
    loss: float = 0.0
    grad_norms: list[float] = field(default_factory=list)
    optimizer_steps: int = 0
    nonfinite_steps: int = 0
    caps_importance: bool = False

    def add_maximum(self, name: str, value: float) -> None:
        """Keep the value if it is the largest under its name."""
        self.maxima[name] = max(value, self.maxima.get(name, -math.inf))

    def add_rollouts(self, rows: Sequence[Row], old_BT: Tensor, entropies_BT: Tensor, cap: float | None) -> None:
        """Add what is known of the rollout weights: entropies by writer, and how far the engine's numbers are off."""
        sampled_BT = pad_rows([row.sampled for row in rows], like=old_BT).bool()
        trained_BT = pad_rows([row.trained for row in rows], like=old_BT).bool()
        difference = (old_BT - engine_logprobs_BT(rows, like=old_BT))[sampled_BT].double()
        for source, chosen_BT in (("policy", sampled_BT), ("intervention", trained_BT & ~sampled_BT)):
            self.sums[f"tokens_{source}"] += int(chosen_BT.sum())
            self.sums[f"entropy_{source}"] += float(entropies_BT[chosen_BT].double().sum())
            self.sums[f"logprob_{source}"] += float(old_BT[chosen_BT].double().sum())
        if not len(difference):
            return
        self.sums["mismatch_absolute"] += float(difference.abs().sum())
        # k3 of KL(engine || trainer): the engine drew the tokens.
        self.sums["mismatch_kl"] += float((difference.expm1() - difference).sum())
        self.add_maximum("mismatch/max_abs_logprob", float(difference.abs().max()))
        if cap is not None:
            self.caps_importance = True
            self.sums["mismatch_capped"] += int((difference > math.log(cap)).sum())

    def joined(self, other: "Tally") -> "Tally":
        """Return the sums over the micro-batches of two processes. Steps and norms are the same on both."""
        sums, maxima = defaultdict(float, self.sums), dict(self.maxima)
        for name, value in other.sums.items():
            sums[name] += value
        both = replace(
            self,
            sums=sums,
            maxima=maxima,
            objective_tokens=self.objective_tokens + other.objective_tokens,
            loss=self.loss + other.loss,
            caps_importance=self.caps_importance or other.caps_importance,
        )
        for name, value in other.maxima.items():
            both.add_maximum(name, value)
        return both

    def averages(self) -> dict[str, float]:
        """Return the metrics of the update, by name."""
        metrics = dict(self.maxima)
        if self.objective_tokens:
            metrics["objective/loss"] = self.loss / max(self.optimizer_steps + self.nonfinite_steps, 1)
            metrics.update(
                {
                    name: value / self.objective_tokens
                    for name, value in self.sums.items()
                    if name.startswith("objective/")
                }
            )
        if self.grad_norms:
            metrics["objective/grad_norm"] = sum(self.grad_norms) / len(self.grad_norms)
        for source in ("policy", "intervention"):
            count = self.sums[f"tokens_{source}"]
            metrics[f"objective/tokens_{source}"] = float(count)
            if count:
                metrics[f"objective/entropy_{source}"] = self.sums[f"entropy_{source}"] / count
                metrics[f"objective/logprob_{source}"] = self.sums[f"logprob_{source}"] / count
        if num_sampled := self.sums["tokens_policy"]:
            metrics["mismatch/mean_abs_logprob"] = self.sums["mismatch_absolute"] / num_sampled
            metrics["mismatch/kl"] = self.sums["mismatch_kl"] / num_sampled
            if self.caps_importance:
                metrics["mismatch/capped_fraction"] = self.sums["mismatch_capped"] / num_sampled
        return metrics
