"""Validator, corrector, verifier (RTI, Section 4.1): played by the policy, by another engine, or by a script.

A role that cannot be read answers None; a role whose engine does not answer raises RoleFailed. What either means for
the step is decided in `pipeline.py`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from midcourse.engines.base import Feature, SamplingParams, TextEngine
from midcourse.environments.base import Environment
from midcourse.errors import ConfigError, EngineError, MidcourseError
from midcourse.interventions.metering import CostLedger, MeteredEngine, MeteredTextEngine
from midcourse.interventions.prompts import render_prompt, styles
from midcourse.interventions.reading import CorrectorReply, ValidatorReply, VerifierReply, read_reply
from midcourse.types import AssistantTurn, ToolCall

if TYPE_CHECKING:
    from midcourse.methods.base import RolloutTools
    from midcourse.rollout.episode import Step

RoleName = Literal["validator", "corrector", "verifier"]
RoleSource = Literal["self", "engine", "scripted"]
Reply = TypeVar("Reply", bound=BaseModel)


class RoleFailed(MidcourseError):
    """A role's engine is down or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorVerdict:
    """Whether the draft may stand, and what is wrong with it otherwise."""

    is_valid: bool
    error_types: Sequence[str] = ()
    diagnosis: str = ""
    suggest_next: str = ""


Correction = AssistantTurn
"""What a corrector returns: a turn, as the policy might have written it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierVerdict:
    """Whether the correction may stand."""

    ok: bool
    reasons: Sequence[str] = ()
    diagnosis: str = ""


class ScriptedRoles(Protocol):
    """Roles without a model: an environment's oracle. Synchronous, deterministic, fast."""

    def validate(self, step: "Step") -> ValidatorVerdict:
        """Judge the step's draft."""
        ...

    def correct(self, step: "Step", verdict: ValidatorVerdict) -> Correction | None:
        """Return what the policy should write instead; None where the script has no correction."""
        ...

    def verify(self, step: "Step", corrected: Correction) -> VerifierVerdict:
        """Judge the correction."""
        ...


@runtime_checkable
class OffersScriptedRoles(Protocol):
    """An environment that has an oracle."""

    def scripted_roles(self) -> ScriptedRoles:
        """Return the oracle."""
        ...


AUTO = "auto"


def _installed(style: str) -> str:
    known = [AUTO, *styles()]
    if style not in known:
        raise ValueError(f"unknown prompt style {style!r}; known: {', '.join(known)}")
    return style


PromptStyle = Annotated[str, AfterValidator(_installed)]
"""A folder of interventions/prompts, or "auto"; anything else is refused when settings are read."""


class RolesConfig(BaseModel):
    """Who plays the roles, and how they are asked. The papers fix none of the numbers: all are ours."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    played_by: RoleSource = "self"
    """The policy itself (the paper's default), a role engine of the run, or the environment's script."""
    validator: RoleSource | None = None
    """Who plays the validator; none takes `played_by`."""
    corrector: RoleSource | None = None
    """Who plays the corrector; none takes `played_by`."""
    verifier: RoleSource | None = None
    """Who plays the verifier; none takes `played_by`."""
    style: PromptStyle = AUTO
    """The prompts that the roles are given: a folder of interventions/prompts; auto takes the chat format's own."""
    temperature: float = Field(default=0.8, ge=0, allow_inf_nan=False)
    """Sampling temperature of the roles; 0 takes the most likely token."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens of one reply."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Longest wait for one reply; then the draft is kept."""

    def source(self, role: RoleName) -> RoleSource:
        """Return who plays `role`."""
        chosen: Mapping[RoleName, RoleSource | None] = {
            "validator": self.validator,
            "corrector": self.corrector,
            "verifier": self.verifier,
        }
        return chosen[role] or self.played_by

    @property
    def engine_roles(self) -> Sequence[str]:
        """The roles that text engines of the run must play."""
        return [role for role in get_args(RoleName) if self.source(role) == "engine"]


class Roles:
    """The three roles, each from where the config says.

    Raises:
        ConfigError: a role is to be played by an engine or a script that this run does not have.
    """

    def __init__(self, tools: "RolloutTools", *, config: RolesConfig, ledger: CostLedger, conceal: bool = True) -> None:
        self._chat = tools.chat
        self.style = tools.chat.prompt_style if config.style == AUTO else config.style
        self._environment = tools.environment
        self._config = config
        self._conceal = conceal
        self._ledger = ledger
        self._text_engines: dict[str, TextEngine] = {}
        self._policies: dict[str, MeteredEngine] = {}
        self._script: ScriptedRoles | None = None
        for role in get_args(RoleName):
            self._cast(role, tools)

    def _cast(self, role: RoleName, tools: "RolloutTools") -> None:
        match self._config.source(role):
            case "self":
                self._policies[role] = MeteredEngine(tools.engine, purpose=role, ledger=self._ledger)
            case "engine":
                if role not in tools.role_engines:
                    raise ConfigError(f"role {role!r} is to be played by an engine, and this run has none for it")
                self._text_engines[role] = MeteredTextEngine(
                    tools.role_engines[role], purpose=role, ledger=self._ledger
                )
            case "scripted":
                self._script = self._script or _script_of(tools.environment)

    async def validate(self, step: "Step") -> ValidatorVerdict | None:
        """Return the verdict on the draft; None where it cannot be read. Raises RoleFailed."""
        if self._script is not None and self._config.source("validator") == "scripted":
            return self._script.validate(step)
        reply = await self._ask("validator", step, ValidatorReply)
        if reply is None:
            return None
        return ValidatorVerdict(
            is_valid=reply.is_valid,
            error_types=tuple(reply.error_types),
            diagnosis=reply.diagnosis,
            suggest_next=reply.suggest_next,
        )

    async def correct(self, step: "Step", verdict: ValidatorVerdict) -> Correction | None:
        """Return the corrected turn; None where it cannot be read or says nothing. Raises RoleFailed."""
        if self._script is not None and self._config.source("corrector") == "scripted":
            return self._script.correct(step, verdict)
        reply = await self._ask("corrector", step, CorrectorReply, feedback=verdict)
        if reply is None or bool(reply.tool_calls) == bool(reply.content.strip()):
            return None  # neither, or both of two that exclude each other
        return AssistantTurn(
            reasoning=reply.reasoning,
            content=reply.content,
            tool_calls=tuple(ToolCall(call.name, call.arguments) for call in reply.tool_calls),
        )

    async def verify(
        self, step: "Step", corrected: Correction, *, corrected_text: str, verdict: ValidatorVerdict
    ) -> VerifierVerdict | None:
        """Return the verdict on the correction; None where it cannot be read. Raises RoleFailed."""
        if self._script is not None and self._config.source("verifier") == "scripted":
            return self._script.verify(step, corrected)
        reply = await self._ask(
            "verifier", step, VerifierReply, feedback=verdict, corrected=corrected, corrected_text=corrected_text
        )
        if reply is None:
            return None
        return VerifierVerdict(ok=reply.ok, reasons=tuple(reply.reasons), diagnosis=reply.diagnosis)

    def feedback_message(self, verdict: ValidatorVerdict) -> str:
        """Return the one message by which p_cal differs from p_roll: diagnosis and suggested next step alone."""
        nothing = dict.fromkeys(_VARIABLES, "")
        return render_prompt(self.style, "feedback", {**nothing, "feedback": verdict}).request

    async def _ask(
        self,
        role: RoleName,
        step: "Step",
        reply_type: type[Reply],
        *,
        feedback: ValidatorVerdict | None = None,
        corrected: Correction | None = None,
        corrected_text: str = "",
    ) -> Reply | None:
        prompt = render_prompt(
            self.style,
            role,
            {
                "query": step.task.query,
                "tools": self._environment.tools,
                "turns": step.turns,
                "draft": step.draft,
                "corrected": corrected,
                "history_text": self._chat.decode(step.history_ids),
                "draft_text": self._text(step.draft_ids),
                "corrected_text": corrected_text,
                "evidence_text": step.task.evidence.text,
                "guide": self._environment.role_guide,
                "feedback": feedback,
                "conceal": self._conceal,
            },
        )
        seed = step.key.turn_seed(step.turn_index, role)
        try:
            # asyncio.timeout and not wait_for: the latter would move the call into another task.
            async with asyncio.timeout(self._config.timeout_seconds):
                if role in self._policies:
                    text = await self._ask_policy(role, prompt.instructions, prompt.request, seed, reply_type)
                else:
                    text = await self._ask_engine(role, prompt.instructions, prompt.request, seed, reply_type)
        except (EngineError, TimeoutError) as error:
            raise RoleFailed(f"{role}: {error or 'no answer in time'}") from error
        return read_reply(text, reply_type)

    async def _ask_policy(
        self, role: RoleName, instructions: str, request: str, seed: int, reply_type: type[BaseModel]
    ) -> str:
        prompt_ids = self._chat.role_prompt(role=role, instructions=instructions, request=request)
        follows_schema = Feature.STRUCTURED_OUTPUT in self._policies[role].features
        completion = await self._policies[role].sample(
            prompt_ids,
            SamplingParams(
                max_tokens=self._config.max_tokens,
                temperature=self._config.temperature,
                stop_ids=self._chat.stop_ids,
                seed=seed,
                json_schema=reply_type.model_json_schema() if follows_schema else None,
            ),
        )
        return self._text(completion.token_ids)

    async def _ask_engine(
        self, role: RoleName, instructions: str, request: str, seed: int, reply_type: type[BaseModel]
    ) -> str:
        messages: list[Mapping[str, str]] = [{"role": "user", "content": _sendable(request)}]
        if instructions:
            messages.insert(0, {"role": "system", "content": _sendable(instructions)})
        schema: Mapping[str, Any] = reply_type.model_json_schema()
        return await self._text_engines[role].complete(
            messages,
            max_tokens=self._config.max_tokens,
            temperature=self._config.temperature,
            seed=seed,
            json_schema=schema,
        )

    def _text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a turn without its stop token."""
        ended = bool(token_ids) and token_ids[-1] in self._chat.stop_ids
        return self._chat.decode(token_ids[:-1] if ended else token_ids)


_VARIABLES = (
    "query",
    "tools",
    "turns",
    "draft",
    "corrected",
    "history_text",
    "draft_text",
    "corrected_text",
    "evidence_text",
    "guide",
    "conceal",
)


def _sendable(text: str) -> str:
    """Return `text` without half surrogate pairs: another role's reply may hold one, and no request can carry it."""
    return text.encode("utf-8", "replace").decode()


def _script_of(environment: Environment) -> ScriptedRoles:
    if not isinstance(environment, OffersScriptedRoles):
        raise ConfigError(f"environment {environment.name!r} offers no scripted roles")
    return environment.scripted_roles()
