"""Settings -> the parts of a run, put together: policy, engine, environment, method.

Torch is imported where the policy is loaded, so that a wrong setting is told before anything heavy starts.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from midcourse.config import RunConfig
from midcourse.config.schema import nested_tables
from midcourse.engines.base import Engine, EngineConfig, Feature, TextEngine
from midcourse.environments.base import Environment, EnvironmentConfig, Task
from midcourse.errors import ConfigError
from midcourse.interventions.judge import JudgeConfig
from midcourse.interventions.roles import RolesConfig
from midcourse.interventions.speaker import SpeakerConfig
from midcourse.methods.base import Method, MethodConfig, NeedsFeatures, RolloutTools, Speaker
from midcourse.nano.package import BUILT_IN_CHAT
from midcourse.rollout.chat import ChatFormat
from midcourse.rollout.templates import load_template
from midcourse.training.lora import frozen_copy
from midcourse.training.policy import Policy, PolicyConfig, load_policy, load_tokenizer

WORDS_TRIED = 32
"""Tasks whose queries are read before a run, for words that the policy does not know."""
MOST_UNKNOWN = 0.1
"""Share of unknown tokens in queries above which no run begins. In the worlds of the built-in policies it is 0."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run works with."""

    config: RunConfig
    policy: Policy
    tools: RolloutTools
    method: Method


@asynccontextmanager
async def assembled(config: RunConfig) -> AsyncIterator[Parts]:
    """Build the parts in the order in which mistakes are cheapest to find, and close the engines at the end.

    Raises:
        ConfigError: parts that cannot be built as asked, or that do not fit the policy's context; a method that needs
            of its engine what that does not give.
        EngineError: a server that does not start, or cannot do what is needed.
    """
    _check_features(config)
    check_machine(config)
    method = cast(MethodConfig, config.method).build()
    environment = cast(EnvironmentConfig, config.environment).build()
    logger.info("loading the policy %s", config.policy.path)
    policy = load_policy(config.policy)
    _check_words(config, policy.chat, environment)
    engine = cast(EngineConfig, config.engine).build(policy.model, tokenizer=policy.tokenizer)
    _check_lengths(config, engine.context_length)
    role_engines: dict[str, TextEngine] = {role: chosen.build() for role, chosen in config.role_engines.items()}
    tools = RolloutTools(
        engine=engine,
        chat=policy.chat,
        environment=environment,
        rollout=config.rollout,
        role_engines=role_engines,
        vocabulary_size=policy.model.config.get_text_config().vocab_size,
        judge=_judge(config, policy),
    )
    writers: list[Engine] = [engine] if tools.judge is None else [engine, tools.judge.engine]
    async with AsyncExitStack() as opened:  # closes the others, too, where one cannot be closed
        for text_engine in role_engines.values():
            opened.push_async_callback(text_engine.close)
        for writer in writers:
            opened.push_async_callback(writer.close)
            await writer.open()
        _check_lengths(config, engine.context_length)  # a server may take less than its model could
        yield Parts(config=config, policy=policy, tools=tools, method=method)


def _check_features(config: RunConfig) -> None:
    """Check that the engine gives what the method needs. It is asked of the settings, before anything is loaded."""
    needs: frozenset[Feature] = config.method.needs if isinstance(config.method, NeedsFeatures) else frozenset()
    engine = cast(EngineConfig, config.engine)
    for feature in sorted(needs - engine.features):
        expected = engine.remedy(feature)
        raise ConfigError(
            f"engine.name = {config.name_of('engine')!r} gives no {feature} with these settings, and method "
            f"{config.name_of('method')!r} needs them: expected {expected + ', or ' if expected else ''}"
            'engine.name = "transformers"'
        )


@runtime_checkable
class ChecksMachine(Protocol):
    """Settings of an engine that can tell in a moment whether this machine has what they name."""

    def check_machine(self) -> None:
        """Raise ConfigError if it has not."""
        ...


def check_machine(config: RunConfig) -> None:
    """Check that what the settings name is there: programs of the engine, files of chat templates.

    Raises:
        ConfigError: it is not.
    """
    load_template(config.policy.chat_template)
    if (speaker := _speaker_settings(config)) is not None:
        load_template(speaker.chat_template)
    if isinstance(config.engine, ChecksMachine):
        config.engine.check_machine()


def _check_words(config: RunConfig, chat: ChatFormat, environment: Environment) -> None:
    """Check that the policy knows the words of its world: a built-in one reads every other as the same token."""
    if chat.unknown_id is None:
        return
    token_ids = [token_id for task in _first_tasks(config, environment) for token_id in chat.encode(task.query)]
    share = token_ids.count(chat.unknown_id) / max(1, len(token_ids))
    told = (
        f"policy.chat = {config.policy.chat!r}: this policy does not know {share:.1%} of the words in queries of "
        f"environment.name = {config.name_of('environment')!r}"
    )
    if share > MOST_UNKNOWN:
        raise ConfigError(
            f"{told}: expected environment.name = {BUILT_IN_CHAT[config.policy.chat].environment!r}, or another "
            'policy.path with policy.chat = "chatml" or "template"'
        )
    if share:
        logger.warning("%s; all of them are the same token to it", told)


def _first_tasks(config: RunConfig, environment: Environment) -> Sequence[Task]:
    """Return the first tasks of the first split that there is; which ones a run uses is checked where it does."""
    for split in ("train", *config.evaluation.splits):
        try:
            if tasks := environment.tasks(split)[:WORDS_TRIED]:
                return tasks
        except ConfigError:
            continue
    return ()


def _speaker_settings(config: RunConfig) -> SpeakerConfig | None:
    settings = (getattr(config.method, name) for name in type(config.method).model_fields)
    return next((value for value in settings if isinstance(value, SpeakerConfig)), None)


def _judge(config: RunConfig, policy: Policy) -> Speaker | None:
    """Return the model that judges or teaches: the policy as it is now, or another; None: none is asked for."""
    chosen = _speaker_settings(config)
    if chosen is None or chosen.played_by not in ("frozen", "model"):
        return None
    build = cast(EngineConfig, config.engine).for_judge().build
    if chosen.path is None:
        engine = build(frozen_copy(policy.model), tokenizer=policy.tokenizer)
        return Speaker(engine=engine, chat=policy.chat, shares_tokens=True)
    told = {"path": chosen.path, "chat": chosen.chat, "chat_template": chosen.chat_template, "lora": None}
    logger.info("loading the judging model %s", chosen.path)
    other = load_policy(config.policy.model_copy(update=told))
    # Models of one family have one vocabulary: what one wrote need not be encoded again for the other.
    if other.tokenizer is None or policy.tokenizer is None:  # built-in: a chat format has one vocabulary
        shares_tokens = chosen.chat == config.policy.chat
    else:
        shares_tokens = other.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    engine = build(other.model, tokenizer=other.tokenizer)
    speaker = Speaker(engine=engine, chat=other.chat, shares_tokens=shares_tokens)
    chosen.check(speaker)
    return speaker


def _check_lengths(config: RunConfig, context_length: int) -> None:
    """Check that a prompt can stand before the longest turn and reply: else every rollout or role would fail."""
    lengths = {"rollout.max_turn_tokens": config.rollout.max_turn_tokens}
    for path, table in nested_tables(config.method, "method"):
        if (isinstance(table, RolesConfig) and table.played_by == "self") or (
            isinstance(table, JudgeConfig) and table.played_by in ("frozen", "self")
        ):
            lengths[f"{path}.max_tokens"] = table.max_tokens
    for key, length in lengths.items():
        if length >= context_length:
            raise ConfigError(
                f"{key} = {length}: expected less than the policy's context of {context_length} tokens, which holds "
                "the prompt too (`midcourse init --nano` has values for the built-in policy)"
            )


def token_decoder(config: PolicyConfig) -> Callable[[Sequence[int]], str]:
    """Return how a policy's tokens become text, without loading its weights where that is possible.

    Raises:
        ConfigError: there is no tokenizer at `policy.path`.
    """
    if config.chat in BUILT_IN_CHAT:
        return BUILT_IN_CHAT[config.chat].chat_format().decode
    return load_tokenizer(config.path).decode
