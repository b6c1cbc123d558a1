"""The policy: its weights, its tokenizer, and the log-probabilities it gives to known tokens.

Letters: B rows, T tokens, N tokens asked for, V vocabulary. The config must be readable without torch, so torch and
transformers are imported where they are used.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midcourse.errors import ConfigError
from midcourse.nano.package import BUILT_IN, BUILT_IN_CHAT
from midcourse.rollout.chat import ChatFormat
from midcourse.training.gguf import find_gguf, read_gguf_model, read_gguf_tokenizer
from midcourse.training.loaded import check_stored_types, check_vocabulary, check_weights
from midcourse.training.lora import (
    ADAPTER_CONFIG,
    AdapterFile,
    LoraConfig,
    add_adapter,
    base_name,
    check_same_adapter,
    find_adapter,
    load_adapter,
    merge_adapter,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NANO = "nano"
ChatName = Literal["compact", "digits", "tables", "chatml", "template"]
EXPECTED_PATH = (
    'a folder with config.json and model.safetensors, a GGUF file, a hub name such as "Qwen/Qwen3-0.6B", "nano", '
    '"nano-arithmetic" or "nano-table-world"'
)
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


class PolicyConfig(BaseModel):
    """Which model is trained, and on what."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str = NANO
    """`nano`, `nano-arithmetic`, `nano-table-world`: built in; else a folder, hub name or GGUF file to load."""
    chat: ChatName = "compact"
    """How turns are written: nano's, -arithmetic's and -table-world's forms, ChatML with Hermes calls, the template."""
    chat_template: str = ""
    """For chat template: a file in place of the model's own, or `gemma3`, which is shipped; empty takes the model's."""
    enable_thinking: bool | None = None
    """For chat template: its variable of this name, where it has one; none leaves it to the template."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the weights live; auto takes a GPU if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights. bfloat16 ones are trained through a float32 copy; moments and adapters are float32 always."""
    bf16_autocast: bool = False
    """Run the trainer's matrix products in bfloat16 while weights and log-softmax stay float32."""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads of torch. Another number may change last bits."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    logprob_chunk_tokens: int = Field(default=1024, ge=1)
    """Tokens whose logits over the whole vocabulary are held at once."""
    lora: LoraConfig | None = None
    """Train adapters in place of the weights, by the table [policy.lora]; none trains all weights."""

    @model_validator(mode="after")
    def _what_is_told_to_a_template_needs_one(self) -> Self:
        if self.chat != "template" and (self.chat_template or self.enable_thinking is not None):
            raise ValueError(
                "chat_template and enable_thinking are for chat 'template' alone: got "
                f"{self.chat_template!r} and {self.enable_thinking} with chat {self.chat!r}"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model with what is needed to talk to it."""

    model: Any  # transformers causal language model
    tokenizer: Any  # None where the chat format needs none
    chat: ChatFormat
    config: PolicyConfig

    @property
    def device(self) -> "torch.device":
        """Where the weights live."""
        return next(self.model.parameters()).device


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """What a model says about the tokens of padded rows; 0 where nothing was asked."""

    logprobs_BT: "Tensor"  # nats, float32, of token t given the tokens before it
    entropies_BT: "Tensor"  # nats, float32, of the distribution that token t is drawn from; no gradient


def load_policy(config: PolicyConfig) -> Policy:
    """Return the policy, in evaluation mode, without dropout.

    Raises:
        ConfigError: no such model, one with weights missing, a tokenizer or chat format that does not fit it, no GPU
            where one is asked for, or an architecture whose log-probabilities are not the softmax of its head.
    """
    check_path(config.path)
    import torch

    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError('policy.device is "cuda", but torch finds no GPU')
    device = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    torch.set_num_threads(config.threads)
    dtype = getattr(torch, config.dtype)
    adapter = find_adapter(config.path)
    base = config.path if adapter is None else adapter.base
    model, tokenizer, chat = _load_parts(config, base, dtype)
    if tokenizer is not None:
        check_vocabulary(model, tokenizer, chat, place=f"policy.path = {config.path!r}")
    # Parameters alone change type: tables of rotary frequencies lose whole positions in bfloat16.
    model = model.to(device=device).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    _adapt(model, config, adapter, base=base)
    if config.gradient_checkpointing:
        keep_fewer_activations(model)
    check_head(model)
    return Policy(model=model, tokenizer=tokenizer, chat=chat, config=config)


def _adapt(model: Any, config: PolicyConfig, adapter: AdapterFile | None, *, base: str) -> None:
    """Give the model the adapter of its folder, or a new one, or neither; without [policy.lora] it is merged."""
    if adapter is not None:
        if config.lora is not None:
            check_same_adapter(adapter, config.lora)
        load_adapter(model, adapter, base=base_name(base))
        if config.lora is None:
            merge_adapter(model)
    elif config.lora is not None:
        add_adapter(model, config.lora, base=base_name(base))


def check_path(path: str) -> None:
    """Check what can be seen of a policy's path without loading anything.

    Raises:
        ConfigError: it is a file, a folder without a model, or names no folder and cannot be a hub name either; or it
            is an adapter's folder, and that is so of its base, or the base is an adapter too.
    """
    adapter = None if path in BUILT_IN else find_adapter(path)
    if adapter is None:
        _check_model_path(path)
        return
    if adapter.base not in BUILT_IN and find_adapter(adapter.base) is not None:
        raise ConfigError(
            f"policy.path = {path!r}: its base {adapter.base!r} is an adapter itself; expected a model: merge that "
            "adapter first, by midcourse export --merge"
        )
    try:
        _check_model_path(adapter.base)
    except ConfigError as error:
        raise ConfigError(
            f"policy.path = {path!r}: the base that this adapter was trained on is not where it was; put it back, "
            f"or name its new place in {ADAPTER_CONFIG} (base_model_name_or_path): {error}"
        ) from error


def _check_model_path(path: str) -> None:
    if path in BUILT_IN or find_gguf(path) is not None:
        return
    folder = Path(path)
    if folder.is_dir():
        problems = [] if (folder / "config.json").is_file() else ["holds no config.json"]
        # Weights may be in several files, or in an older format that transformers still reads.
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
            problems.append("holds no model.safetensors")
        within = folder / "model"
        hint = f" (a checkpoint: did you mean {str(within)!r}?)" if (within / "config.json").is_file() else ""
        problem = " and ".join(problems) + hint if problems else ""
    elif folder.exists():
        problem = "is a file"
    elif folder.suffix == ".gguf":
        problem = "there is no such file"
    else:
        problem = "" if HUB_NAME.fullmatch(path) else "there is no such folder"
    if problem:
        raise ConfigError(f"policy.path = {path!r}: {problem}; expected {EXPECTED_PATH}")


def _load_parts(config: PolicyConfig, base: str, dtype: "torch.dtype") -> tuple[Any, Any, ChatFormat]:
    speaker, shipped = BUILT_IN_CHAT.get(config.chat), BUILT_IN.get(base)
    if shipped is not None and shipped is not speaker:
        raise ConfigError(f'policy.path "{shipped.path}" speaks chat "{shipped.chat}" only: got {config.chat!r}')
    if speaker is not None:
        # A trained one is a folder of weights; tokens and turns are those of the package.
        model = speaker.load() if shipped is not None else load_model(base, dtype)
        return model, None, speaker.chat_format()
    tokenizer = load_tokenizer(config.path)
    chat = _chat_format(tokenizer, config)
    return load_model(base, dtype), tokenizer, chat


def _chat_format(tokenizer: Any, config: PolicyConfig) -> ChatFormat:
    from midcourse.rollout.chat import ChatMLFormat, TemplateFormat
    from midcourse.rollout.templates import load_template

    if config.chat == "chatml":
        return ChatMLFormat(tokenizer)
    template = load_template(config.chat_template)
    if template is not None:  # a checkpoint's tokenizer must write what the policy learnt to read
        tokenizer.chat_template = template
    return TemplateFormat(tokenizer, template=template, enable_thinking=config.enable_thinking)


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer at `path`, or of the base where an adapter brings none. Raises ConfigError: neither has."""
    from transformers import AutoTokenizer

    adapter = find_adapter(path)
    has_own = adapter is None or (adapter.folder / "tokenizer_config.json").is_file()
    place = path if has_own or adapter is None else adapter.base
    if (file := find_gguf(place)) is not None:
        return read_gguf_tokenizer(file)
    with _loading(path, "tokenizer"):
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)


def load_model(path: str, dtype: "torch.dtype") -> Any:
    """Return a causal language model without dropout. Raises ConfigError if `path` has none, or not all of it."""
    if (file := find_gguf(path)) is not None:
        return read_gguf_model(file, dtype, prepare=_switch_off_dropout)
    from transformers import AutoConfig, AutoModelForCausalLM

    with _loading(path, "model"):
        settings = AutoConfig.from_pretrained(path, trust_remote_code=False)  # left out, a terminal is asked
        _switch_off_dropout(settings)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, config=settings, dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
    (model, info), place = loaded, f"policy.path = {path!r}"
    check_weights(model, info, place=place)
    check_stored_types(model, Path(path), place=place)
    return model


@contextmanager
def _loading(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    # What transformers, tokenizers and safetensors raise on damaged files has no type in common, and is not documented:
    # KeyError, TypeError, ZeroDivisionError, SafetensorError, which is an Exception itself, and others.
    except Exception as error:
        where = "" if Path(path).exists() else "there is no such folder, and as a hub name "
        raise ConfigError(
            f"policy.path = {path!r}: {where}the {what} cannot be loaded; expected {EXPECTED_PATH}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _switch_off_dropout(settings: Any) -> None:
    """Set every dropout rate to 0: with any, the ratio of a token to itself would not be 1."""
    for name, value in settings.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or "pdrop" in name):
            setattr(settings, name, 0.0)


def keep_fewer_activations(model: Any) -> None:
    """Switch gradient checkpointing on, by the name that the installed transformers has for it (5.10: the older)."""
    modern = hasattr(model, "activation_checkpointing_enable")
    enable = model.activation_checkpointing_enable if modern else model.gradient_checkpointing_enable
    enable({"use_reentrant": False})  # the other kind finds no gradient behind an embedding that is not trained


def check_head(model: Any) -> None:
    """Check that the output head on the last hidden states gives the model's own logits.

    Raises:
        ConfigError: it does not (some families scale or cap their logits afterwards).
    """
    import torch

    cap = model.config.get_text_config().to_dict().get("final_logit_softcapping")
    if cap:  # logits of small size are hardly changed by it
        raise ConfigError(
            f"{type(model).__name__} caps its logits at {cap} (final_logit_softcapping): its log-probabilities would "
            "be wrong here"
        )
    token_ids = torch.arange(4, device=next(model.parameters()).device)[None]
    with torch.no_grad():
        hidden = model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
        expected = model(input_ids=token_ids, use_cache=False).logits
        found = model.get_output_embeddings()(hidden)
    if not torch.allclose(found.float(), expected.float(), atol=1e-3, rtol=1e-3):
        raise ConfigError(
            f"{type(model).__name__} changes its logits after the output head: its log-probabilities "
            "would be wrong here"
        )


def token_logprobs(
    model: Any,
    rows: Sequence[Sequence[int]],
    *,
    wanted: Sequence[Sequence[bool]],
    temperatures: Sequence[float],
    chunk_tokens: int = 1024,
    bf16_autocast: bool = False,
) -> TokenLogprobs:
    """Return log-probabilities and entropies of the wanted tokens, rows padded on the right to the longest.

    The head runs on wanted positions alone, `chunk_tokens` at a time, and again in the backward pass, so that logits
    over the whole vocabulary are never kept. Log-softmax is taken in float32 (float64 for a float64 model). Carries
    gradient to the model unless the caller switched gradients off.

    Args:
        model: a causal language model of transformers.
        rows: B rows of token ids, each with at least one token.
        wanted: for each row, one flag a token; the first token of a row has nothing before it and must be False.
        temperatures: B values > 0; logits are divided by them.
        chunk_tokens: N at most in one piece.
        bf16_autocast: run the model's matrix products in bfloat16.

    Raises:
        ValueError: lengths that do not fit each other, or a wanted first token.
    """
    import torch

    check_rows(rows, wanted, temperatures)
    device = next(model.parameters()).device
    num_rows, num_tokens = len(rows), max(len(row) for row in rows)
    ids_BT = torch.zeros(num_rows, num_tokens, dtype=torch.long)
    present_BT = torch.zeros(num_rows, num_tokens, dtype=torch.long)
    wanted_BT = torch.zeros(num_rows, num_tokens, dtype=torch.bool)
    for index, (row, flags) in enumerate(zip(rows, wanted, strict=True)):
        ids_BT[index, : len(row)] = torch.tensor(row)
        present_BT[index, : len(row)] = 1
        wanted_BT[index, : len(row)] = torch.tensor(flags, dtype=torch.bool)
    row_N, position_N = (index.to(device) for index in wanted_BT.nonzero(as_tuple=True))
    ids_BT = ids_BT.to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16_autocast):
        hidden_BTH = model.base_model(
            input_ids=ids_BT,
            attention_mask=present_BT.to(device),
            position_ids=torch.arange(num_tokens, device=device).expand(num_rows, num_tokens),
            use_cache=False,
        ).last_hidden_state
    # The position before a token predicts it.
    hidden_NH = hidden_BTH[row_N, position_N - 1]
    ids_N = ids_BT[row_N, position_N]
    temperature_N = torch.tensor(list(temperatures), dtype=torch.float64, device=device)[row_N]
    logprobs_N, entropies_N = score_tokens(
        model, hidden_NH, ids_N, temperature_N, chunk_tokens=chunk_tokens, bf16_autocast=bf16_autocast
    )
    blank_BT = logprobs_N.new_zeros(num_rows, num_tokens)
    return TokenLogprobs(
        logprobs_BT=blank_BT.index_put((row_N, position_N), logprobs_N),
        entropies_BT=blank_BT.index_put((row_N, position_N), entropies_N),
    )


def score_tokens(
    model: Any,
    hidden_NH: "Tensor",
    ids_N: "Tensor",
    temperature_N: "Tensor",
    *,
    chunk_tokens: int,
    bf16_autocast: bool,
) -> tuple["Tensor", "Tensor"]:
    """Return [N] log-probabilities and [N] entropies, nats, from the hidden states that predict the tokens.

    The head runs on `chunk_tokens` states at a time, and again in the backward pass. Entropies carry no gradient.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    device_type = hidden_NH.device.type
    head = model.get_output_embeddings()

    def score(hidden: "Tensor", ids: "Tensor", temperature: "Tensor") -> tuple["Tensor", "Tensor"]:
        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=bf16_autocast):
            logits = head(hidden)
        precise = logits if logits.dtype == torch.float64 else logits.float()
        log_softmax = torch.log_softmax(precise / temperature.to(precise.dtype)[:, None], dim=-1)
        chosen = log_softmax.gather(-1, ids[:, None]).squeeze(-1)
        fixed = log_softmax.detach()
        return chosen, -(fixed.exp() * fixed).nan_to_num(nan=0.0).sum(-1)

    pieces = [
        checkpoint(score, *chunk, use_reentrant=False) if torch.is_grad_enabled() else score(*chunk)
        for chunk in zip(
            hidden_NH.split(chunk_tokens), ids_N.split(chunk_tokens), temperature_N.split(chunk_tokens), strict=True
        )
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def check_rows(rows: Sequence[Sequence[int]], wanted: Sequence[Sequence[bool]], temperatures: Sequence[float]) -> None:
    """Raise ValueError unless each row has tokens, one flag a token, False on its first, and a temperature > 0."""
    if not rows or not len(rows) == len(wanted) == len(temperatures):
        raise ValueError(
            f"rows, wanted and temperatures must be as many and at least one: got {len(rows)}, {len(wanted)}, "
            f"{len(temperatures)}"
        )
    for index, (row, flags, temperature) in enumerate(zip(rows, wanted, temperatures, strict=True)):
        if not row or len(row) != len(flags):
            raise ValueError(f"row {index} must have tokens and one flag each: got {len(row)} and {len(flags)}")
        if flags[0]:
            raise ValueError(f"row {index}: the first token has nothing before it and no log-probability")
        if temperature <= 0:
            raise ValueError(f"row {index}: temperature must be > 0: got {temperature}")
