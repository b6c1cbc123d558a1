"""Models as judges: one that writes tokens in this process, and one on a server that gives text."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from midcourse.engines.base import Feature, SamplingParams, TextEngine
from midcourse.environments.base import Environment
from midcourse.errors import ConfigError, EngineError
from midcourse.interventions.judge import (
    Correction,
    Judge,
    JudgeConfig,
    JudgeFailed,
    Passage,
    ScriptedJudge,
    Verdict,
    Writer,
    WriterConfig,
    encoded_correction,
    judge_script_of,
)
from midcourse.interventions.metering import CostLedger, MeteredEngine, MeteredTextEngine
from midcourse.interventions.prompts import Prompt, render_prompt
from midcourse.interventions.reading import LONGEST_REPLY, ReviewReply, read_review
from midcourse.interventions.roles import AUTO
from midcourse.interventions.speaker import RolloutReader, SpeakerConfig, speaker_of
from midcourse.methods.base import RolloutTools, Speaker
from midcourse.rollout.chat import ChatFormat

END_MARK = "[end of response]"
"""What a server writes behind a correction that completes the response: its text alone does not tell."""
DOMAINS = {"mathematics": "mathematics", "arithmetic": "mathematics", "code": "code"}
"""Environment -> what the prompt for reviews looks for; other environments take the general prompt."""


def cast_judge(tools: RolloutTools, *, config: JudgeConfig, ledger: CostLedger) -> Judge:
    """Return the judge that the settings ask for.

    Raises:
        ConfigError: this run has no such model, server or script.
    """
    match config.played_by:
        case "scripted":
            return ScriptedJudge(judge_script_of(tools.environment), chat=tools.chat)
        case "engine":
            if "judge" not in tools.role_engines:
                raise ConfigError("the judge is to be played by an engine, and this run has none for it")
            return ServerJudge(tools, tools.role_engines["judge"], config=config, ledger=ledger)
        case "self" | "frozen" | "model":
            return ModelJudge(tools, speaker_of(tools, config), config=config, ledger=ledger)


def cast_writer(tools: RolloutTools, *, config: WriterConfig, ledger: CostLedger) -> Writer:
    """Return the writer that the settings ask for: the environment's script, or a model that writes tokens.

    Raises:
        ConfigError: this run has no such model or script.
    """
    if config.played_by == "scripted":
        return ScriptedJudge(judge_script_of(tools.environment), chat=tools.chat)
    return ModelWriter(tools, speaker_of(tools, config), config=config, ledger=ledger)


class ModelWriter:
    """A model that writes tokens. It writes on behind the prefix that stands, as if it were its own.

    Where it shares the policy's vocabulary its tokens are spliced in as they are. Else prompt and kept text are encoded
    for it, and its text is encoded once, where it is spliced in.
    """

    def __init__(self, tools: RolloutTools, speaker: Speaker, *, config: WriterConfig, ledger: CostLedger) -> None:
        self._policy_chat = tools.chat
        self._chat = speaker.chat
        self._shares_tokens = speaker.shares_tokens
        self._config = config
        self._writer = MeteredEngine(speaker.engine, purpose="intervention", ledger=ledger)
        self._reader = RolloutReader(speaker, config, environment=tools.environment, policy_chat=tools.chat)

    async def correct(self, passage: Passage, *, num_kept: int, max_tokens: int) -> Correction | None:
        """Return what the model writes behind the kept prefix; at most `max_tokens` of either vocabulary."""
        prefix = passage.prefix
        standing_ids = (*prefix.token_ids, *passage.chunk_ids[:num_kept])
        prompt_ids = self._reader.read(passage.task, standing_ids, prompt_length=prefix.prompt_length)
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=self._config.temperature,
            stop_ids=tuple(self._chat.stop_ids),
            seed=passage.key.turn_seed(passage.turn_index, f"intervention:{passage.review_index}"),
        )
        async with _in_time(self._config):
            completion = await self._writer.sample(prompt_ids, sampling)
        if not completion.token_ids:
            return None
        is_ended = completion.finish_reason == "stop"
        said_ids = _without_stop(completion.token_ids, self._chat)
        if self._shares_tokens:
            stop = [self._policy_chat.stop_ids[0]] if is_ended else []
            found = Correction(token_ids=(*said_ids, *stop), is_ended=is_ended)
        else:
            # A decoder may write the first token of a text differently: the text is what the tokens add to the prompt.
            before = self._chat.decode(prompt_ids)
            text = self._chat.decode([*prompt_ids, *said_ids])[len(before) :]
            found = encoded_correction(self._policy_chat, text, is_ended=is_ended, max_tokens=max_tokens)
        mean_logprob = math.fsum(completion.logprobs) / len(completion.logprobs)
        return None if found is None else replace(found, mean_logprob=mean_logprob)


class ModelJudge(ModelWriter):
    """A writer that judges, too."""

    def __init__(self, tools: RolloutTools, speaker: Speaker, *, config: JudgeConfig, ledger: CostLedger) -> None:
        super().__init__(tools, speaker, config=config, ledger=ledger)
        self._judging = config
        self._environment = tools.environment
        self._reviewer = MeteredEngine(speaker.engine, purpose="judge", ledger=ledger)
        self._style = speaker.chat.prompt_style if config.style == AUTO else config.style

    async def review(self, passage: Passage) -> Verdict | None:
        """Return the verdict on the chunk; None where it cannot be read. Raises JudgeFailed."""
        prompt = _review_prompt(passage, self._environment, self._judging, style=self._style)
        sampling = SamplingParams(
            max_tokens=self._judging.max_tokens,
            temperature=self._judging.temperature,
            stop_ids=tuple(self._chat.stop_ids),
            seed=passage.key.turn_seed(passage.turn_index, f"judge:{passage.review_index}"),
            json_schema=(
                ReviewReply.model_json_schema() if Feature.STRUCTURED_OUTPUT in self._reviewer.features else None
            ),
        )
        async with _in_time(self._judging):
            prompt_ids = self._chat.role_prompt(role="judge", instructions=prompt.instructions, request=prompt.request)
            completion = await self._reviewer.sample(prompt_ids, sampling)
        return _verdict(self._chat.decode(_without_stop(completion.token_ids, self._chat)))


class ServerJudge:
    """A model on a server. It is asked in words to write on, since chat servers take no beginning of a reply.

    While it is waited for, the policy's engine goes on with other rollouts.
    """

    def __init__(self, tools: RolloutTools, engine: TextEngine, *, config: JudgeConfig, ledger: CostLedger) -> None:
        self._environment = tools.environment
        self._policy_engine = tools.engine
        self._policy_chat = tools.chat
        self._config = config
        self._reviewer = MeteredTextEngine(engine, purpose="judge", ledger=ledger)
        self._writer = MeteredTextEngine(engine, purpose="intervention", ledger=ledger)
        self._style = "standard" if config.style == AUTO else config.style

    async def review(self, passage: Passage) -> Verdict | None:
        """Return the verdict on the chunk; None where it cannot be read. Raises JudgeFailed."""
        prompt = _review_prompt(passage, self._environment, self._config, style=self._style)
        seed = passage.key.turn_seed(passage.turn_index, f"judge:{passage.review_index}")
        self._policy_engine.step_aside()
        async with _in_time(self._config):
            text = await self._reviewer.complete(
                _messages(prompt),
                max_tokens=self._config.max_tokens,
                temperature=self._config.temperature,
                seed=seed,
                json_schema=ReviewReply.model_json_schema(),
            )
        return _verdict(text)

    async def correct(self, passage: Passage, *, num_kept: int, max_tokens: int) -> Correction | None:
        """Return the server's text, encoded and cut to `max_tokens`.

        Servers drop white space before a reply. Where the rejected text began with some and the reply does not, the
        rejected text's is kept: else words would grow together.
        """
        turn_ids = passage.turn_ids
        accepted = self._policy_chat.decode([*turn_ids, *passage.chunk_ids[:num_kept]])
        prompt = render_prompt(
            self._style,
            "continue",
            {
                "query": passage.task.query,
                "accepted_text": accepted,
                "evidence_text": _evidence(passage, self._config),
                "end_mark": END_MARK,
            },
        )
        seed = passage.key.turn_seed(passage.turn_index, f"intervention:{passage.review_index}")
        self._policy_engine.step_aside()
        async with _in_time(self._config):
            reply = await self._writer.complete(
                _messages(prompt), max_tokens=max_tokens, temperature=self._config.temperature, seed=seed
            )
        text, mark, _ = reply[:LONGEST_REPLY].partition(END_MARK)  # all of it is encoded before it is cut to tokens
        rejected = passage.text.whole[len(accepted) :]
        if text and not text[0].isspace():
            text = rejected[: len(rejected) - len(rejected.lstrip())] + text
        return encoded_correction(self._policy_chat, text, is_ended=bool(mark), max_tokens=max_tokens)


def _review_prompt(passage: Passage, environment: Environment, config: JudgeConfig, *, style: str) -> Prompt:
    domain = config.domain
    if domain == "auto":
        domain = DOMAINS.get(environment.name, "general")
    return render_prompt(
        style,
        "judge",
        {
            "query": passage.task.query,
            "tools": environment.tools,
            "accepted_text": passage.text.accepted,
            "chunk_text": passage.text.shown,
            "is_ended": passage.is_ended,
            "evidence_text": _evidence(passage, config),
            "guide": environment.role_guide,
            "domain": domain,
        },
    )


def _evidence(passage: Passage, config: JudgeConfig) -> str:
    return passage.task.evidence.text if config.sees_evidence else ""


def _verdict(text: str) -> Verdict | None:
    found = read_review(text)
    if found is None:
        return None
    reply, quotes = found
    return Verdict(is_kept=reply.verdict == "keep", quotes=quotes, reason=reply.reason)


def _messages(prompt: Prompt) -> Sequence[Mapping[str, str]]:
    messages = [{"role": "user", "content": prompt.request}]
    return [{"role": "system", "content": prompt.instructions}, *messages] if prompt.instructions else messages


def _without_stop(token_ids: Sequence[int], chat: ChatFormat) -> Sequence[int]:
    return token_ids[:-1] if token_ids and token_ids[-1] in chat.stop_ids else token_ids


@asynccontextmanager
async def _in_time(config: SpeakerConfig) -> AsyncIterator[None]:
    """Turn what goes wrong while the speaker is waited for into JudgeFailed."""
    try:
        # asyncio.timeout and not wait_for: the latter would move the call into another task.
        async with asyncio.timeout(config.timeout_seconds):
            yield
    except (EngineError, TimeoutError) as error:
        raise JudgeFailed(str(error) or "no answer in time") from error
