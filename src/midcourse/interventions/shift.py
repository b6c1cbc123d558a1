"""Reasoning-shift weights: how much more likely the feedback makes each corrected token (RTI Eq. 5-6). N tokens."""

import math
from collections.abc import Sequence


def token_weights(
    calibration_logprobs: Sequence[float], rollout_logprobs: Sequence[float], epsilon_cal: float
) -> list[float]:
    """Return [N] clip(exp(log pi_cal - log pi_roll), 1 - epsilon_cal, 1 + epsilon_cal); constants, no gradient.

    Args:
        calibration_logprobs: [N] nats, under the correction prompt, at the sampling temperature.
        rollout_logprobs: [N] nats, the same tokens under the rollout prompt, at the same temperature.
        epsilon_cal: half width of the clip, in (0, 1). The paper uses 0.2.

    Raises:
        ValueError: the lengths differ, a log-probability is not finite, or `epsilon_cal` is outside (0, 1).
    """
    if not 0 < epsilon_cal < 1:
        raise ValueError(f"epsilon_cal must lie in (0, 1): got {epsilon_cal}")
    if len(calibration_logprobs) != len(rollout_logprobs):
        raise ValueError(
            f"both prompts must score the same tokens: got {len(calibration_logprobs)} and {len(rollout_logprobs)}"
        )
    if not all(math.isfinite(logprob) for logprob in (*calibration_logprobs, *rollout_logprobs)):
        raise ValueError("log-probabilities must be finite")
    low, high = 1.0 - epsilon_cal, 1.0 + epsilon_cal
    # The exponent is bounded first: exp of a large shift overflows, and the clip makes anything over 1 the same.
    return [
        min(max(math.exp(min(calibration - rollout, 1.0)), low), high)
        for calibration, rollout in zip(calibration_logprobs, rollout_logprobs, strict=True)
    ]
