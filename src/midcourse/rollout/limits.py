"""How long a rollout may be, in turns, tokens and seconds."""

from pydantic import BaseModel, ConfigDict, Field


class RolloutConfig(BaseModel):
    """Sampling and limits of one rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    temperature: float = Field(default=0.8, gt=0, allow_inf_nan=False)
    """Sampling temperature of training rollouts. RTI samples at 0.8."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass. Below 1 the log-probabilities stay those of the full distribution, which biases ratios."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k most likely tokens; 0 is off."""
    max_turn_tokens: int = Field(default=512, ge=1)
    """Most tokens of one turn. A turn cut here ends the rollout as truncated."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most turns; none takes the environment's own limit."""
    environment_timeout_seconds: float = Field(default=30.0, gt=0)
    """Longest wait for one answer of the environment; more than the longest that it lets a turn's code run."""
    rollout_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest wall clock of one rollout."""
    groups_per_wave: int = Field(default=8, ge=1)
    """Groups rolled out together. A wave is what is journalled, and run again after a crash."""
