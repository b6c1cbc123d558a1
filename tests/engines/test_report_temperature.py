"""Completions that are drawn at one temperature and reported at another."""

import asyncio
from dataclasses import replace

import pytest
from tests.engines.test_transformers import mixed_requests, sample_all

from midcourse.engines.base import SamplingParams

REPORTED = 0.8


def reporting(requests, every: int = 1):
    """The requests; of `every` many one asks for another temperature than it is drawn at."""
    return [
        (prompt, replace(sampling, report_temperature=None if index % every else REPORTED))
        for index, (prompt, sampling) in enumerate(requests)
    ]


def test_log_probabilities_and_entropies_are_those_of_scoring_at_the_reported_temperature(make_engine):
    requests = reporting(mixed_requests(12))
    assert {sampling.temperature for _, sampling in requests} == {0.0, 0.7, 1.0, 1.3}
    completions = sample_all(make_engine(max_batch_rows=5), requests)
    scorer = make_engine()
    for (prompt, _), completion in zip(requests, completions, strict=True):
        scores = asyncio.run(scorer.score(prompt, completion.token_ids, temperature=REPORTED))
        assert completion.logprobs == pytest.approx(scores.logprobs, abs=1e-6, rel=1e-6)
        assert completion.entropies == pytest.approx(scores.entropies, abs=1e-6, rel=1e-6)


def test_what_is_drawn_does_not_depend_on_what_is_reported(make_engine):
    requests = mixed_requests(12)
    drawn, reported = (sample_all(make_engine(), wanted) for wanted in (requests, reporting(requests)))
    for one, other in zip(drawn, reported, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) > 1e-3


def test_other_rows_of_the_batch_stay_as_they_are_to_the_last_bit(make_engine):
    requests = mixed_requests(12)
    plain, mixed = (sample_all(make_engine(max_batch_rows=6), wanted) for wanted in (requests, reporting(requests, 3)))
    assert plain[0] != mixed[0]
    for index in range(12):
        if index % 3:
            assert mixed[index] == plain[index]


def test_the_temperature_of_the_draws_reported_as_such_changes_nothing(make_engine):
    requests = mixed_requests(8)
    same = [
        (prompt, replace(sampling, report_temperature=sampling.temperature or 1.0)) for prompt, sampling in requests
    ]
    assert sample_all(make_engine(), same) == sample_all(make_engine(), requests)


def test_a_temperature_that_is_not_positive_is_named():
    with pytest.raises(ValueError, match="report_temperature must be positive: got 0"):
        SamplingParams(max_tokens=1, report_temperature=0.0)
