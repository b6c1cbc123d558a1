"""A model that speaks beside the policy: who it is, and how it reads a rollout. It judges, writes on, or scores.

It is the policy as it was at the start, the policy itself, or another model; told the task's evidence z it is the
papers' pi(. | x, z): the evidence stands with the query, and everything behind the prompt is the rollout's own tokens.
"""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.environments.base import Environment, Task
from midcourse.errors import ConfigError
from midcourse.interventions.prompts import render_prompt
from midcourse.interventions.roles import AUTO, PromptStyle
from midcourse.methods.base import RolloutTools, Speaker
from midcourse.rollout.chat import ChatFormat

SpeakerSource = Literal["frozen", "self", "model", "engine", "scripted"]


class SpeakerConfig(BaseModel):
    """Who speaks beside the policy, and what it is told."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    played_by: SpeakerSource = "frozen"
    """The policy as it was at the start, the policy itself, another model, a server, the environment."""
    path: str | None = None
    """The other model: a folder or a hub name; for played_by model alone."""
    chat: Literal["compact", "digits", "chatml", "template"] = "template"
    """How turns of the other model are written."""
    chat_template: str = ""
    """For chat template: as policy.chat_template, for the other model."""
    is_privileged: bool | None = None
    """Whether it sees the task's evidence (the paper's z); none: the policy, now or at the start, does, others not."""
    style: PromptStyle = AUTO
    """The prompts that it is given: a folder of interventions/prompts; auto takes the chat format's own."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Longest wait for one answer. Ours."""

    @model_validator(mode="after")
    def _a_path_goes_with_another_model(self) -> Self:
        if (self.path is not None) != (self.played_by == "model"):
            raise ValueError(f"path must be set for played_by model and for nothing else: got {self.path!r}")
        return self

    @property
    def sees_evidence(self) -> bool:
        """Whether the prompts hold the task's evidence."""
        return self.played_by in ("frozen", "self") if self.is_privileged is None else self.is_privileged

    def check(self, speaker: Speaker) -> None:
        """Raise ConfigError where the model cannot do what these settings are for; here any can."""


def speaker_of(tools: RolloutTools, config: SpeakerConfig) -> Speaker:
    """Return the model that the settings ask for.

    Raises:
        ConfigError: this run has no such model, or it cannot do what it is asked for.
    """
    if config.played_by == "self":
        return Speaker(engine=tools.engine, chat=tools.chat, shares_tokens=True)
    if tools.judge is None:
        raise ConfigError(f"a {config.played_by} model is to judge or teach, and this run has none")
    config.check(tools.judge)
    return tools.judge


class RolloutReader:
    """How a speaker reads the policy's rollouts: as they are, or with the evidence in its own prompt."""

    def __init__(
        self, speaker: Speaker, config: SpeakerConfig, *, environment: Environment, policy_chat: ChatFormat
    ) -> None:
        self._chat = speaker.chat
        self._shares_tokens = speaker.shares_tokens
        self._sees_evidence = config.sees_evidence
        self._style = speaker.chat.prompt_style if config.style == AUTO else config.style
        self._environment = environment
        self._policy_chat = policy_chat

    def read(self, task: Task, token_ids: Sequence[int], *, prompt_length: int) -> list[int]:
        """Return x, with z where the speaker is privileged, and everything that stands, in the speaker's tokens.

        Args:
            task: what the rollout is of.
            token_ids: [T] the rollout so far, in the policy's tokens.
            prompt_length: tokens of it that the policy was given as its prompt.
        """
        if self._shares_tokens and not self._sees_evidence:
            return list(token_ids)
        evidence = task.evidence.text if self._sees_evidence else ""
        query = render_prompt(self._style, "privileged", {"query": task.query, "evidence_text": evidence}).request
        opened = self._chat.open(
            system_prompt=self._environment.system_prompt, tools=self._environment.tools, query=query
        )
        said_ids = token_ids[prompt_length:]
        return [*opened, *(said_ids if self._shares_tokens else self._chat.encode(self._policy_chat.decode(said_ids)))]
