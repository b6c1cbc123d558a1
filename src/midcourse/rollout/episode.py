"""The rollout loop: the policy writes a turn, the environment answers, until somebody says stop.

A failed rollout is data. This file is the one place where the failures of engine and environment are caught; bugs of
ours and cancellation pass through.
"""

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from numbers import Real
from typing import Protocol

from midcourse.engines.base import Completion, Engine, SamplingParams
from midcourse.environments.base import Environment, Episode, Observation, Task
from midcourse.errors import EngineError, PromptTooLongError, ReplayMismatchError
from midcourse.rollout.chat import ChatFormat
from midcourse.rollout.edits import Prefix, add_turn, as_prefix, extend
from midcourse.rollout.limits import RolloutConfig
from midcourse.rollout.worker import CallFailed, CallTimedOut, DaemonWorker
from midcourse.types import (
    AssistantTurn,
    FailureKind,
    InterventionRecord,
    ReviewRecord,
    StopReason,
    TokenSource,
    ToolResult,
    Trajectory,
    Turn,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """What makes one rollout's draws its own: the same key draws the same numbers, in any process, in any order."""

    seed: int  # the run's
    update: int
    task_id: str
    attempt: int

    def turn_seed(self, turn: int, role: str = "policy") -> int:
        """Return the seed of one draw, in [0, 2**63)."""
        text = json.dumps([self.seed, self.update, self.task_id, self.attempt, turn, role])
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn that the policy drafted and that nobody has acted on yet."""

    task: Task
    history_ids: Sequence[int]  # [T] all tokens before the draft; the rollout prompt of this turn
    turns: Sequence[Turn]  # the turns so far, with what the environment answered
    draft_ids: Sequence[int]  # [N] as sampled, stop token included
    draft: AssistantTurn
    draft_completion: Completion  # its finish_reason "length" says that the draft was cut short
    turn_index: int
    key: RolloutKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecision:
    """What to advance with. All defaults: the draft as the policy wrote it.

    Raises:
        ValueError: log-probabilities without tokens or tokens without them; lengths that differ; no tokens.
    """

    token_ids: Sequence[int] | None = None  # [N] a replacement, stop token included; None keeps the draft
    behavior_logprobs: Sequence[float] | None = None  # [N] nats, rollout prompt, sampling temperature
    calibration_logprobs: Sequence[float] | None = None  # [N] nats, correction prompt
    weights: Sequence[float] | None = None  # [N] of the tokens that are advanced with, draft or not; None is 1
    policy_version: int | None = None  # weights that scored the replacement; None: those that drafted
    record: InterventionRecord | None = None

    def __post_init__(self) -> None:
        if self.token_ids is None:
            if self.behavior_logprobs is not None or self.calibration_logprobs is not None:
                raise ValueError("a decision that keeps the draft must not bring log-probabilities")
            return
        if not self.token_ids:
            raise ValueError("a replacement must have at least one token")
        if self.behavior_logprobs is None:
            raise ValueError("a replacement needs its log-probabilities under the rollout prompt")
        for name in ("behavior_logprobs", "calibration_logprobs", "weights"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.token_ids):
                raise ValueError(
                    f"{name} must have one entry per token: got {len(values)}, expected {len(self.token_ids)}"
                )


class StepHook(Protocol):
    """An intervention: sees every draft before the environment does, and may replace it."""

    async def __call__(self, step: Step) -> StepDecision:
        """Return what to advance with. An EngineError that it lets through fails the rollout."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    """A turn that is to be written: behind all tokens of the prefix, some of which may be its own beginning."""

    task: Task
    prefix: Prefix
    start: int  # where the turn begins in the prefix
    turn_index: int
    key: RolloutKey


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTurn:
    """The prefix with the turn's tokens behind it, by whoever wrote them; not ended: it was cut short."""

    prefix: Prefix
    is_ended: bool
    reviews: Sequence[ReviewRecord] = ()


class TurnWriter(Protocol):
    """Writes turns in place of one request to the policy, at most `max_turn_tokens` each: in chunks, under review."""

    async def __call__(self, turn: OpenTurn) -> WrittenTurn:
        """Return the turn. An EngineError that it lets through fails the rollout."""
        ...


async def run_episode(
    task: Task,
    *,
    engine: Engine,
    chat: ChatFormat,
    environment: Environment,
    config: RolloutConfig,
    key: RolloutKey,
    step_hook: StepHook | None = None,
    turn_writer: TurnWriter | None = None,
    resume_from: tuple[Prefix | Trajectory, Episode] | None = None,
    temperature_factor: float = 1.0,
) -> Trajectory:
    """Return one finished rollout of `task`, scored or failed; a failed one keeps its tokens.

    A tool call that cannot be read never reaches the environment: its error goes back to the policy as a result
    after those of the turn's readable calls. A turn without calls is an answer, and the environment says whether that
    ends the episode. What follows the last turn of an episode that is done stands in its results, not in its tokens.

    Environment calls run in a daemon thread of the episode's own (see worker.py): one that hangs costs its timeout
    and does not keep the process from ending.

    Args:
        task: what to do.
        engine: who writes tokens; this coroutine is its participant from first to last, the hook's requests included.
        chat: turns <-> tokens.
        environment: the world; closed in the end, also where the rollout failed.
        config: sampling and limits.
        key: keys every draw of the rollout.
        step_hook: asked about every draft, one that was cut short included.
        turn_writer: writes the turns; none asks the policy for each as a whole. No hook is asked then.
        resume_from: tokens to go on from and the environment's episode in the state that they led to, which is then
            closed here. The tokens end in a generation prompt (`fork`) or within a turn (`cut`), which is then
            written on; a hook replaces only what was written on.
        temperature_factor: times the temperature, for the draws alone: log-probabilities stay at `config.temperature`.

    Raises:
        ValueError: both a hook and a writer; a factor that is not positive, or one beside a writer, which draws by
            itself; `resume_from` ends in a finished turn without its answer, was sampled at another temperature, or
            is of another task; a hook's replacement does not end in a stop token.
    """
    if step_hook is not None and turn_writer is not None:
        raise ValueError(f"task {task.task_id!r}: a rollout has a step hook or a turn writer, not both")
    if not temperature_factor > 0 or (turn_writer is not None and temperature_factor != 1):
        raise ValueError(
            f"task {task.task_id!r}: temperature_factor must be positive, and 1 beside a turn writer: "
            f"got {temperature_factor}"
        )
    rollout = _Rollout(
        task, engine, chat, environment, config, key, step_hook, turn_writer, resume_from, temperature_factor
    )
    with engine.participant():
        return await rollout.run()


class _RewardError(Exception):
    """The environment's score is missing or no finite number."""


class _PromptTooLong(Exception):
    """Not even the first turn fits."""


class _Rollout:
    """The loop's state: the tokens so far, the environment's episode and its thread."""

    def __init__(
        self,
        task: Task,
        engine: Engine,
        chat: ChatFormat,
        environment: Environment,
        config: RolloutConfig,
        key: RolloutKey,
        step_hook: StepHook | None,
        turn_writer: TurnWriter | None,
        resume_from: tuple[Prefix | Trajectory, Episode] | None,
        temperature_factor: float,
    ) -> None:
        self.task, self.engine, self.chat, self.environment = task, engine, chat, environment
        self.config, self.key, self.step_hook, self.turn_writer = config, key, step_hook, turn_writer
        self.temperature_factor = temperature_factor
        self.worker = DaemonWorker()
        self.episode: Episode | None = None
        if resume_from is None:
            prompt_ids = chat.open(system_prompt=environment.system_prompt, tools=environment.tools, query=task.query)
            empty = Prefix(task_id=task.task_id, temperature=config.temperature)
            self.prefix = extend(empty, prompt_ids, TokenSource.PROMPT)
        else:
            self.prefix = as_prefix(resume_from[0])
            self.episode = resume_from[1]
            self._check_resumable()

    def _check_resumable(self) -> None:
        prefix = self.prefix
        if prefix.task_id != self.task.task_id:
            raise ValueError(f"cannot resume task {self.task.task_id!r} from tokens of task {prefix.task_id!r}")
        if prefix.temperature != self.config.temperature:
            raise ValueError(
                f"task {prefix.task_id!r}: tokens sampled at temperature {prefix.temperature} cannot go on at "
                f"{self.config.temperature}: a trajectory states one temperature"
            )
        if prefix.turns and prefix.turns[-1].end == len(prefix.token_ids):
            raise ValueError(
                f"task {prefix.task_id!r}: the tokens end in a finished turn without its answer; "
                "cut within the turn, or fork before it"
            )

    async def run(self) -> Trajectory:
        failure: FailureKind
        limit = asyncio.timeout(self.config.rollout_timeout_seconds)
        try:
            try:
                async with limit:
                    stop_reason = await self._roll()
                    reward = await self._score()
            except PromptTooLongError as error:
                failure, message = FailureKind.PROMPT_TOO_LONG, str(error)
            except _PromptTooLong as error:
                failure, message = FailureKind.PROMPT_TOO_LONG, str(error)
            except EngineError as error:
                failure, message = FailureKind.ENGINE_ERROR, f"{type(error).__name__}: {error}"
            except CallFailed as error:
                is_mismatch = isinstance(error.error, ReplayMismatchError)
                failure = FailureKind.REPLAY_MISMATCH if is_mismatch else FailureKind.ENVIRONMENT_ERROR
                message = str(error)
            except CallTimedOut as error:
                failure, message = FailureKind.ENVIRONMENT_TIMEOUT, str(error)
            except _RewardError as error:
                failure, message = FailureKind.REWARD_ERROR, str(error)
            except TimeoutError:
                if not limit.expired():
                    raise
                failure = FailureKind.ROLLOUT_TIMEOUT
                message = f"not finished within {self.config.rollout_timeout_seconds:g} s"
            else:
                return self.prefix.finish(reward=reward, stop_reason=stop_reason)
            return self.prefix.finish(failure=failure, failure_message=message)
        except asyncio.CancelledError:
            self._close_without_waiting()
            raise
        finally:
            await self._close()

    async def _roll(self) -> StopReason:
        max_turns = self.environment.max_turns
        if self.config.max_turns is not None:
            max_turns = min(max_turns, self.config.max_turns)
        first = len(self.prefix.turns)
        for turn_index in range(first, max_turns):
            needed = len(self.prefix.token_ids) + self.config.max_turn_tokens
            if needed > self.engine.context_length:
                if turn_index == 0:
                    raise _PromptTooLong(
                        f"prompt and first turn need {needed} tokens, the context has {self.engine.context_length}"
                    )
                return StopReason.TOKEN_LIMIT
            if self.episode is None:
                self.episode = await self._start()
            stop_reason = await self._take_turn(turn_index)
            if stop_reason is not None:
                return stop_reason
        return StopReason.TURN_LIMIT

    async def _take_turn(self, turn_index: int) -> StopReason | None:
        turn, is_ended = await (self._drafted(turn_index) if self.turn_writer is None else self._written(turn_index))
        if not is_ended:
            self.prefix = add_turn(self.prefix, turn)
            return StopReason.TOKEN_LIMIT
        # The turn joins the record before its answer is known, so that a failure of the environment keeps it.
        before = self.prefix
        self.prefix = add_turn(before, turn)
        observation = await self._act(turn.message)
        self.prefix = add_turn(before, replace(turn, results=tuple(observation.results)))
        if observation.done:
            return StopReason.DONE
        self.prefix = extend(self.prefix, self.chat.observe(observation.results), TokenSource.ENVIRONMENT)
        return None

    async def _written(self, turn_index: int) -> tuple[Turn, bool]:
        """Let the writer write the turn; return it, and whether it is whole."""
        assert self.turn_writer is not None
        start = self.prefix.open_start
        written = await self.turn_writer(
            OpenTurn(task=self.task, prefix=self.prefix, start=start, turn_index=turn_index, key=self.key)
        )
        self.prefix = written.prefix
        token_ids = self.prefix.token_ids[start:]
        turn = Turn(
            start=start,
            end=len(self.prefix.token_ids),
            message=self._read(token_ids),
            reviews=tuple(written.reviews),
        )
        return turn, written.is_ended

    async def _drafted(self, turn_index: int) -> tuple[Turn, bool]:
        """Let the policy draft the turn and the hook decide on it; return it, and whether it is whole."""
        start = self.prefix.open_start
        begun_ids = self.prefix.token_ids[start:]
        completion = await self._sample(turn_index)
        draft = self._read([*begun_ids, *completion.token_ids])
        decision = StepDecision()
        if self.step_hook is not None:
            step = Step(
                task=self.task,
                history_ids=self.prefix.token_ids,
                turns=self.prefix.turns,
                draft_ids=tuple(completion.token_ids),
                draft=draft,
                draft_completion=completion,
                turn_index=turn_index,
                key=self.key,
            )
            decision = await self.step_hook(step)
        if decision.token_ids is None:
            self.prefix = extend(
                self.prefix,
                completion.token_ids,
                TokenSource.POLICY,
                behavior_logprobs=completion.logprobs,
                policy_version=completion.policy_version,
                weights=decision.weights,
            )
            message, truncated = draft, completion.finish_reason == "length"
        else:
            self._extend_with_replacement(decision, drafted_by=completion.policy_version)
            message, truncated = self._read([*begun_ids, *decision.token_ids]), False
        turn = Turn(
            start=start,
            end=len(self.prefix.token_ids),
            message=message,
            intervention=decision.record,
            entropies=() if begun_ids else tuple(round(entropy, 4) for entropy in completion.entropies),
        )
        return turn, not truncated

    def _read(self, turn_ids: Sequence[int]) -> AssistantTurn:
        return self.chat.parse(turn_ids, tools=self.environment.tools)

    def _extend_with_replacement(self, decision: StepDecision, *, drafted_by: int) -> None:
        assert decision.token_ids is not None
        if decision.token_ids[-1] not in self.chat.stop_ids:
            raise ValueError(
                f"task {self.task.task_id!r}: a replacement must end in a stop token: got "
                f"{decision.token_ids[-1]}, expected one of {list(self.chat.stop_ids)}"
            )
        self.prefix = extend(
            self.prefix,
            decision.token_ids,
            TokenSource.INTERVENTION,
            behavior_logprobs=decision.behavior_logprobs,
            policy_version=drafted_by if decision.policy_version is None else decision.policy_version,
            weights=decision.weights,
            calibration_logprobs=decision.calibration_logprobs,
        )

    async def _sample(self, turn_index: int) -> Completion:
        sampling = SamplingParams(
            max_tokens=self.config.max_turn_tokens,
            temperature=self.config.temperature * self.temperature_factor,
            report_temperature=None if self.temperature_factor == 1 else self.config.temperature,
            top_p=self.config.top_p,
            top_k=self.config.top_k,
            stop_ids=tuple(self.chat.stop_ids),
            seed=self.key.turn_seed(turn_index),
        )
        return await sample_checked(self.engine, self.prefix.token_ids, sampling)

    async def _start(self) -> Episode:
        seed = self.key.turn_seed(0, "environment")
        return await self.worker.call(
            lambda: self.environment.start(self.task, seed=seed),
            timeout_seconds=self.config.environment_timeout_seconds,
            if_late=lambda episode: episode.close(),
        )

    async def _act(self, turn: AssistantTurn) -> Observation:
        error_results: tuple[ToolResult, ...] = ()
        if turn.parse_error is not None:
            error_results = (ToolResult(name="", content=turn.parse_error, is_error=True),)
            if not turn.tool_calls:
                return Observation(results=error_results)
        episode = self.episode
        assert episode is not None
        observation = await self.worker.call(
            lambda: _checked_observation(episode.act(turn)),
            timeout_seconds=self.config.environment_timeout_seconds,
        )
        return replace(observation, results=(*observation.results, *error_results))

    async def _score(self) -> float:
        episode = self.episode if self.episode is not None else await self._start()
        self.episode = episode
        try:
            reward = await self.worker.call(episode.score, timeout_seconds=self.config.environment_timeout_seconds)
        except CallFailed as error:
            if isinstance(error.error, ReplayMismatchError):
                raise  # a fork that was not used before: its world failed, not its reward
            raise _RewardError(str(error)) from error
        if not isinstance(reward, Real) or not math.isfinite(reward):
            raise _RewardError(f"a score must be a finite number: got {reward!r}")
        return float(reward)

    async def _close(self) -> None:
        if self.episode is None:
            self.worker.leave()
            return
        try:
            await self.worker.call(self.episode.close, timeout_seconds=self.config.environment_timeout_seconds)
        except (CallFailed, CallTimedOut) as error:
            # The outcome is known by now: a world that cannot tidy up does not change it.
            logger.warning("task %s: the episode did not close: %s", self.task.task_id, error)
        finally:
            self.worker.leave()

    def _close_without_waiting(self) -> None:
        if self.episode is not None:
            self.worker.post(self.episode.close)
            self.episode = None


async def sample_checked(engine: Engine, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
    """Return what the engine samples. Raises EngineError also where a trajectory could not hold it."""
    completion = await engine.sample(prompt_ids, sampling)
    if not completion.token_ids or len(completion.logprobs) != len(completion.token_ids):
        raise EngineError(
            f"a completion needs tokens and one log-probability each: got {len(completion.token_ids)} tokens, "
            f"{len(completion.logprobs)} log-probabilities"
        )
    if not all(math.isfinite(logprob) for logprob in completion.logprobs):
        raise EngineError("a completion's log-probabilities must be finite")
    return completion


def _checked_observation(observation: Observation) -> Observation:
    if not isinstance(observation, Observation):
        raise TypeError(f"act must return an Observation: got {type(observation).__name__}")
    for result in observation.results:
        if not isinstance(result, ToolResult) or not isinstance(result.content, str):
            raise TypeError(f"an observation holds ToolResults with text: got {result!r}")
    return observation
