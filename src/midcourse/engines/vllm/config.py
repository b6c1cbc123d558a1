"""Settings of the engine `vllm`."""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.engines.base import ENGINES, Feature
from midcourse.engines.transformers import TransformersEngineConfig
from midcourse.engines.vllm.own_server import OwnServerConfig, check_vllm
from midcourse.engines.vllm.server import GivenServerConfig
from midcourse.errors import ConfigError

if TYPE_CHECKING:
    from midcourse.engines.vllm.engine import VllmEngine


@ENGINES.register("vllm")
class VllmEngineConfig(BaseModel):
    """A vLLM server, running or started here, that gets the trainer's weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    server: OwnServerConfig | None = None
    """How to start a server, where none is running; none: with the defaults of this table."""
    running: GivenServerConfig | None = None
    """Where a running server is; none: midcourse starts one."""
    running_judge: GivenServerConfig | None = None
    """Where the running server of a frozen or other model is that judges or teaches; only beside `running`."""
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest wait for one answer, the time in the server's queue included."""
    max_concurrency: int = Field(default=256, ge=1)
    """Most requests in flight; others wait here."""
    max_retries: int = Field(default=4, ge=0)
    """Times that one request is sent again after a broken connection, a timeout or a status 429 or 5xx."""
    backoff_seconds: float = Field(default=0.5, ge=0)
    """Wait before the first repetition; doubles each time, up to 10 s."""
    logprobs: Literal["processed", "raw"] = "processed"
    """What the server's `--logprobs-mode` says of sampled tokens: after the temperature, or before it."""
    scoring: Literal["auto", "trainer"] = "auto"
    """Who scores given tokens: the server where it can (temperature 1, no adapter), or always the trainer's model."""
    entropies: Literal["none", "trainer", "top_logprobs"] = "none"
    """Of drawn tokens, which vLLM does not tell. trainer: exact, one pass more; top_logprobs: a lower bound from 20."""
    hidden_states: Literal["trainer", "none"] = "trainer"
    """Which vLLM does not tell: from a pass of the trainer's model, where a method asks for them."""
    structured_output: bool = True
    """Hold roles that the policy plays to the JSON schema of their reply. Needs a model with a tokenizer."""
    weight_sync: Literal["auto", "file", "nccl", "lora"] = "auto"
    """How weights reach the server: through a folder, over NCCL between GPUs, as an adapter; auto: what is there."""
    probe_sequences: int = Field(default=4, ge=1)
    """Token sequences by which server and trainer are compared after every update of weights."""
    probe_mean_difference: float | None = Field(default=None, gt=0)
    """Most that log-probabilities may differ on average, nats; none takes a bound that fits the dtypes."""
    probe_max_difference: float | None = Field(default=None, gt=0)
    """Most that one log-probability may differ, nats; none takes a bound that fits the dtypes."""
    trainer_pass: TransformersEngineConfig = Field(default_factory=TransformersEngineConfig)
    """The embedded engine that stands in for what the server cannot tell, on the trainer's own model."""

    @model_validator(mode="after")
    def _servers_fit_each_other(self) -> Self:
        if self.running is not None and self.server is not None:
            raise ValueError(
                f"running.url = {self.running.url!r} is a server that runs already, and the table server says how to "
                "start one: expected one of the two"
            )
        if self.running_judge is not None and self.running is None:
            raise ValueError(
                f"running_judge.url = {self.running_judge.url!r}: expected running.url too; without it midcourse "
                "starts both servers itself"
            )
        if self.running_judge is not None and self.running_judge == self.running:
            raise ValueError(
                f"running_judge.url = {self.running_judge.url!r}: expected another server than running.url, as the two "
                "hold two models"
            )
        return self

    @property
    def features(self) -> frozenset[Feature]:
        """What the engine can give with these settings."""
        found = {Feature.PROMPT_SCORES, Feature.WEIGHT_SYNC}
        if self.entropies != "none":
            found.add(Feature.ENTROPIES)
        if self.hidden_states != "none":
            found.add(Feature.HIDDEN_STATES)
        if self.structured_output:
            found.add(Feature.STRUCTURED_OUTPUT)
        return frozenset(found)

    def remedy(self, feature: Feature) -> str:
        """Return the setting that would give a feature that is missing; "" where there is none."""
        return {
            Feature.ENTROPIES: 'engine.entropies = "trainer" (exact) or "top_logprobs" (a lower bound)',
            Feature.HIDDEN_STATES: 'engine.hidden_states = "trainer"',
            Feature.STRUCTURED_OUTPUT: "engine.structured_output = true",
        }.get(feature, "")

    def for_judge(self) -> "VllmEngineConfig":
        """Return the settings of the server of a second model, which has a port of its own, and weights that stay.

        Raises:
            ConfigError: the policy's server is given by its address, and a judge's is not.
        """
        if self.running is not None and self.running_judge is None:
            raise ConfigError(
                "engine.running_judge.url is not set: the method has a model beside the policy, and "
                f"{self.running.url} holds the policy alone; expected the address of a second server"
            )
        changes: dict[str, Any] = {"running": self.running_judge, "running_judge": None, "weight_sync": "auto"}
        changes["entropies"] = "none"  # a pass of the judge's model over every draw, and nobody would read them
        if self.server is not None:
            changes["server"] = self.server.model_copy(update={"port": None})
        return self.model_copy(update=changes)

    def check_machine(self) -> None:
        """Check that a server can be started here, unless one runs. Raises ConfigError: no vLLM where one is named."""
        if self.running is None:
            check_vllm(self.server or OwnServerConfig())

    def build(self, model: Any, *, tokenizer: Any = None) -> "VllmEngine":
        """Return an engine that brings `model` to a server and asks it."""
        from midcourse.engines.vllm.engine import VllmEngine

        return VllmEngine(model, config=self, tokenizer=tokenizer)
