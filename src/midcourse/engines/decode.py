"""Run a batch: prefill what no cache holds, decode until every row has ended, score given tokens.

Letters: R rows, T new tokens a row, N tokens asked for, H hidden, V vocabulary.

Rows of the buffer are dense: a row that ends is replaced by the last one, and waiting requests of the same batch are
admitted into free rows once a quarter of them is free. Requests with one prompt are prefilled once. A request that
fails the numbers (a log-probability that is not finite) fails its batch.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from midcourse.engines.base import Completion, SamplingParams, TokenScores
from midcourse.engines.draws import draw, entropy, truncate, uniforms
from midcourse.engines.forward import buffer_for, forward_for
from midcourse.engines.prefix_cache import PrefixCache
from midcourse.errors import EngineError

PREFILL_TOKENS = 4096  # padded tokens of one forward step over prompts
LOGIT_ELEMENTS = 1 << 24  # entries of the largest logit matrix


@dataclass(slots=True, kw_only=True)
class Counters:
    """What a runner has done; see EngineUsage."""

    prompt_tokens: int = 0
    prompt_tokens_reused: int = 0
    generated_tokens: int = 0
    scored_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleWork:
    """One completion to draw."""

    prompt_ids: Sequence[int]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWork:
    """One continuation to score."""

    prompt_ids: Sequence[int]
    continuation_ids: Sequence[int]
    temperature: float
    want_hidden: bool


@dataclass(slots=True, kw_only=True)
class _Running:
    """A row of the decode loop."""

    index: int  # in the batch
    token_ids: list[int]  # prompt, then completion
    num_prompt: int
    is_greedy: bool
    is_limited: bool  # by top-p or top-k


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The running rows' settings and state; row r here is row r of the buffer. All [R, ...]."""

    rows: list[_Running] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def append(self, rows: Sequence[_Running], **tensors: Tensor) -> None:
        self.rows.extend(rows)
        for name, value in tensors.items():
            self.tensors[name] = torch.cat((self.tensors[name], value)) if name in self.tensors else value

    def select(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long, device=self.tensors["temperature"].device)
        # No rows, no widths to keep to.
        self.tensors = {name: value[index] for name, value in self.tensors.items()} if rows else {}


class BatchRunner:
    """Turns work into results on one model. Synchronous; one batch at a time."""

    def __init__(
        self, model: PreTrainedModel, *, max_rows: int, cache_tokens: int, context_length: int, pad_token_id: int
    ) -> None:
        self.model = model
        self.max_rows = max_rows
        self.pad_token_id = pad_token_id
        self.counters = Counters()
        self.cache = PrefixCache(capacity_tokens=cache_tokens)
        with self._evaluating():
            self._buffer = buffer_for(model)
            self._forward = forward_for(model, context_length=context_length)
        self._head = cast("nn.Module", model.get_output_embeddings())
        self.vocabulary_size = cast("nn.Embedding", model.get_input_embeddings()).num_embeddings

    def drop_cache(self) -> None:
        """Forget every prefix."""
        self.cache.clear()

    def release(self) -> None:
        """Forget every prefix and free the buffer."""
        self.cache.clear()
        self._buffer.release()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)

    def sample(self, works: Sequence[SampleWork], *, version: int) -> list[Completion]:
        """Return one completion per work, in order."""
        with self._evaluating(), torch.inference_mode():
            slots = max(len(work.prompt_ids) + work.sampling.max_tokens for work in works)
            self._buffer.reserve(min(len(works), self.max_rows), slots + 1)
            waiting = deque(enumerate(works))
            state = _Rows()
            finished: dict[int, Completion] = {}
            while waiting or state.rows:
                free = self.max_rows - len(state.rows)
                if waiting and (free * 4 >= self.max_rows or not state.rows):
                    admitted = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                    states_RH = self._admit(state, admitted)
                else:
                    states_RH = self._step(state)
                self._draw(state, states_RH)
                self._retire(state, finished, version)
            return [finished[index] for index in range(len(works))]

    def score(self, works: Sequence[ScoreWork], *, version: int) -> list[TokenScores]:
        """Return one score list per work, in order."""
        results: dict[int, TokenScores] = {}
        with self._evaluating(), torch.inference_mode():
            order = sorted(range(len(works)), key=lambda index: len(works[index].continuation_ids))
            for start in range(0, len(order), self.max_rows):
                chosen = order[start : start + self.max_rows]
                self._score_rows(works, chosen, results, version)
        for index, work in enumerate(works):
            # Outside of inference mode a clone is an ordinary tensor, which the caller may differentiate through.
            if work.want_hidden:
                scores = results[index]
                results[index] = TokenScores(
                    logprobs=scores.logprobs,
                    entropies=scores.entropies,
                    policy_version=version,
                    hidden=scores.hidden.clone(),
                )
        return [results[index] for index in range(len(works))]

    def _restore(self, prompt_ids: Sequence[int], row: int) -> int:
        # At least the last prompt token is computed: its state predicts the first token asked for.
        reused = self.cache.restore(prompt_ids, self._buffer, row, limit=len(prompt_ids) - 1)
        self.counters.prompt_tokens += len(prompt_ids)
        self.counters.prompt_tokens_reused += reused
        return reused

    def _admit(self, state: _Rows, admitted: Sequence[tuple[int, SampleWork]]) -> Tensor:
        """Prefill the admitted prompts into the rows after the running ones; return their [new R, H] last states."""
        first_row = len(state.rows)
        leaders: dict[tuple[int, ...], int] = {}
        for _, work in admitted:
            leaders.setdefault(tuple(work.prompt_ids), len(leaders))
        prompts = list(leaders)
        lengths = [self._restore(prompt, first_row + row) for row, prompt in enumerate(prompts)]
        new_ids = [prompt[length:] for prompt, length in zip(prompts, lengths, strict=True)]
        last = [states_TH[-1] for states_TH in self._extend(first_row, lengths, new_ids, only_last=True)]
        for row, prompt in enumerate(prompts):
            self.cache.store(prompt, self._buffer, first_row + row)
        # Leaders hold the first rows of the admission, copies the rows after them.
        ordered: list[tuple[int, SampleWork, int]] = []
        copies: list[tuple[int, SampleWork, int]] = []
        seen: set[int] = set()
        for index, work in admitted:
            leader = leaders[tuple(work.prompt_ids)]
            (copies if leader in seen else ordered).append((index, work, leader))
            seen.add(leader)
        for offset, (_, work, leader) in enumerate(copies, start=first_row + len(ordered)):
            self._buffer.copy_row(first_row + leader, offset, len(work.prompt_ids))
            self.counters.prompt_tokens += len(work.prompt_ids)
            self.counters.prompt_tokens_reused += len(work.prompt_ids)
        ordered += copies
        self._append(state, [(index, work) for index, work, _ in ordered])
        return torch.stack([last[leader] for _, _, leader in ordered])

    def _append(self, state: _Rows, admitted: Sequence[tuple[int, SampleWork]]) -> None:
        settings = [work.sampling for _, work in admitted]
        num_draws = max(item.max_tokens for item in settings)
        num_stops = max(1, *(len(item.stop_ids) for item in settings))
        uniforms_RN = torch.zeros((len(settings), num_draws), dtype=torch.float64)
        stops_RN = torch.full((len(settings), num_stops), -1)
        for row, item in enumerate(settings):
            numbers = uniforms(item.seed, item.first_draw + item.max_tokens)
            uniforms_RN[row, : item.max_tokens] = numbers[item.first_draw :]
            stops_RN[row, : len(item.stop_ids)] = torch.tensor(list(item.stop_ids), dtype=torch.long)
        if state.rows:  # pad both sides to one width
            uniforms_RN, state.tensors["uniforms"] = _same_width(uniforms_RN, state.tensors["uniforms"], 0.0)
            stops_RN, state.tensors["stops"] = _same_width(stops_RN, state.tensors["stops"], -1)
        device = self._buffer.device
        vocabulary_size = self.vocabulary_size
        top_k = [item.top_k or vocabulary_size for item in settings]
        empty = torch.zeros((len(settings), uniforms_RN.shape[1]), dtype=torch.float32, device=device)
        if state.rows:
            for name in ("logprobs", "entropies"):
                _, state.tensors[name] = _same_width(empty, state.tensors[name], 0.0)
        state.append(
            [
                _Running(
                    index=index,
                    token_ids=list(work.prompt_ids),
                    num_prompt=len(work.prompt_ids),
                    is_greedy=work.sampling.temperature == 0,
                    is_limited=work.sampling.top_p < 1 or work.sampling.top_k > 0,
                )
                for index, work in admitted
            ],
            uniforms=uniforms_RN.to(device),
            stops=stops_RN.to(device),
            greedy=torch.tensor([item.temperature == 0 for item in settings], device=device),
            temperature=torch.tensor([item.temperature or 1.0 for item in settings], device=device),
            top_p=torch.tensor([item.top_p for item in settings], dtype=torch.float64, device=device),
            top_k=torch.tensor(top_k, device=device),
            max_tokens=torch.tensor([item.max_tokens for item in settings], device=device),
            lengths=torch.tensor([len(work.prompt_ids) for _, work in admitted], device=device),
            drawn=torch.zeros(len(settings), dtype=torch.long, device=device),
            last=torch.zeros(len(settings), dtype=torch.long, device=device),
            ended=torch.zeros(len(settings), dtype=torch.bool, device=device),
            logprobs=empty,
            entropies=empty.clone(),
        )

    def _step(self, state: _Rows) -> Tensor:
        """Feed the last drawn tokens; return the [R, H] states that predict the next ones."""
        slots_R = state.tensors["lengths"]
        num_slots = max(len(row.token_ids) for row in state.rows)
        states_RTH = self._forward(self._buffer, state.tensors["last"][:, None], slots_R[:, None], num_slots)
        state.tensors["lengths"] = slots_R + 1
        return states_RTH[:, 0]

    def _draw(self, state: _Rows, states_RH: Tensor) -> None:
        """Draw a token for the last rows, as many as there are states: all of them, or those just admitted."""
        begin = len(state.rows) - states_RH.shape[0]
        running = state.rows[begin:]
        rows = {name: value[begin:] for name, value in state.tensors.items()}
        logprobs_RV = (self._head(states_RH).float() / rows["temperature"][:, None]).log_softmax(dim=-1)
        probabilities_RV = logprobs_RV.exp()
        entropy_R = entropy(logprobs_RV, probabilities_RV)
        if any(row.is_limited for row in running):
            limited_R = (rows["top_p"] < 1) | (rows["top_k"] < self.vocabulary_size)
            probabilities_RV[limited_R] = truncate(
                probabilities_RV[limited_R], rows["top_p"][limited_R], rows["top_k"][limited_R]
            )
        drawn_R1 = rows["drawn"][:, None]
        token_R = draw(probabilities_RV, rows["uniforms"].gather(1, drawn_R1)[:, 0])
        if any(row.is_greedy for row in running):
            token_R = torch.where(rows["greedy"], logprobs_RV.argmax(dim=-1), token_R)
        chosen_R1 = logprobs_RV.gather(1, token_R[:, None])
        rows["logprobs"].scatter_(1, drawn_R1, chosen_R1)
        rows["entropies"].scatter_(1, drawn_R1, entropy_R[:, None])
        rows["last"].copy_(token_R)
        rows["drawn"].add_(1)
        stopped_R = (rows["stops"] == token_R[:, None]).any(dim=1)
        rows["ended"].copy_(stopped_R | (rows["drawn"] >= rows["max_tokens"]))
        for row, token in zip(running, token_R.tolist(), strict=True):
            row.token_ids.append(token)

    def _retire(self, state: _Rows, finished: dict[int, Completion], version: int) -> None:
        """Turn ended rows into completions and close the gaps they leave in the buffer."""
        ended = state.tensors["ended"].nonzero()[:, 0].tolist()
        if not ended:
            return
        index = torch.tensor(ended, device=self._buffer.device)
        # tolist() gives Python floats; one copy from the device for all rows that ended in this step.
        logprobs = state.tensors["logprobs"][index].tolist()
        entropies = state.tensors["entropies"][index].tolist()
        stops = state.tensors["stops"][index].tolist()
        for position, row in enumerate(ended):
            running = state.rows[row]
            completion = running.token_ids[running.num_prompt :]
            count = len(completion)
            _require_finite(logprobs[position][:count])
            # The last token was drawn and never fed: its keys are not there.
            self.cache.store(running.token_ids[:-1], self._buffer, row)
            self.counters.generated_tokens += count
            finished[running.index] = Completion(
                token_ids=completion,
                logprobs=logprobs[position][:count],
                entropies=entropies[position][:count],
                finish_reason="stop" if completion[-1] in stops[position] else "length",
                policy_version=version,
            )
        gone = set(ended)
        kept = [row for row in range(len(state.rows)) if row not in gone]
        order = kept.copy()
        for target in ended:
            if target < len(kept):  # a gap below the new end: fill it with the last row that stays
                source = order.pop()
                self._buffer.copy_row(source, target, len(state.rows[source].token_ids) - 1)
                order.insert(target, source)
        state.select(order)

    def _extend(
        self, first_row: int, lengths: Sequence[int], new_ids: Sequence[Sequence[int]], *, only_last: bool = False
    ) -> list[Tensor]:
        """Append tokens to rows that hold `lengths` tokens; return each row's [T, H] states before the head.

        With `only_last` that of the last token alone, [1, H].
        """
        outputs: list[Tensor | None] = [None] * len(lengths)
        start = 0
        while start < len(lengths):
            stop, width = start, 0
            while stop < len(lengths):
                width_with = max(width, len(new_ids[stop]))
                if stop > start and (stop + 1 - start) * width_with > PREFILL_TOKENS:
                    break
                stop, width = stop + 1, width_with
            self._extend_rows(first_row, range(start, stop), lengths, new_ids, outputs, only_last=only_last)
            start = stop
        return [output for output in outputs if output is not None]

    def _extend_rows(
        self,
        first_row: int,
        rows: range,
        lengths: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        outputs: list[Tensor | None],
        *,
        only_last: bool,
    ) -> None:
        device = self._buffer.device
        width = max(len(new_ids[row]) for row in rows)
        token_ids_RT = torch.full((len(rows), width), self.pad_token_id)
        slots_RT = torch.zeros((len(rows), width), dtype=torch.long)
        num_slots = max(lengths[row] + len(new_ids[row]) for row in rows)
        for position, row in enumerate(rows):
            count = len(new_ids[row])
            token_ids_RT[position, :count] = torch.tensor(new_ids[row], dtype=torch.long)
            slots_RT[position, :count] = torch.arange(lengths[row], lengths[row] + count)
            # Padding writes to the slot after the row's last, which nobody sees before it is written again.
            slots_RT[position, count:] = lengths[row] + count
        num_slots = max(num_slots, int(slots_RT.max()) + 1)
        wanted_R = torch.tensor([len(new_ids[row]) - 1 for row in rows], device=device) if only_last else None
        states_RTH = self._forward(
            self._buffer.window(first_row + rows.start),
            token_ids_RT.to(device),
            slots_RT.to(device),
            num_slots,
            wanted_R=wanted_R,
        )
        for position, row in enumerate(rows):
            outputs[row] = states_RTH[position, : len(new_ids[row])]

    def _score_rows(
        self, works: Sequence[ScoreWork], chosen: Sequence[int], results: dict[int, TokenScores], version: int
    ) -> None:
        picked = [works[index] for index in chosen]
        sequences = [[*work.prompt_ids, *work.continuation_ids] for work in picked]
        self._buffer.reserve(len(picked), max(len(sequence) for sequence in sequences) + 1)
        lengths = [self._restore(work.prompt_ids, row) for row, work in enumerate(picked)]
        # The last token predicts nothing that is asked for, but its keys serve who continues from here.
        outputs = self._extend(
            0, lengths, [sequence[length:] for sequence, length in zip(sequences, lengths, strict=True)]
        )
        wanted = [len(work.continuation_ids) for work in picked]
        states_NH = torch.cat([output[-count - 1 : -1] for output, count in zip(outputs, wanted, strict=True)])
        targets_N = torch.tensor([token for work in picked for token in work.continuation_ids])
        temperatures_N = torch.tensor([work.temperature or 1.0 for work in picked]).repeat_interleave(
            torch.tensor(wanted)
        )
        logprobs, entropies = self._statistics(states_NH, targets_N, temperatures_N)
        _require_finite(logprobs)
        begin = 0
        for row, (index, work, count) in enumerate(zip(chosen, picked, wanted, strict=True)):
            self.cache.store(sequences[row], self._buffer, row)
            self.counters.scored_tokens += count
            results[index] = TokenScores(
                logprobs=logprobs[begin : begin + count],
                entropies=entropies[begin : begin + count],
                policy_version=version,
                hidden=states_NH[begin : begin + count].float() if work.want_hidden else None,
            )
            begin += count

    def _statistics(
        self, states_NH: Tensor, targets_N: Tensor, temperatures_N: Tensor
    ) -> tuple[list[float], list[float]]:
        logprobs: list[float] = []
        entropies: list[float] = []
        step = max(1, LOGIT_ELEMENTS // self.vocabulary_size)
        device = states_NH.device
        for start in range(0, len(states_NH), step):
            part = slice(start, start + step)
            logits_NV = self._head(states_NH[part]).float() / temperatures_N[part].to(device)[:, None]
            logprobs_NV = logits_NV.log_softmax(dim=-1)
            logprobs += logprobs_NV.gather(1, targets_N[part].to(device)[:, None])[:, 0].tolist()
            entropies += entropy(logprobs_NV, logprobs_NV.exp()).tolist()
        return logprobs, entropies


def _same_width(first: Tensor, second: Tensor, value: float) -> tuple[Tensor, Tensor]:
    width = max(first.shape[1], second.shape[1])
    return _widened(first, width, value), _widened(second, width, value)


def _widened(rows: Tensor, width: int, value: float) -> Tensor:
    return torch.cat((rows, rows.new_full((len(rows), width - rows.shape[1]), value)), dim=1)


def _require_finite(logprobs: Sequence[float]) -> None:
    if not all(math.isfinite(value) for value in logprobs):
        raise EngineError("the model's log-probabilities are not finite: its weights or states have overflowed")
