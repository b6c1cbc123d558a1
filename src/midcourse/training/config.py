"""Settings of training. Apart from the trainer, so that a run can be described without torch."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TrainingConfig(BaseModel):
    """How many updates, on how many tasks, with which optimizer, and what is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    updates: int = Field(default=200, ge=1)
    """Rounds of rollout and training."""
    tasks_per_update: int = Field(default=8, ge=1)
    """Tasks, and so groups, of one round; at most the tasks there are."""
    learning_rate: float = Field(default=1e-6, gt=0, le=1, allow_inf_nan=False)
    """Peak learning rate of AdamW. RTI: 1e-6, constant."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: the peak, or a fall to 0 at the last update."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates of linear rise from 0 to the peak. Updates that took no optimizer step do not count."""
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """Decoupled, on all parameters. RTI: 0.1."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the first moment."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the second moment."""
    adam_epsilon: float = Field(default=1e-8, gt=0, allow_inf_nan=False)
    """AdamW's term in the denominator."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Tokens computed, padding included, in one forward and backward pass. A longer trajectory gets its own pass."""
    shared_prefix: Literal["auto", "off"] = "auto"
    """auto: tokens that rows begin with alike are computed once, forward and backward, where that is faster."""
    num_minibatches: int = Field(default=1, ge=1)
    """Optimizer steps that an update's groups are split over."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over an update's groups."""
    importance_cap: float | None = Field(default=None, gt=0)
    """Truncated importance sampling between engine and trainer: policy tokens are weighted by at most this ratio."""
    max_nonfinite_steps: int = Field(default=3, ge=1)
    """A step whose gradient is not finite is skipped; so many in a row end the run."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Updates between checkpoints; the last update always has one."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on disk."""
    process_timeout_seconds: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Of several processes (torchrun): longest wait for the others, at the start and within an update."""
    idle_timeout_seconds: float = Field(default=86_400.0, gt=0, allow_inf_nan=False)
    """Of several processes: longest that the others wait for process 0's rollouts and scores. Its death they see."""

    @model_validator(mode="after")
    def _warmup_ends_in_time(self) -> Self:
        if self.warmup_updates > self.updates:
            raise ValueError(f"warmup_updates must be at most updates: got {self.warmup_updates} > {self.updates}")
        return self
