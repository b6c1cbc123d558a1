import math

import pytest

from midcourse.interventions.gate import min_token_logprob, passes, perplexity


def test_perplexity_is_the_inverse_geometric_mean_of_probabilities():
    # probabilities 1/2 and 1/8: (1/16) ** (-1/2) = 4
    assert perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4.0)


def test_certain_tokens_have_perplexity_one():
    assert perplexity([0.0, 0.0]) == 1.0


def test_an_impossible_token_has_infinite_perplexity():
    assert perplexity([-math.inf, -0.1]) == math.inf
    assert perplexity([-10_000.0]) == math.inf


def test_a_threshold_of_zero_keeps_none_and_infinity_keeps_all():
    assert not passes(perplexity([0.0]), 0.0)
    assert passes(perplexity([-10_000.0]), math.inf)


def test_a_perplexity_equal_to_the_threshold_passes():
    assert passes(5.0, 5.0)
    assert not passes(5.000001, 5.0)


def test_the_least_likely_token_is_found():
    assert min_token_logprob([-0.1, -7.0, -0.2]) == -7.0


@pytest.mark.parametrize("logprobs", [[], [math.nan], [0.5]])
def test_what_is_no_log_probability_is_refused(logprobs):
    with pytest.raises(ValueError, match=r"log-prob|token"):
        perplexity(logprobs)
