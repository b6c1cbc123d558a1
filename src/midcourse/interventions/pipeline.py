"""One step under intervention (RTI, Algorithm 1, lines 10-23): what to advance with, and what it is worth."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from midcourse.engines.base import TokenScores
from midcourse.errors import PromptTooLongError
from midcourse.interventions.gate import min_token_logprob, passes, perplexity
from midcourse.interventions.leak import leaked_values, turn_text, visible_text
from midcourse.interventions.metering import CostLedger, MeteredEngine
from midcourse.interventions.roles import Correction, RoleFailed, Roles, RolesConfig, ValidatorVerdict
from midcourse.interventions.shift import token_weights
from midcourse.rollout.episode import Step, StepDecision
from midcourse.types import AssistantTurn, InterventionOutcome, InterventionRecord

if TYPE_CHECKING:
    from midcourse.methods.base import RolloutTools


class InterventionConfig(BaseModel):
    """When a correction is taken, and how its tokens are weighted."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=True)

    roles: RolesConfig = Field(default_factory=RolesConfig)
    """Who plays validator, corrector and verifier."""
    delta: float = Field(default=5.0, ge=0)
    """Largest perplexity of a correction under the rollout prompt (RTI Eq. 4). 0 takes none, inf takes all."""
    epsilon_cal: float = Field(default=0.2, gt=0, lt=1)
    """Half width of the clip around weight 1 (RTI Eq. 6)."""
    use_verifier: bool = True
    """False takes corrections without leak check and verifier (the paper's ablation)."""
    reweight: bool = True
    """False leaves every weight at 1 and scores nothing under the correction prompt (the paper's ablation)."""
    conceal: bool = True
    """False leaves the concealment clause out of the corrector's prompt (RTI, Appendix D.2)."""


class InterventionPipeline:
    """The step hook: validator -> corrector -> leak check -> verifier -> perplexity gate -> token weights.

    Whatever goes wrong on the way, the draft is kept and the record says why. Corrected tokens are scored by the
    policy at its rollout weights, also when another model wrote them.

    Raises:
        ConfigError: a role is to be played by an engine or a script that this run does not have.
    """

    def __init__(self, tools: "RolloutTools", *, config: InterventionConfig, ledger: CostLedger) -> None:
        self._chat = tools.chat
        self._environment = tools.environment
        self._temperature = tools.rollout.temperature
        self._config = config
        self._roles = Roles(tools, config=config.roles, ledger=ledger, conceal=config.conceal)
        self._gate_engine = MeteredEngine(tools.engine, purpose="gate", ledger=ledger)
        self._calibration_engine = MeteredEngine(tools.engine, purpose="calibration", ledger=ledger)

    async def __call__(self, step: Step) -> StepDecision:
        """Return the correction with its log-probabilities and weights, or the draft with the reason."""
        record: dict[str, Any] = {"draft_ids": tuple(step.draft_ids), **_size("draft", step.draft)}
        try:
            return await self._decide(step, record)
        except RoleFailed:
            return _keep(InterventionOutcome.ROLE_FAILED, record)
        except PromptTooLongError:
            # The correction fits nowhere: under the rollout prompt, or under the longer correction prompt.
            return _keep(InterventionOutcome.ROLE_FAILED, record)

    async def _decide(self, step: Step, record: dict[str, Any]) -> StepDecision:
        verdict = await self._roles.validate(step)
        if verdict is None:
            return _keep(InterventionOutcome.VALIDATOR_UNREADABLE, record)
        record |= {
            "error_types": tuple(verdict.error_types),
            "diagnosis": verdict.diagnosis,
            "suggest_next": verdict.suggest_next,
        }
        if verdict.is_valid:
            return _keep(InterventionOutcome.VALID, record)
        written = await self._roles.correct(step, verdict)
        if written is None or not (written.tool_calls or written.content.strip()):
            return _keep(InterventionOutcome.CORRECTOR_UNREADABLE, record)
        try:
            corrected_ids = tuple(self._chat.render(written))
        except ValueError:
            return _keep(InterventionOutcome.CORRECTOR_UNREADABLE, record)  # no turn of the policy's can hold it
        corrected = self._chat.parse(corrected_ids, tools=self._environment.tools)
        record |= {"corrected_ids": corrected_ids, **_size("corrected", corrected)}
        is_held = corrected.parse_error is None and self._chat.unknown_id not in corrected_ids
        if not is_held or len(corrected.tool_calls) != len(written.tool_calls):
            # The policy's own format cannot hold it: what would be trained is not what was meant.
            return _keep(InterventionOutcome.CORRECTOR_UNREADABLE, record)
        if corrected_ids == tuple(step.draft_ids) or _says_the_same(corrected, step.draft):
            return _keep(InterventionOutcome.UNCHANGED, record)
        if self._config.use_verifier:
            refusal = await self._refusal(step, written, corrected_ids, verdict, record)
            if refusal is not None:
                return _keep(refusal, record)
        return await self._gated(step, corrected_ids, verdict, record)

    async def _refusal(
        self,
        step: Step,
        corrected: Correction,
        corrected_ids: Sequence[int],
        verdict: ValidatorVerdict,
        record: dict[str, Any],
    ) -> InterventionOutcome | None:
        corrected_text = self._chat.decode(corrected_ids)
        leaks = leaked_values(
            f"{turn_text(corrected)}\n{corrected_text}",
            evidence=step.task.evidence,
            visible=visible_text(step.task, self._environment, step.turns),
            forbidden_phrases=self._environment.role_guide.forbidden_phrases,
        )
        if leaks:
            record["leaked_values"] = tuple(leaks)
            return InterventionOutcome.LEAK
        opinion = await self._roles.verify(step, corrected, corrected_text=corrected_text, verdict=verdict)
        if opinion is None:
            return InterventionOutcome.VERIFIER_UNREADABLE
        record |= {"verifier_reasons": tuple(opinion.reasons), "verifier_diagnosis": opinion.diagnosis}
        return None if opinion.ok else InterventionOutcome.VERIFIER_REJECTED

    async def _gated(
        self, step: Step, corrected_ids: Sequence[int], verdict: ValidatorVerdict, record: dict[str, Any]
    ) -> StepDecision:
        at_one = await self._gate_engine.score(step.history_ids, corrected_ids, temperature=1.0)
        ppl = perplexity(at_one.logprobs)
        record |= {"perplexity": ppl, "min_token_logprob": min_token_logprob(at_one.logprobs)}
        # A token of probability 0 has no importance ratio, so that not even delta = inf can take it.
        if not passes(ppl, self._config.delta) or not _all_finite(at_one):
            return _keep(InterventionOutcome.GATE_REJECTED, record)
        rollout = at_one
        if self._temperature != 1.0:
            rollout = await self._gate_engine.score(step.history_ids, corrected_ids, temperature=self._temperature)
        calibration = await self._calibration(step, corrected_ids, verdict)
        if not _all_finite(rollout) or (calibration is not None and not _all_finite(calibration)):
            return _keep(InterventionOutcome.GATE_REJECTED, record)
        weights = None
        if calibration is not None:
            weights = tuple(token_weights(calibration.logprobs, rollout.logprobs, self._config.epsilon_cal))
        return StepDecision(
            token_ids=tuple(corrected_ids),
            behavior_logprobs=tuple(rollout.logprobs),
            calibration_logprobs=None if calibration is None else tuple(calibration.logprobs),
            weights=weights,
            policy_version=rollout.policy_version,
            record=InterventionRecord(outcome=InterventionOutcome.ACCEPTED, **record),
        )

    async def _calibration(
        self, step: Step, corrected_ids: Sequence[int], verdict: ValidatorVerdict
    ) -> TokenScores | None:
        """Score under p_cal: the rollout's own tokens and the feedback, without evidence and draft."""
        if not self._config.reweight:
            return None
        prompt_ids = self._chat.with_message(step.history_ids, self._roles.feedback_message(verdict))
        return await self._calibration_engine.score(prompt_ids, corrected_ids, temperature=self._temperature)


def _keep(outcome: InterventionOutcome, record: dict[str, Any]) -> StepDecision:
    return StepDecision(
        token_ids=None,
        behavior_logprobs=None,
        calibration_logprobs=None,
        weights=None,
        policy_version=None,
        record=InterventionRecord(outcome=outcome, **record),
    )


def _size(prefix: str, turn: AssistantTurn) -> dict[str, int]:
    return {f"{prefix}_tool_calls": len(turn.tool_calls), f"{prefix}_characters": len(turn_text(turn))}


def _says_the_same(turn: AssistantTurn, other: AssistantTurn) -> bool:
    return (turn.reasoning.strip(), turn.content.strip(), list(turn.tool_calls), turn.parse_error) == (
        other.reasoning.strip(),
        other.content.strip(),
        list(other.tool_calls),
        other.parse_error,
    )


def _all_finite(scores: TokenScores) -> bool:
    return all(math.isfinite(logprob) for logprob in scores.logprobs)
