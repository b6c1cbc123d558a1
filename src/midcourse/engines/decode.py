"""Run a batch: prefill what no cache holds, decode until every row has ended, score given tokens.

Letters: R rows, T new tokens a row, N tokens asked for, H hidden, V vocabulary.

Rows of the buffer are dense: a row that ends is replaced by the last one, and waiting requests of the same batch are
admitted into free rows once a quarter of them is free. Every token that was computed is kept with its state (see
prefill.py), so going on from any of them costs nothing for what stands before it. A request that fails the numbers (a
log-probability that is not finite) fails its batch.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from midcourse.engines.base import Completion, SamplingParams, TokenScores
from midcourse.engines.common_prefix import num_common
from midcourse.engines.draws import draw, entropy, truncate, uniforms
from midcourse.engines.forward import buffer_for, forward_for
from midcourse.engines.prefill import Filled, Prefill
from midcourse.engines.prefix_cache import PrefixCache
from midcourse.errors import EngineError

LOGIT_ELEMENTS = 1 << 24  # entries of the largest logit matrix


@dataclass(slots=True, kw_only=True)
class Counters:
    """What a runner has done; see EngineUsage."""

    prompt_tokens: int = 0
    prompt_tokens_reused: int = 0
    computed_tokens: int = 0
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
    is_reported_otherwise: bool  # at another temperature than it is drawn at


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The running rows' settings and state; row r here is row r of the buffer. All [R, ...]."""

    rows: list[_Running] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    num_common: int = 0  # tokens that all rows begin with alike, as far as that pays

    def append(self, rows: Sequence[_Running], **tensors: Tensor) -> None:
        self.rows.extend(rows)
        for name, value in tensors.items():
            self.tensors[name] = torch.cat((self.tensors[name], value)) if name in self.tensors else value
        self.num_common = num_common([row.token_ids for row in self.rows])

    def select(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long, device=self.tensors["temperature"].device)
        # No rows, no widths to keep to.
        self.tensors = {name: value[index] for name, value in self.tensors.items()} if rows else {}
        self.num_common = num_common([row.token_ids for row in self.rows])


class BatchRunner:
    """Turns work into results on one model. Synchronous; one batch at a time."""

    def __init__(
        self, model: PreTrainedModel, *, max_rows: int, cache_tokens: int, context_length: int, pad_token_id: int
    ) -> None:
        self.model = model
        self.max_rows = max_rows
        self.counters = Counters()
        self.cache = PrefixCache(capacity_tokens=cache_tokens)
        with self._evaluating():
            self._forward = forward_for(model, context_length=context_length)
            self._buffer = buffer_for(model)
        self._prefill = Prefill(self._forward, self._buffer, self.cache, pad_token_id=pad_token_id)
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
                    if waiting:  # one of them may begin like a row that has not ended by then
                        self._store(state, range(len(state.rows) - len(admitted), len(state.rows)), num_unfed=0)
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

    def _fill(self, first_row: int, sequences: Sequence[Sequence[int]], prompt_lengths: Sequence[int]) -> list[Filled]:
        """Fill rows with prompts and what may follow them, with states from each prompt's last token on; count."""
        filled = self._prefill.fill(first_row, sequences, [length - 1 for length in prompt_lengths])
        for item in filled:
            self.counters.prompt_tokens += prompt_lengths[item.index]
            self.counters.prompt_tokens_reused += min(item.known, prompt_lengths[item.index])
            self.counters.computed_tokens += len(sequences[item.index]) - item.known
        return filled

    def _admit(self, state: _Rows, admitted: Sequence[tuple[int, SampleWork]]) -> Tensor:
        """Prefill the admitted prompts into the rows after the running ones; return their [new R, H] last states."""
        first_row = len(state.rows)
        prompts = [work.prompt_ids for _, work in admitted]
        filled = self._fill(first_row, prompts, [len(prompt) for prompt in prompts])
        self._append(state, [admitted[item.index] for item in filled])
        last_R = state.tensors["lengths"][first_row:] - 1
        return self._buffer.states[torch.arange(first_row, len(state.rows), device=last_R.device), last_R]

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
                    is_reported_otherwise=_reported(work.sampling) != (work.sampling.temperature or 1.0),
                )
                for index, work in admitted
            ],
            uniforms=uniforms_RN.to(device),
            stops=stops_RN.to(device),
            greedy=torch.tensor([item.temperature == 0 for item in settings], device=device),
            temperature=torch.tensor([item.temperature or 1.0 for item in settings], device=device),
            reported=torch.tensor([_reported(item) for item in settings], device=device),
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
        states_RTH = self._forward(
            self._buffer, state.tensors["last"][:, None], slots_R[:, None], num_slots, num_common=state.num_common
        )
        self._buffer.put_states(slots_R[:, None], states_RTH)
        state.tensors["lengths"] = slots_R + 1
        self.counters.computed_tokens += len(state.rows)
        return states_RTH[:, 0]

    def _store(self, state: _Rows, rows: Iterable[int], *, num_unfed: int) -> None:
        """Keep what rows hold: all their tokens but the last `num_unfed`, which were drawn and not fed."""
        for row in rows:
            running = state.rows[row]
            filled_ids = running.token_ids[: len(running.token_ids) - num_unfed]
            self.cache.store(filled_ids, self._buffer, row, states_from=running.num_prompt - 1)

    def _draw(self, state: _Rows, states_RH: Tensor) -> None:
        """Draw a token for the last rows, as many as there are states: all of them, or those just admitted."""
        begin = len(state.rows) - states_RH.shape[0]
        running = state.rows[begin:]
        rows = {name: value[begin:] for name, value in state.tensors.items()}
        logits_RV = self._head(states_RH).float()
        logprobs_RV = (logits_RV / rows["temperature"][:, None]).log_softmax(dim=-1)
        probabilities_RV = logprobs_RV.exp()
        reported_RV, reported_probabilities_RV = logprobs_RV, probabilities_RV
        if any(row.is_reported_otherwise for row in running):
            reported_RV = (logits_RV / rows["reported"][:, None]).log_softmax(dim=-1)
            reported_probabilities_RV = reported_RV.exp()
        entropy_R = entropy(reported_RV, reported_probabilities_RV)
        if any(row.is_limited for row in running):
            limited_R = (rows["top_p"] < 1) | (rows["top_k"] < self.vocabulary_size)
            probabilities_RV[limited_R] = truncate(
                probabilities_RV[limited_R], rows["top_p"][limited_R], rows["top_k"][limited_R]
            )
        drawn_R1 = rows["drawn"][:, None]
        token_R = draw(probabilities_RV, rows["uniforms"].gather(1, drawn_R1)[:, 0])
        if any(row.is_greedy for row in running):
            token_R = torch.where(rows["greedy"], logprobs_RV.argmax(dim=-1), token_R)
        chosen_R1 = reported_RV.gather(1, token_R[:, None])
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
            self.counters.generated_tokens += count
            finished[running.index] = Completion(
                token_ids=completion,
                logprobs=logprobs[position][:count],
                entropies=entropies[position][:count],
                finish_reason="stop" if completion[-1] in stops[position] else "length",
                policy_version=version,
            )
        self._store(state, ended, num_unfed=1)
        gone = set(ended)
        kept = [row for row in range(len(state.rows)) if row not in gone]
        order = kept.copy()
        for target in ended:
            if target < len(kept):  # a gap below the new end: fill it with the last row that stays
                source = order.pop()
                self._buffer.copy_row(source, target, len(state.rows[source].token_ids) - 1)
                order.insert(target, source)
        state.select(order)

    def _score_rows(
        self, works: Sequence[ScoreWork], chosen: Sequence[int], results: dict[int, TokenScores], version: int
    ) -> None:
        sequences = [(*works[index].prompt_ids, *works[index].continuation_ids) for index in chosen]
        self._buffer.reserve(len(chosen), max(map(len, sequences)) + 1)
        # The last token predicts nothing that is asked for, but it serves who goes on from here.
        filled = self._fill(0, sequences, [len(works[index].prompt_ids) for index in chosen])
        picked = [works[chosen[item.index]] for item in filled]  # row by row
        states_NH = torch.cat(
            [
                self._buffer.states[row, len(work.prompt_ids) - 1 :][: len(work.continuation_ids)]
                for row, work in enumerate(picked)
            ]
        )
        targets_N = torch.tensor([token for work in picked for token in work.continuation_ids])
        temperatures_N = torch.tensor([work.temperature or 1.0 for work in picked for _ in work.continuation_ids])
        logprobs, entropies = self._statistics(states_NH, targets_N, temperatures_N)
        _require_finite(logprobs)
        begin = 0
        for row, (item, work) in enumerate(zip(filled, picked, strict=True)):
            self.cache.store(sequences[item.index], self._buffer, row, states_from=len(work.prompt_ids) - 1)
            self.counters.scored_tokens += len(work.continuation_ids)
            end = begin + len(work.continuation_ids)
            results[chosen[item.index]] = TokenScores(
                logprobs=logprobs[begin:end],
                entropies=entropies[begin:end],
                policy_version=version,
                hidden=states_NH[begin:end].float() if work.want_hidden else None,
            )
            begin = end

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


def _reported(sampling: SamplingParams) -> float:
    """Return the temperature of the log-probabilities that are asked for; at 0 they are those at 1."""
    return sampling.report_temperature or sampling.temperature or 1.0


def _same_width(first: Tensor, second: Tensor, value: float) -> tuple[Tensor, Tensor]:
    width = max(first.shape[1], second.shape[1])
    return _widened(first, width, value), _widened(second, width, value)


def _widened(rows: Tensor, width: int, value: float) -> Tensor:
    return torch.cat((rows, rows.new_full((len(rows), width - rows.shape[1]), value)), dim=1)


def _require_finite(logprobs: Sequence[float]) -> None:
    if not all(math.isfinite(value) for value in logprobs):
        raise EngineError("the model's log-probabilities are not finite: its weights or states have overflowed")
