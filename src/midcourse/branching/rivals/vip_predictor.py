"""VIP's predictor: a Gaussian process over tasks that are alike (arXiv:2602.01601).

Letters: Q training tasks, B of one batch, E numbers of an embedding.

The paper's: p = sigmoid(g), g a Gaussian process over embeddings of the tasks with the kernel exp(-d^2 / 2 h^2), h the
median distance; the mean reward of a task's rollouts, clipped, is observed as its logit; the posterior is the next
prior. The authors' code: prior mean -1, clip 1e-6, noise 1e-4.

Differs from the paper: of the posterior the mean alone is kept and the covariance stays the prior's, as in the code:
with both, a task that was seen would be certain for good, while the policy changes. So an observation is what was seen
last, and its neighbours move by how near they are. Embeddings are whoever calls's (the paper's are a sentence
encoder's of 384 numbers); the median is over at most 1,000 tasks.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field

from midcourse.errors import CheckpointError

Array = NDArray[numpy.float64]
MEDIAN_TASKS = 1000
"""Tasks, evenly chosen, whose distances the median is over: all of ten thousand would be a hundred million."""


class VIPPredictorConfig(BaseModel):
    """What is believed of a task before it was seen, and how much an observation says."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prior_mean: float = Field(default=-1.0, allow_inf_nan=False)
    """Logit of the success probability of a task that nothing is known of. Code: -1, that is 0.27."""
    length_scale: float | None = Field(default=None, ge=1e-6, le=1e6)
    """h: distance at which tasks are alike by 0.61; None: the median distance of the tasks, as in the paper."""
    observation_clip: float = Field(default=1e-6, ge=1e-12, lt=0.5)
    """Mean rewards are kept this far from 0 and 1, where the logit is infinite. Code: 1e-6."""
    observation_noise: float = Field(default=1e-4, ge=1e-12, allow_inf_nan=False)
    """Variance of an observed logit. Code: 1e-4."""


class VIPPredictor:
    """Success probabilities of the training tasks, learned from their mean rewards.

    Args:
        embeddings: [Q, E] one row a training task.
        config: prior and kernel.

    Raises:
        ValueError: not a matrix with rows, or a number that is not finite.
    """

    def __init__(self, embeddings: ArrayLike, config: VIPPredictorConfig) -> None:
        self.config = config
        self._embeddings = numpy.array(embeddings, dtype=numpy.float64)
        if self._embeddings.ndim != 2 or not self._embeddings.size or not numpy.isfinite(self._embeddings).all():
            raise ValueError(f"embeddings must be [tasks, numbers], finite: got shape {self._embeddings.shape}")
        self._logits = numpy.full(len(self._embeddings), config.prior_mean)
        self.length_scale = median_distance(self._embeddings) if config.length_scale is None else config.length_scale

    def predict(self, tasks: Sequence[int]) -> Array:
        """Return [B] p of the tasks at these rows of the embeddings."""
        # Tasks that are nearly alike and fared differently can push a third so far out that exp is infinite: p is 0.
        with numpy.errstate(over="ignore"):
            return 1.0 / (1.0 + numpy.exp(-self._logits[list(tasks)]))

    def observe(self, tasks: Sequence[int], mean_rewards: Sequence[float]) -> None:
        """Take what a batch gave.

        Args:
            tasks: [B] rows of the embeddings, each at most once; those that no rollout was scored for are left out.
            mean_rewards: [B] over the task's scored rollouts, in [0, 1].

        Raises:
            ValueError: lists of different lengths, a task twice, or a mean reward outside [0, 1].
        """
        if len(tasks) != len(mean_rewards) or len(set(tasks)) != len(tasks):
            raise ValueError(
                f"tasks must be seen once, with a reward each: got tasks {list(tasks)}, {len(mean_rewards)} rewards"
            )
        if not all(0 <= reward <= 1 for reward in mean_rewards):
            raise ValueError(f"mean rewards must lie in [0, 1]: got {list(mean_rewards)}")
        if not tasks:
            return
        rows, clip = list(tasks), self.config.observation_clip
        rewards = numpy.clip(numpy.array(mean_rewards, dtype=numpy.float64), clip, 1.0 - clip)
        surprise = numpy.log(rewards / (1.0 - rewards)) - self._logits[rows]
        likeness = self._likeness(rows)  # [Q, B]
        noise = self.config.observation_noise * numpy.eye(len(rows))
        self._logits = self._logits + likeness @ numpy.linalg.solve(likeness[rows] + noise, surprise)

    def state_dict(self) -> dict[str, NDArray[numpy.generic]]:
        """Return everything that a resumed run must know; `tasks` says of which embeddings it is."""
        return {"logits": self._logits.copy(), "tasks": self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, NDArray[numpy.generic]]) -> None:
        """Take what `state_dict` gave.

        Raises:
            CheckpointError: it is of another form, or of other tasks.
        """
        if set(state) != {"logits", "tasks"} or state["logits"].shape != self._logits.shape:
            raise CheckpointError(
                f"VIP's predictor: expected logits {self._logits.shape} and tasks, "
                f"got { ({name: array.shape for name, array in state.items()}) }"
            )
        if not numpy.array_equal(state["tasks"], self._fingerprint()):
            raise CheckpointError("VIP's predictor: the state is of other tasks, or of their order")
        self._logits = state["logits"].astype(numpy.float64)

    def _likeness(self, rows: Sequence[int]) -> Array:
        squares = squared_distances(self._embeddings, self._embeddings[list(rows)])
        return numpy.exp(-0.5 * squares / self.length_scale**2)

    def _fingerprint(self) -> NDArray[numpy.uint8]:
        return numpy.frombuffer(blake2b(self._embeddings.tobytes(), digest_size=16).digest(), dtype=numpy.uint8).copy()


def squared_distances(one: Array, two: Array) -> Array:
    """Return [len(one), len(two)] squared Euclidean distances of rows."""
    squares = (one**2).sum(axis=1)[:, None] + (two**2).sum(axis=1)[None, :] - 2.0 * one @ two.T
    return numpy.maximum(squares, 0.0)  # rounding can take it under 0


def median_distance(embeddings: Array) -> float:
    """Return the median distance of rows that differ, over at most MEDIAN_TASKS of them; 1 where none do."""
    places = numpy.unique(numpy.linspace(0, len(embeddings) - 1, min(len(embeddings), MEDIAN_TASKS)).astype(int))
    chosen = embeddings[places]
    distances = numpy.sqrt(squared_distances(chosen, chosen)[numpy.triu_indices(len(chosen), k=1)])
    # Equal rows are a hair apart by rounding.
    distances = distances[distances > 1e-6 * numpy.abs(embeddings).max()]
    return float(numpy.median(distances)) if len(distances) else 1.0
