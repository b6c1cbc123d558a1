"""One update: rows in, new weights and metrics out. Letters: B rows, T tokens.

pi_old is the trainer's own pass at the rollout weights, not the engine's number: a bias of 1e-3 a token would be 8
nats over 8,000 tokens. The engine's numbers serve the mismatch metrics and, if asked for, truncated importance
sampling.
"""

import copy
import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from midcourse.errors import TrainingError
from midcourse.objectives.base import Objective, ObjectiveInputs
from midcourse.objectives.reduction import row_coefficients
from midcourse.training.batch import MicroBatch, Row, build_batch, micro_batches, split_groups
from midcourse.training.config import TrainingConfig
from midcourse.training.policy import Policy, TokenLogprobs, token_logprobs
from midcourse.training.shared_prefix import attention_over_trees, tree_logprobs, why_not_shared
from midcourse.types import Group

logger = logging.getLogger(__name__)


def learning_rate_at(updates_taken: int, config: TrainingConfig) -> float:
    """Return the learning rate of the update that follows `updates_taken` updates with an optimizer step."""
    if updates_taken < config.warmup_updates:
        return config.learning_rate * (updates_taken + 1) / config.warmup_updates
    if config.schedule == "constant":
        return config.learning_rate
    span = max(config.updates - config.warmup_updates, 1)
    progress = min((updates_taken - config.warmup_updates) / span, 1.0)
    if config.schedule == "linear":
        return config.learning_rate * (1.0 - progress)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCounters:
    """What an updater knows besides tensors; part of a checkpoint."""

    updates_taken: int = 0  # updates with at least one optimizer step
    optimizer_steps: int = 0
    nonfinite_in_a_row: int = 0
    phase: str = ""  # of the method's schedule, in which the last update was made


@dataclass(slots=True)
class _Tally:
    """Sums over one update."""

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    maxima: dict[str, float] = field(default_factory=dict)
    objective_tokens: int = 0  # trained tokens seen by the objective, every epoch counted
    loss: float = 0.0
    grad_norms: list[float] = field(default_factory=list)
    optimizer_steps: int = 0
    nonfinite_steps: int = 0
    caps_importance: bool = False

    def add_maximum(self, name: str, value: float) -> None:
        self.maxima[name] = max(value, self.maxima.get(name, -math.inf))


class Updater:
    """Trains a policy in place. Owns the optimizer, the schedule and, for a KL term, a frozen copy of the policy.

    A method with a schedule says by `enter` which objective is next; the one given here has its KL term, if any has.

    Build it before a checkpoint is loaded: the reference is the policy as it was at the start of the run.
    """

    def __init__(self, policy: Policy, objective: Objective, config: TrainingConfig) -> None:
        self.policy = policy
        self.objective = objective
        self.config = config
        self.counters = UpdateCounters()
        self.optimizer = torch.optim.AdamW(
            policy.model.parameters(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
            foreach=False,
        )
        self.shares_prefixes = config.shared_prefix == "auto" and _can_share(policy.model)
        self.reference: Any = None
        if objective.kl_coefficient > 0:
            self.reference = copy.deepcopy(policy.model).eval().requires_grad_(False)

    def enter(self, phase: str, objective: Objective) -> None:
        """Train by `objective` from now on.

        The optimizer's moments start anew where the last update was of another phase: the gradients of two objectives
        may differ in size by orders of magnitude.
        """
        self.objective = objective
        if phase != self.counters.phase:
            self.optimizer.state.clear()
            self.counters = replace(self.counters, phase=phase)

    def update(self, groups: Sequence[Group], advantages: Sequence[Sequence[float | None]]) -> dict[str, float]:
        """Train on the groups and return the metrics.

        Without any group that has signal no optimizer step is made: moments, decay and schedule stay as they are.

        Args:
            groups: as collected at the current weights.
            advantages: for each group one advantage a member; None: no part in loss and denominators.

        Raises:
            TrainingError: too many steps in a row had a gradient that is not finite.
            ValueError: advantages that do not fit the groups.
        """
        batch = build_batch(groups, advantages)
        parts = split_groups(batch.groups, self.config.num_minibatches)
        minibatches = [self._with_coefficients(part) for part in parts]
        learning_rate = learning_rate_at(self.counters.updates_taken, self.config)
        for settings in self.optimizer.param_groups:
            settings["lr"] = learning_rate
        tally = _Tally()
        # With one optimizer step the current log-probabilities are the old ones, bit for bit: a pass is saved.
        single_step = len(minibatches) * self.config.num_epochs <= 1
        work = [
            micro_batches(rows, max_tokens=self.config.micro_batch_tokens, shares_prefixes=self.shares_prefixes)
            for rows in minibatches
        ]
        old = None if single_step else [[self._logprobs(batch).logprobs_BT for batch in part] for part in work]
        for epoch in range(self.config.num_epochs):
            for index, part in enumerate(work):
                self._step(part, None if old is None else old[index], tally, first_pass=epoch == 0)
        if tally.optimizer_steps:
            self.counters = replace(self.counters, updates_taken=self.counters.updates_taken + 1)
        return {
            **_averages(tally),
            "objective/learning_rate": learning_rate,
            "objective/computed_tokens": float(sum(batch.computed_tokens for part in work for batch in part)),
            "objective/rows": float(sum(len(rows) for rows in batch.groups)),
            "objective/groups_without_signal": float(batch.groups_without_signal),
            "objective/members_failed": float(batch.members_failed),
            "objective/members_left_out": float(batch.members_left_out),
            "objective/optimizer_steps": float(tally.optimizer_steps),
            "objective/skipped_nonfinite": float(tally.nonfinite_steps),
            "objective/skipped_no_signal": float(not batch.groups),
        }

    def _with_coefficients(self, groups: Sequence[Sequence[Row]]) -> list[Row]:
        coefficients = row_coefficients(
            [[row.num_trained_tokens for row in rows] for rows in groups],
            aggregation=self.objective.aggregation,
            normalization_tokens=self.objective.normalization_tokens,
        )
        return [
            replace(row, coefficient=coefficient)
            for rows, values in zip(groups, coefficients, strict=True)
            for row, coefficient in zip(rows, values, strict=True)
        ]

    def _step(self, part: Sequence[MicroBatch], old: Sequence[Tensor] | None, tally: _Tally, *, first_pass: bool):
        """Accumulate the gradient of every micro-batch, then move the weights once."""
        model = self.policy.model
        # Gradient checkpointing is only on in training mode; dropout rates are 0 either way.
        model.train(self.policy.config.gradient_checkpointing)
        self.optimizer.zero_grad(set_to_none=True)
        for index, batch in enumerate(part):
            # Gradient checkpointing runs layers again in the backward pass: with the same attention.
            with nullcontext() if batch.tree is None else attention_over_trees(model):
                found = self._logprobs(batch, with_gradient=True)
                old_BT = found.logprobs_BT.detach() if old is None else old[index]
                inputs = self._inputs(batch, found.logprobs_BT, old_BT)
                if first_pass:
                    _add_rollout_metrics(tally, batch.rows, old_BT, found.entropies_BT, self.config.importance_cap)
                output = self.objective(inputs)
                output.loss.backward()
            tally.loss += float(output.loss.detach())
            tally.objective_tokens += int(inputs.trained_BT.sum())
            for name, value in output.metrics.items():
                tally.sums[f"objective/{name}"] += value
            for name, value in output.maxima.items():
                tally.add_maximum(f"objective/{name}", value)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.config.max_grad_norm))
        model.eval()
        if math.isfinite(norm):
            self.optimizer.step()
            tally.optimizer_steps += 1
            tally.grad_norms.append(norm)
            self.counters = replace(
                self.counters, optimizer_steps=self.counters.optimizer_steps + 1, nonfinite_in_a_row=0
            )
        else:
            tally.nonfinite_steps += 1
            self.counters = replace(self.counters, nonfinite_in_a_row=self.counters.nonfinite_in_a_row + 1)
        self.optimizer.zero_grad(set_to_none=True)
        if self.counters.nonfinite_in_a_row >= self.config.max_nonfinite_steps:
            raise TrainingError(
                f"the gradient was not finite in {self.counters.nonfinite_in_a_row} steps in a row "
                f"(training.max_nonfinite_steps = {self.config.max_nonfinite_steps}); the weights before the first of "
                "them are kept. A lower learning rate or float32 weights often help"
            )

    def _logprobs(self, batch: MicroBatch, *, with_gradient: bool = False, model: Any = None) -> TokenLogprobs:
        model = self.policy.model if model is None else model
        settings: dict[str, Any] = {
            "wanted": [row.trained for row in batch.rows],
            "temperatures": [row.trajectory.temperature for row in batch.rows],
            "chunk_tokens": self.policy.config.logprob_chunk_tokens,
            "bf16_autocast": self.policy.config.bf16_autocast,
        }
        with torch.set_grad_enabled(with_gradient):
            if batch.tree is not None:
                return tree_logprobs(model, batch.tree, **settings)
            return token_logprobs(model, [row.trajectory.token_ids for row in batch.rows], **settings)

    def _inputs(self, batch: MicroBatch, logprobs_BT: Tensor, old_BT: Tensor) -> ObjectiveInputs:
        rows = batch.rows
        trained_BT = pad_rows([row.trained for row in rows], like=logprobs_BT).bool()
        weights_BT = pad_rows([row.trajectory.weights for row in rows], like=logprobs_BT)
        if self.config.importance_cap is not None:
            weights_BT = weights_BT * _importance_BT(rows, old_BT, self.config.importance_cap)
        blank_BT = torch.zeros_like(old_BT)
        sampled_BT = pad_rows([row.sampled for row in rows], like=old_BT).bool()
        return ObjectiveInputs(
            logprobs_BT=logprobs_BT,
            old_logprobs_BT=old_BT,
            advantages_BT=blank_BT + old_BT.new_tensor([row.advantage for row in rows])[:, None],
            weights_BT=weights_BT,
            coefficients_BT=blank_BT + old_BT.new_tensor([row.coefficient for row in rows])[:, None],
            trained_BT=trained_BT,
            reference_logprobs_BT=(
                self._logprobs(batch, model=self.reference).logprobs_BT if self.objective.kl_coefficient > 0 else None
            ),
            intervention_BT=trained_BT & ~sampled_BT,
            teacher_logprobs_BT=_teacher_logprobs_BT(rows, like=old_BT),
        )


def _can_share(model: Any) -> bool:
    reason = why_not_shared(model)
    if reason is not None:
        logger.warning("%s computes every row apart, whatever they share: %s", type(model).__name__, reason)
    return reason is None


def pad_rows(rows: Sequence[Sequence[float | bool]], *, like: Tensor) -> Tensor:
    """Return [B, T] the rows padded with 0 on the right to the width of `like`, in its type and on its device."""
    padded = torch.zeros(like.shape, dtype=like.dtype)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row, dtype=like.dtype)
    return padded.to(like.device)


def _engine_logprobs_BT(rows: Sequence[Row], *, like: Tensor) -> Tensor:
    return pad_rows(
        [[0.0 if value is None else value for value in row.trajectory.behavior_logprobs] for row in rows], like=like
    )


def _teacher_logprobs_BT(rows: Sequence[Row], *, like: Tensor) -> Tensor | None:
    scored = [row.trajectory.teacher_logprobs for row in rows]
    known = [[0.0 if value is None else value for value in values] for values in scored if values is not None]
    return pad_rows(known, like=like) if len(known) == len(rows) else None


def _importance_BT(rows: Sequence[Row], old_BT: Tensor, cap: float) -> Tensor:
    """Return [B, T] min(pi_old / pi_engine, cap) on tokens of the policy, 1 elsewhere (intervention tokens too)."""
    sampled_BT = pad_rows([row.sampled for row in rows], like=old_BT).bool()
    difference_BT = (old_BT - _engine_logprobs_BT(rows, like=old_BT)).masked_fill(~sampled_BT, 0.0)
    return difference_BT.exp().clamp(max=cap).masked_fill(~sampled_BT, 1.0)


def _add_rollout_metrics(
    tally: _Tally, rows: Sequence[Row], old_BT: Tensor, entropies_BT: Tensor, cap: float | None
) -> None:
    """Add what is known of the rollout weights: entropies by writer, and how far the engine's numbers are off."""
    sampled_BT = pad_rows([row.sampled for row in rows], like=old_BT).bool()
    trained_BT = pad_rows([row.trained for row in rows], like=old_BT).bool()
    difference = (old_BT - _engine_logprobs_BT(rows, like=old_BT))[sampled_BT].double()
    for source, chosen_BT in (("policy", sampled_BT), ("intervention", trained_BT & ~sampled_BT)):
        tally.sums[f"tokens_{source}"] += int(chosen_BT.sum())
        tally.sums[f"entropy_{source}"] += float(entropies_BT[chosen_BT].double().sum())
        tally.sums[f"logprob_{source}"] += float(old_BT[chosen_BT].double().sum())
    if not len(difference):
        return
    tally.sums["mismatch_absolute"] += float(difference.abs().sum())
    # k3 of KL(engine || trainer): the engine drew the tokens.
    tally.sums["mismatch_kl"] += float((difference.expm1() - difference).sum())
    tally.add_maximum("mismatch/max_abs_logprob", float(difference.abs().max()))
    if cap is not None:
        tally.caps_importance = True
        tally.sums["mismatch_capped"] += int((difference > math.log(cap)).sum())


def _averages(tally: _Tally) -> dict[str, float]:
    metrics = dict(tally.maxima)
    if tally.objective_tokens:
        metrics["objective/loss"] = tally.loss / max(tally.optimizer_steps + tally.nonfinite_steps, 1)
        metrics.update(
            {
                name: value / tally.objective_tokens
                for name, value in tally.sums.items()
                if name.startswith("objective/")
            }
        )
    if tally.grad_norms:
        metrics["objective/grad_norm"] = sum(tally.grad_norms) / len(tally.grad_norms)
    for source in ("policy", "intervention"):
        count = tally.sums[f"tokens_{source}"]
        metrics[f"objective/tokens_{source}"] = float(count)
        if count:
            metrics[f"objective/entropy_{source}"] = tally.sums[f"entropy_{source}"] / count
            metrics[f"objective/logprob_{source}"] = tally.sums[f"logprob_{source}"] / count
    if num_sampled := tally.sums["tokens_policy"]:
        metrics["mismatch/mean_abs_logprob"] = tally.sums["mismatch_absolute"] / num_sampled
        metrics["mismatch/kl"] = tally.sums["mismatch_kl"] / num_sampled
        if tally.caps_importance:
            metrics["mismatch/capped_fraction"] = tally.sums["mismatch_capped"] / num_sampled
    return metrics
