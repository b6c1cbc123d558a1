"""One update: rows in, new weights and metrics out. Letters: B rows, T tokens.

pi_old is the trainer's own pass at the rollout weights, not the engine's number: a bias of 1e-3 a token would be 8
nats over 8,000 tokens. The engine's numbers serve the mismatch metrics and, if asked for, truncated importance
sampling.

Several processes may share an update's work and hold a part of the weights each (`world`): then the main one calls what
is public here, and the others do as it does (`follow`). Losses carry the denominators of the whole step, so that the
gradients of all processes add up to that of one.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from midcourse.errors import TrainingError
from midcourse.objectives.base import Objective, ObjectiveInputs
from midcourse.objectives.reduction import row_coefficients
from midcourse.training.batch import MicroBatch, Row, build_batch, micro_batches, split_groups
from midcourse.training.config import TrainingConfig
from midcourse.training.lora import frozen_copy
from midcourse.training.policy import Policy, TokenLogprobs, token_logprobs
from midcourse.training.row_tensors import importance_BT, pad_rows, teacher_logprobs_BT
from midcourse.training.shared_prefix import attention_over_trees, tree_logprobs, why_not_shared
from midcourse.training.tally import Tally
from midcourse.training.trained_weights import TrainedWeights
from midcourse.training.world import Alone, World, collective
from midcourse.types import Group

logger = logging.getLogger(__name__)


BEGIN = "begin"
"""The call that builds an updater."""
STEP = "step"
"""AdamW's name for its counter of steps, a number for each weight."""
MASTER = "master"
"""Our name, beside AdamW's, for the float32 copy of a weight."""


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


class Updater:
    """Trains a policy in place. Owns the optimizer, the schedule and, for a KL term, a frozen copy of the policy.

    Of a policy with an adapter only the adapter is trained, and the frozen copy shares all other weights.

    A method with a schedule says by `enter` which objective is next; the one given here has its KL term, if any has.

    Build it before a checkpoint is loaded: the reference is the policy as it was at the start of the run. `model` is
    what is trained: the policy's own, or this process's part of it.
    """

    def __init__(
        self, policy: Policy, objective: Objective, config: TrainingConfig, *, world: World | None = None
    ) -> None:
        self.policy = policy
        self.objective = objective
        self.config = config
        self.world: World = world or Alone()
        self.counters = UpdateCounters()
        # Only the main process lays out micro-batches.
        self.shares_prefixes = config.shared_prefix == "auto" and self.world.is_main and _can_share(policy.model)
        self.reference: Any = None
        with self.world.together(BEGIN, (objective, config)):
            if objective.kl_coefficient > 0:
                self.reference = self.world.split(frozen_copy(policy.model))
            self.model = self.world.split(policy.model)
        self.weights = TrainedWeights(self.model)
        self.optimizer = torch.optim.AdamW(
            self.weights.optimized.values(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
            foreach=False,
        )

    @collective
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
        work = [
            micro_batches(rows, max_tokens=self.config.micro_batch_tokens, shares_prefixes=self.shares_prefixes)
            for rows in minibatches
        ]
        tally = self.take_steps(work, learning_rate)
        return {
            **tally.averages(),
            "objective/learning_rate": learning_rate,
            "objective/trainable_parameters": float(self.weights.num_parameters),
            "objective/computed_tokens": float(sum(batch.computed_tokens for part in work for batch in part)),
            "objective/rows": float(sum(len(rows) for rows in batch.groups)),
            "objective/groups_without_signal": float(batch.groups_without_signal),
            "objective/members_failed": float(batch.members_failed),
            "objective/members_left_out": float(batch.members_left_out),
            "objective/optimizer_steps": float(tally.optimizer_steps),
            "objective/skipped_nonfinite": float(tally.nonfinite_steps),
            "objective/skipped_no_signal": float(not batch.groups),
        }

    @collective
    def take_steps(self, work: Sequence[Sequence[MicroBatch]], learning_rate: float) -> Tally:
        """Take an optimizer step on each part of the work, every epoch, and return the sums over all processes.

        Raises:
            TrainingError: too many steps in a row had a gradient that is not finite.
        """
        for settings in self.optimizer.param_groups:
            settings["lr"] = learning_rate
        tally = Tally()
        parts = [self.world.share_out(part) for part in work]
        # With one optimizer step the current log-probabilities are the old ones, bit for bit: a pass is saved.
        single_step = len(parts) * self.config.num_epochs <= 1
        old = None if single_step else [[self._logprobs(batch).logprobs_BT for batch in part] for part in parts]
        for epoch in range(self.config.num_epochs):
            for index, part in enumerate(parts):
                self._step(part, None if old is None else old[index], tally, first_pass=epoch == 0)
        if tally.optimizer_steps:
            self.counters = replace(self.counters, updates_taken=self.counters.updates_taken + 1)
            self.world.publish(self.model, self.policy.model)
        return reduce(Tally.joined, self.world.gather(tally))

    @collective
    def moments(self) -> dict[str, Tensor]:
        """Return the optimizer's moments, whole and on the CPU, by name of the weight and kind: "lm_head.weight/step".

        The float32 copies of weights are among them. Processes beside the main one return nothing.
        """
        found: dict[str, Tensor] = {}
        copies = self.weights.copies()
        for name, weight in self.weights.optimized.items():
            kinds = dict(self.optimizer.state.get(weight, {}))
            if name in copies:
                kinds[MASTER] = copies[name]
            for kind, part in kinds.items():
                whole = part if kind == STEP else self.world.join_up(part)
                if self.world.is_main:
                    found[f"{name}/{kind}"] = whole.detach().cpu().contiguous()
        return found

    def restore(self, counters: UpdateCounters, moments: Mapping[str, Tensor]) -> None:
        """Go on from the weights that the policy has now, with what `moments` gave and the counters of that time.

        Raises:
            ValueError: the moments are not those of this model's weights.
        """
        weights = self.weights.optimized
        for key, value in moments.items():
            name, kind = key.rsplit("/", 1)
            if name not in weights or (kind != STEP and value.shape != weights[name].shape):
                raise ValueError(f"the optimizer has no {key} of shape {list(value.shape)}")
        steps = {key: value for key, value in moments.items() if key.endswith(f"/{STEP}")}
        self.take_over(counters, steps, [key for key in moments if key not in steps], moments=moments)

    @collective
    def take_over(
        self,
        counters: UpdateCounters,
        steps: Mapping[str, Tensor],
        keys: Sequence[str],
        *,
        moments: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Do the work of `restore` here: the main process alone has the `moments`, under these keys."""
        self.world.spread(self.policy.model, self.model)
        state: dict[Tensor, dict[str, Tensor]] = {}
        copies: dict[str, Tensor] = {}
        for key in (*steps, *keys):
            name, kind = key.rsplit("/", 1)
            weight = self.weights.optimized[name]
            # AdamW keeps its step counter on the CPU. A copy, since loaded tensors are windows into a file.
            part = steps[key].clone() if key in steps else self.world.hand_out(moments.get(key), like=weight)
            if kind == MASTER:
                copies[name] = part
            else:
                state.setdefault(weight, {})[kind] = part
        self.weights.restore(copies)
        self.optimizer.state.clear()
        self.optimizer.state.update(state)
        self.counters = counters

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

    def _step(self, part: Sequence[MicroBatch], old: Sequence[Tensor] | None, tally: Tally, *, first_pass: bool):
        """Accumulate the gradient of every micro-batch, then move the weights once."""
        model = self.model
        # Gradient checkpointing is only on in training mode; dropout rates are 0 either way.
        model.train(self.policy.config.gradient_checkpointing)
        self.optimizer.zero_grad(set_to_none=True)
        for index, batch in enumerate(part):
            counted = Tally() if batch.is_filler else tally
            # Gradient checkpointing runs layers again in the backward pass: with the same attention.
            with nullcontext() if batch.tree is None else attention_over_trees(model):
                found = self._logprobs(batch, with_gradient=True)
                old_BT = found.logprobs_BT.detach() if old is None else old[index]
                inputs = self._inputs(batch, found.logprobs_BT, old_BT)
                if first_pass:
                    counted.add_rollouts(batch.rows, old_BT, found.entropies_BT, self.config.importance_cap)
                output = self.objective(inputs)
                output.loss.backward()
            self.weights.collect_gradients()
            counted.loss += float(output.loss.detach())
            counted.objective_tokens += int(inputs.trained_BT.sum())
            for name, value in output.metrics.items():
                counted.sums[f"objective/{name}"] += value
            for name, value in output.maxima.items():
                counted.add_maximum(f"objective/{name}", value)
        norm = self.world.clip_gradients(list(self.weights.optimized.values()), self.config.max_grad_norm)
        model.eval()
        if math.isfinite(norm):
            self.optimizer.step()
            self.weights.write_back()
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
        settings: dict[str, Any] = {
            "wanted": [row.trained for row in batch.rows],
            "temperatures": [row.trajectory.temperature for row in batch.rows],
            "chunk_tokens": self.policy.config.logprob_chunk_tokens,
            "bf16_autocast": self.policy.config.bf16_autocast,
        }

        def compute(model: Any) -> tuple[Tensor, Tensor]:
            if batch.tree is not None:
                found = tree_logprobs(model, batch.tree, **settings)
            else:
                found = token_logprobs(model, [row.trajectory.token_ids for row in batch.rows], **settings)
            return found.logprobs_BT, found.entropies_BT

        with torch.set_grad_enabled(with_gradient):
            logprobs_BT, entropies_BT = self.world.run(self.model if model is None else model, compute)
        return TokenLogprobs(logprobs_BT=logprobs_BT, entropies_BT=entropies_BT)

    def _inputs(self, batch: MicroBatch, logprobs_BT: Tensor, old_BT: Tensor) -> ObjectiveInputs:
        rows = batch.rows
        trained_BT = pad_rows([row.trained for row in rows], like=logprobs_BT).bool()
        weights_BT = pad_rows([row.trajectory.weights for row in rows], like=logprobs_BT)
        if self.config.importance_cap is not None:
            weights_BT = weights_BT * importance_BT(rows, old_BT, self.config.importance_cap)
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
            teacher_logprobs_BT=teacher_logprobs_BT(rows, like=old_BT),
        )


def follow(policy: Policy, world: World, calls: Iterator[tuple[str, Sequence[Any]]]) -> None:
    """Do, beside the main process, what its updater does, call by call, until there is no more.

    Args:
        policy: as the main process loaded it.
        world: of both.
        calls: what the main process calls, with its arguments; the first is `BEGIN`.
    """
    _, (objective, config) = next(calls)
    updater = Updater(policy, objective, config, world=world)
    for name, arguments in calls:
        getattr(updater, name)(*arguments)


def _can_share(model: Any) -> bool:
    reason = why_not_shared(model)
    if reason is not None:
        logger.warning("%s computes every row apart, whatever they share: %s", type(model).__name__, reason)
    return reason is None
